#!/bin/bash
# How ranks are started: by this program, by torchrun, mpirun and srun, on one host and on two; and what is refused.
. "$(dirname "$0")/ranks_lib.sh"

run 0 train "${mine[@]}" "${drawn[@]}" --ranks 2 -o of2
run 0 eval --checkpoint of2 -b 7 --json
sed 's/"seconds.*"precision"/"precision"/' out >score1

# ---- what cannot be ----
run 2 train "${mine[@]}" --ranks 5 -o none
tells '--batch-size 24, which all 5 ranks share, has to be a multiple of 5'
run 2 train "${mine[@]}" --mixup 1 -b 6 --ranks 2 -o none
tells 'a multiple of 4 (mixup and cutmix'
equal 'messages of two ranks' "$(grep -c error err)" 1
run 2 train "${mine[@]}" --device cuda:0,1 --ranks 3 -o none
tells 'lists 2 cards'
run 2 train "${mine[@]}" --device cuda:1 --ranks 2 -o none
tells '--device cuda:1 is one card'
CUDA_VISIBLE_DEVICES=3 run 5 train "${mine[@]}" --device cuda --ranks 2 -o none
tells 'needs 2 cards, but CUDA_VISIBLE_DEVICES has 1: take fewer ranks, or name the card of each'
CUDA_VISIBLE_DEVICES= run 5 eval --checkpoint of2 --device cuda --ranks 2
tells 'CUDA_VISIBLE_DEVICES has 0'
run 3 train --data-dir "$DIGITS" --set data.train_split=gone --ranks 2 -o none
run 2 classify --checkpoint of2 --device cuda:0,1 "$DIGITS"
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
tells 'RANK is 4294967297 and WORLD_SIZE is 2 in the environment'

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

# what is no rank is told, and nothing runs alone by mistake
wrong() { # TEXT VARIABLES...
    local text=$1
    shift
    command_line="$* ttv train"
    checks=$((checks + 1))
    env "$@" "$TTV" train "${mine[@]}" --rdzv-timeout 1 --rdzv-port $PORT -o none >out 2>err
    local got=$?
    err=$(cat err)
    [ $got -eq 2 ] || fail "exit code $got instead of 2"
    tells "$text"
}
wrong "RANK is 'zero' in the environment: a number is expected" RANK=zero WORLD_SIZE=2
wrong "RANK is '' in the environment" RANK= WORLD_SIZE=2
wrong "WORLD_SIZE is '2x' in the environment" RANK=0 WORLD_SIZE=2x
wrong "RANK is '-1' in the environment" RANK=-1 WORLD_SIZE=2
wrong 'RANK is 2 and WORLD_SIZE is 2 in the environment: it counts from 0' RANK=2 WORLD_SIZE=2
wrong 'RANK is 0 and WORLD_SIZE is 0' RANK=0 WORLD_SIZE=0
wrong 'WORLD_SIZE is 2000 in the environment: 1024 ranks are possible' RANK=0 WORLD_SIZE=2000
wrong "LOCAL_RANK is 'x'" RANK=0 WORLD_SIZE=2 LOCAL_RANK=x
wrong 'LOCAL_RANK is 1 and LOCAL_WORLD_SIZE is 1' RANK=0 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=1
wrong 'LOCAL_WORLD_SIZE is 4 in the environment, more than WORLD_SIZE' RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4
wrong 'RANK is set in the environment (1), but WORLD_SIZE is not' RANK=1
wrong 'WORLD_SIZE is set in the environment (2), but RANK is not' WORLD_SIZE=2
wrong 'LOCAL_RANK is set in the environment (0), but RANK is not' LOCAL_RANK=0
wrong "OMPI_COMM_WORLD_RANK is 'a'" OMPI_COMM_WORLD_RANK=a OMPI_COMM_WORLD_SIZE=2
wrong "SLURM_PROCID is ''" SLURM_PROCID= SLURM_STEP_NUM_TASKS=2
MASTER_PORT=http RANK=0 WORLD_SIZE=2 run 2 train "${mine[@]}" -o none
tells "MASTER_PORT is 'http' in the environment"
checks=$((checks + 1))
[ ! -e none ] || fail 'a run that could not begin left a folder'

# ---- two hosts: two process groups of two ranks each, here both on this one ----
host() { # NODE FLAGS...
    local node=$1
    shift
    setsid "$TTV" train "${mine[@]}" "${drawn[@]}" --ranks 2 --nodes 2 --node-rank $node "$@" >host$node.out 2>host$node.err
}
run 0 train "${mine[@]}" "${drawn[@]}" --ranks 4 -o of4
host 1 --rdzv localhost --rdzv-port $((PORT + 40)) -o nodes &
pid=$!
command_line='two hosts of two ranks'
host 0 --rdzv tcp://localhost:$((PORT + 40)) -o nodes
equal 'exit code of host 0' $? 0
wait $pid
equal 'exit code of host 1' $? 0
same_file 'two hosts of two ranks' of4/last.safetensors nodes/last.safetensors
checks=$((checks + 1))
[ ! -s host1.out ] && [ ! -s host1.err ] || fail "host 1 spoke: $(cat host1.out host1.err)"
host 1 --rdzv localhost:$((PORT + 50)) -o nodes --epochs 100000 & # a loss on one host ends the other's ranks
pid=$!
host 0 --rdzv localhost:$((PORT + 50)) -o nodes --epochs 100000 &
other=$!
for _ in $(seq 400); do
    [ -f nodes-2/metrics.csv ] && [ "$(wc -l <nodes-2/metrics.csv)" -gt 4 ] && break
    sleep 0.05
done
victim=$(cut -d' ' -f1-4 /proc/[0-9]*/stat 2>/dev/null | awk -v p="$(pgrep -P $pid)" '$4 == p {print $1}' | sort -n | tail -n 1)
kill -KILL "$victim"
wait $pid
equal 'exit code of the host with the lost rank' $? 75
wait $other
equal 'exit code of the other host' $? 75
err=$(cat host0.err)
tells 'lost rank 3 (pid'
# torchrun's variables on two hosts, a process for each rank
for rank in 3 2 1; do
    env RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$((rank % 2)) LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((PORT + 60)) \
        setsid "$TTV" eval --checkpoint of2 -b 7 >rank$rank.out 2>&1 &
done
RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((PORT + 60)) run 0 eval --checkpoint of2 -b 7 --json
sed 's/"seconds.*"precision"/"precision"/' out >score
same_file 'scores of two hosts' score1 score
wait
run 2 train "${mine[@]}" --nodes 2 --ranks 2 -o none
tells '--nodes 2 needs --rdzv HOST:PORT'
run 2 train "${mine[@]}" --nodes 2 --node-rank 2 --rdzv localhost -o none
tells '--node-rank 2 of --nodes 2: it counts from 0'
run 2 train "${mine[@]}" --rdzv localhost -o none
tells '--rdzv and --node-rank are for several hosts'
run 2 train "${mine[@]}" --nodes 2 --rdzv localhost:http -o none
tells '--rdzv localhost:http: the port has to be 1 to 65535'
run 2 train "${mine[@]}" --nodes 2 --rdzv :5 -o none
tells 'HOST or HOST:PORT is expected'
run 75 train "${mine[@]}" --nodes 2 --ranks 1 --rdzv "[::1]:$((PORT + 70))" --rdzv-timeout 1 -o none
tells 'after 1 s these of 2 ranks had not come: 1'

# Slurm and Open MPI call them otherwise; a batch script of Slurm is one process
slurm=(SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST="loc[al-az,b]ho[st],gpu2" SLURM_JOB_ID=5 MASTER_PORT=$((PORT + 20)))
mpi=(OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_PORT=$((PORT + 30)))
scored() { # VARIABLES... : runs the evaluation of one rank in them
    env "$@" "$TTV" eval --checkpoint of2 -b 7 --json 2>err
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
SLURM_PROCID=0 SLURM_NTASKS=4 run 0 eval --checkpoint of2 -b 7

finish
