#!/bin/bash
# Several ranks on the CPU: the run of one, the same bits every time, and no rank that waits for ever.
. "$(dirname "$0")/train_lib.sh"

# values of column N of the rows of one kind
column() { awk -F, -v kind="$2" -v n="$3" '$1 == kind {print $n}' "$1/metrics.csv"; }

close_numbers() { # WHAT FILE FILE RELATIVE
    checks=$((checks + 1))
    paste "$2" "$3" | awk -v limit="$4" '{d = $1 - $2; if (d < 0) d = -d; m = $1 < 0 ? -$1 : $1
        if (d > limit * (m > 1e-6 ? m : 1e-6)) bad = 1; n++} END {exit bad || n == 0}' ||
        fail "$1: $(paste "$2" "$3" | head -n 3 | tr '\n' ' ')"
}

same_file() { # WHAT A B
    checks=$((checks + 1))
    cmp -s "$2" "$3" || fail "$1: $2 and $3 differ"
}

PORT=$((20000 + RANDOM % 20000)) # nobody else is likely to have it
mine=("${tiny[@]}" --data-dir "$DIGITS" --set data.train_limit=330 --set data.val_limit=101 --epochs 2
    --batch-size 24 --grad-accum-steps 2)
drawn=(--drop-path 0.2 --reprob 0.3 --mixup 0.8 --cutmix 1 --model-ema --val-interval 1)

# ---- one run, whatever the number of ranks ----
for ranks in 1 2 3; do
    run 0 train "${mine[@]}" "${drawn[@]}" --ranks $ranks -o of$ranks
done
tells 'ranks: 3, 8 images of each micro-step on every one'
run 0 train "${mine[@]}" "${drawn[@]}" --ranks 2 -o again
same_file 'two ranks, twice' of2/last.safetensors again/last.safetensors
for ranks in 2 3; do
    for n in 4 6; do # loss, gradient norm
        column of1 train $n >a
        column of$ranks train $n >b
        close_numbers "column $n of $ranks ranks" a b 1e-4
    done
    column of1 validate 10 >a
    column of$ranks validate 10 >b
    close_numbers "validation loss of $ranks ranks" a b 1e-4
    equal "rows of $ranks ranks" "$(cut -d, -f1-3 of$ranks/metrics.csv)" "$(cut -d, -f1-3 of1/metrics.csv)"
done
run 0 train "${mine[@]}" --ranks 2 -o json --json -q
json_ok out lines
equal 'lines on stdout of two ranks' "$(wc -l <out)" 1
quiet_err

# ---- exact evaluation: 101 images, batches of 7, nobody's share is equal ----
for ranks in 1 2 3; do
    run 0 eval --checkpoint of1 -b 7 --ranks $ranks --json --results-file rows$ranks.csv --per-class class$ranks.csv
    sed 's/"seconds.*"precision"/"precision"/' out >score$ranks
    same_file "scores of $ranks ranks" score1 score$ranks
    same_file "rows of $ranks ranks" rows1.csv rows$ranks.csv
    same_file "classes of $ranks ranks" class1.csv class$ranks.csv
done
run 0 eval --checkpoint of1 -b 200 --ranks 3 # two ranks have nothing at all
says '/101)'

# ---- other numbers of ranks at a resume ----
run 0 train "${mine[@]}" --ranks 2 -o half --max-steps 7
run 0 train --resume half --ranks 2 --no-progress
run 0 train "${mine[@]}" --ranks 2 -o whole
same_file 'continued with two ranks' half/last.safetensors whole/last.safetensors
run 0 train "${mine[@]}" -o other --max-steps 7
run 0 train --resume other --ranks 3 --no-progress
column whole train 4 >a
column other train 4 >b
close_numbers 'continued with three ranks' a b 1e-4

# ---- what cannot be ----
run 2 train "${mine[@]}" --ranks 5 -o none
tells '--batch-size 24, which all 5 ranks share, has to be a multiple of 5'
run 2 train "${mine[@]}" --mixup 1 -b 6 --ranks 2 -o none
tells 'a multiple of 4 (mixup and cutmix'
equal 'messages of two ranks' "$(grep -c error err)" 1
run 2 train "${mine[@]}" --device cuda:0,1 --ranks 3 -o none
tells 'lists 2 cards'
run 3 train --data-dir "$DIGITS" --set data.train_split=gone --ranks 2 -o none
run 2 classify --checkpoint of1 --device cuda:0,1 "$DIGITS"
tells "is for several ranks: name one card"
checks=$((checks + 1))
[ ! -e none ] || fail 'a run that could not begin left a folder'
RANK=0 WORLD_SIZE=2 MASTER_PORT=1 run 75 train "${mine[@]}" --rdzv-timeout 1 --rdzv-port $PORT -o none
tells 'after 1 s these of 2 ranks had not come: 1'
RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 run 75 train "${mine[@]}" --rdzv-timeout 1 --rdzv-port $PORT -o none
tells '[rank 1] error: rank 1 did not reach rank 0 within 1 s'
RANK=0 WORLD_SIZE=2 run 2 train "${mine[@]}" --ranks 3 -o none
RANK=0 WORLD_SIZE=2 MASTER_PORT=65535 run 2 train "${mine[@]}" --rdzv-timeout 1 -o none
tells 'MASTER_PORT is 65535: ranks meet at the port after it'
RANK=4294967297 WORLD_SIZE=2 run 2 train "${mine[@]}" --rdzv-timeout 1 --rdzv-port $PORT -o none
tells 'the environment says rank 4294967297 of 2 ranks'

# ---- a picture that only one rank meets ends all, told by rank 0, and what was learnt is kept ----
digits_folder torn 8
head -c 60 torn/train/5/$(ls torn/train/5 | head -n 1) >cut.png
mv cut.png torn/train/5/$(ls torn/train/5 | head -n 1)
run 3 train "${tiny[@]}" --data-dir torn --on-corrupt fail -b 8 --epochs 3 --ranks 2 --save-every 1000 -o torn_run
tells 'torn/train/5/'
checks=$((checks + 1))
step=$(sed -n 's/.*"step": *\([0-9]*\).*/\1/p' torn_run/last.json 2>/dev/null | head -n 1)
[ "$(grep -c '^train' torn_run/metrics.csv)" = "${step:-0}" ] || fail "saved at step '$step'"
run 0 train "${tiny[@]}" --data-dir torn --set data.max_corrupt=0.5 -b 8 --epochs 1 --ranks 2 -o torn_run
run 0 train "${tiny[@]}" --data-dir torn --set data.max_corrupt=0.5 -b 8 --epochs 1 --ranks 4 -o torn_run
equal 'losses with a stand-in' "$(cut -d, -f4 torn_run-3/metrics.csv | cut -c1-6)" "$(cut -d, -f4 torn_run-2/metrics.csv | cut -c1-6)"

# ---- the environment of torchrun: two processes that somebody else started ----
RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$((PORT + 10)) \
    "$TTV" train "${mine[@]}" "${drawn[@]}" -o torchrun >other.out 2>other.err &
pid=$!
RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$((PORT + 10)) \
    run 0 train "${mine[@]}" "${drawn[@]}" -o torchrun
wait $pid
equal 'exit code of rank 1' $? 0
same_file 'started by another launcher' of2/last.safetensors torchrun/last.safetensors
checks=$((checks + 1))
[ ! -s other.out ] && [ ! -s other.err ] || fail "rank 1 spoke: $(cat other.out other.err)"

# Slurm and Open MPI call them otherwise; a batch script of Slurm is one process
slurm=(SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=localhost SLURM_JOB_ID=5 MASTER_PORT=$((PORT + 20)))
mpi=(OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_PORT=$((PORT + 30)))
scored() { # VARIABLES... : runs the evaluation of one rank in them
    env "$@" "$TTV" eval --checkpoint of1 -b 7 --json 2>err
}
for way in slurm mpi; do
    declare -n variables=$way
    names='SLURM_PROCID SLURM_LOCALID'
    [ $way = slurm ] || names='OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK'
    scored "${variables[@]}" $(printf '%s=1 ' $names) >other.out &
    pid=$!
    scored "${variables[@]}" $(printf '%s=0 ' $names) >out
    wait $pid
    equal "exit code of rank 1 ($way)" $? 0
    sed 's/"seconds.*"precision"/"precision"/' out >score
    same_file "scores ($way)" score1 score
done
SLURM_PROCID=0 SLURM_NTASKS=4 run 0 eval --checkpoint of1 -b 7

# ---- losses and stops ----
started() { # FOLDER: waits for its first rows
    for _ in $(seq 400); do
        [ -f "$1/metrics.csv" ] && [ "$(wc -l <"$1/metrics.csv")" -gt 4 ] && return
        sleep 0.05
    done
}

long() { # FOLDER FLAGS...: starts a long run of three ranks; $pid is the launcher, $ranks its children
    local folder=$1
    shift
    "$TTV" train "${mine[@]}" --epochs 100000 --ranks 3 -o "$folder" "$@" >out 2>err &
    pid=$!
    started "$folder"
    mapfile -t ranks < <(cut -d' ' -f1-5 /proc/[0-9]*/stat 2>/dev/null | awk -v p=$pid '$4 == p {print $1}' | sort -n)
    equal "children of $folder" ${#ranks[@]} 3
}

ended() { # CODE SECONDS: the launcher ends so, in time, and leaves nobody
    local start=$SECONDS got left
    wait $pid
    got=$?
    err=$(cat err)
    command_line="ttv train ... ($folder_name)"
    equal 'exit code' $got "$1"
    checks=$((checks + 1))
    [ $((SECONDS - start)) -le "$2" ] || fail "took $((SECONDS - start)) s"
    left=0
    for r in "${ranks[@]}"; do kill -0 "$r" 2>/dev/null && left=$((left + 1)); done
    equal 'ranks left behind' $left 0
}

for victim in 0 2; do
    folder_name=killed$victim
    long $folder_name
    kill -KILL "${ranks[$victim]}"
    ended 75 8
    tells "lost rank $victim"
done
folder_name=halted
long halted --dist-timeout 2
kill -STOP "${ranks[1]}"
ended 75 20
tells 'lost rank 1'
folder_name=stopped
long stopped
kill -TERM $pid
ended 143 10
tells 'stopped and saved at step'
folder_name=one
long one
kill -USR1 "${ranks[2]}"
ended 75 10
tells 'stopped and saved at step'
step=$(sed -n 's/.*"step": *\([0-9]*\).*/\1/p' stopped/last.json | head -n 1)
run 0 train --resume stopped --ranks 3 --max-steps $((step + 5)) --no-progress
run 0 train "${mine[@]}" --epochs 100000 --ranks 3 --max-steps $((step + 5)) -o unstopped
same_file 'continued after SIGTERM' stopped/last.safetensors unstopped/last.safetensors
folder_name=orphans
long orphans
kill -KILL $pid
wait $pid 2>/dev/null
for _ in $(seq 200); do
    left=0
    for r in "${ranks[@]}"; do kill -0 "$r" 2>/dev/null && left=$((left + 1)); done
    [ $left -eq 0 ] && break
    sleep 0.05
done
equal 'ranks that outlive their launcher' $left 0

finish
