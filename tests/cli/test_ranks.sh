#!/bin/bash
# Several ranks on the CPU: the run of one, the same bits every time, the same scores.
. "$(dirname "$0")/ranks_lib.sh"

# values of column N of the rows of one kind
column() { awk -F, -v kind="$2" -v n="$3" '$1 == kind {print $n}' "$1/metrics.csv"; }

close_numbers() { # WHAT FILE FILE RELATIVE
    checks=$((checks + 1))
    paste "$2" "$3" | awk -v limit="$4" '{d = $1 - $2; if (d < 0) d = -d; m = $1 < 0 ? -$1 : $1
        if (d > limit * (m > 1e-6 ? m : 1e-6)) bad = 1; n++} END {exit bad || n == 0}' ||
        fail "$1: $(paste "$2" "$3" | head -n 3 | tr '\n' ' ')"
}


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

finish
