#!/bin/bash
# ttv nvs train on several ranks: the run of one, the same bits every time, resume.
. "$(dirname "$0")/nvs_lib.sh"

few=("${tiny[@]}" --steps 40 --model-ema)
for ranks in 1 2 4; do
    run 0 nvs train "${few[@]}" -o of$ranks --ranks $ranks
done
tells 'ranks: 4, 1 samples of each micro-step on every one'
for ranks in 2 4; do
    equal 'rows' "$(cut -d, -f1-3 of$ranks/metrics.csv)" "$(cut -d, -f1-3 of1/metrics.csv)"
    for n in 4 10; do # loss; PSNR
        cut -d, -f1,2,$n of1/metrics.csv | grep -v ',$' >a
        cut -d, -f1,2,$n of$ranks/metrics.csv | grep -v ',$' >b
        checks=$((checks + 1))
        paste -d, a b | awk -F, 'NR > 1 {d = $3 - $6; if (d < 0) d = -d; if (d > 1e-3 * $3) bad = 1; n++}
            END {exit bad || n < 2}' || fail "column $n of $ranks ranks: $(paste a b | tail -n 2)"
    done
done
run 0 nvs train "${few[@]}" -o parts --ranks 2 --max-steps 13
run 0 nvs train --resume parts --ranks 2 --no-progress
same_weights of2 parts 'two ranks, stopped at 13 of 40'
run 2 nvs train "${few[@]}" -o none --ranks 3
tells 'which all 3 ranks share, has to be a multiple of 3'
checks=$((checks + 1))
[ ! -e none ] || fail 'a run that could not begin left a folder'
finish
