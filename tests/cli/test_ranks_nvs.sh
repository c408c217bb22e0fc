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
# The validation of the same weights has the same bits, and leaves out the same scene: 5 scenes, one of them torn.
run 0 data synth-scenes torn --split test --scenes 5 --frames 12 --size 48x32 --seed 6 --samples 1
torn=$(ls torn/test/*.txt | sed -n 2p)
for picture in "${torn%.txt}"/*; do head -c 200 "$picture" >cut && cp cut "$picture"; done
run 0 nvs train "${few[@]}" -o base --val-split none --max-steps 3
for ranks in 1 2 4; do
    cp -r base val$ranks
    run 0 nvs train --resume val$ranks --val-split test --val-dir torn --val-scenes 4 --max-steps 3 --no-progress --ranks $ranks
    tells "scene $(basename "${torn%.txt}") is left out"
    equal "warnings of $ranks ranks" "$(grep -c 'left out' err)" 1
    equal "validation of $ranks ranks" "$(grep '"validate"' val$ranks/metrics.jsonl | sed 's/"seconds.*scenes/scenes/;s/"seconds.*//;s/"validate_seconds.*//')" \
        "$(grep '"validate"' val1/metrics.jsonl | sed 's/"seconds.*scenes/scenes/;s/"seconds.*//;s/"validate_seconds.*//')"
    checks=$((checks + 1))
    cmp -s val$ranks/pictures/step-00000003.png val1/pictures/step-00000003.png || fail "pictures of $ranks ranks"
done
run 0 nvs train "${few[@]}" -o parts --ranks 2 --max-steps 13
run 0 nvs train --resume parts --ranks 2 --no-progress
same_weights of2 parts 'two ranks, stopped at 13 of 40'
run 2 nvs train "${few[@]}" -o none --ranks 3
tells 'which all 3 ranks share, has to be a multiple of 3'
# scores, pictures and files of ttv nvs eval and render: the same bits for any number of ranks
eval=(nvs eval --checkpoint of1 --data-dir torn --gap-min 4 --gap-max 11 --targets 3)
for ranks in 1 2 3; do
    run 3 "${eval[@]}" --ranks $ranks --json --save-images kept$ranks --write-index index$ranks.json # one scene is torn
    cp out json$ranks
    equal "scores of $ranks ranks" "$out" "$(cat json1)"
    checks=$((checks + 1))
    diff -r kept1 kept$ranks >/dev/null && cmp -s index1.json index$ranks.json || fail "files of $ranks ranks"
    run 3 "${eval[@]}" --ranks $ranks --per-view
    cp out table$ranks
    equal "table of $ranks ranks" "$out" "$(cat table1)"
    tells "$(basename "${torn%.txt}"): failed"
done
says '4 evaluated, 0 null, 0 missing, 0 faulty, 1 failed'
run 4 "${eval[@]}" --ranks 2 --save-images index1.json/x
equal 'errors of two ranks' "$(grep -c error: err)" 1
render=(nvs render --checkpoint of1 --data-dir rooms --split test --input-views 0,9 --format apng,gif)
for ranks in 1 2 3; do
    run 0 "${render[@]}" --frames 7 -o path$ranks --ranks $ranks --save-scene room$ranks.safetensors
    run 0 "${render[@]}" --targets 3,5 -o targets$ranks --ranks $ranks --html
    checks=$((checks + 1))
    diff -r path1 path$ranks >/dev/null && diff -r targets1 targets$ranks >/dev/null &&
        cmp -s room1.safetensors room$ranks.safetensors || fail "what $ranks ranks rendered"
done
says 'views of scene'
run 0 nvs render --checkpoint of1 --load-scene room1.safetensors --frames 7 --format none -o loaded --ranks 2
checks=$((checks + 1))
cmp -s loaded/frame-00006.png path1/frame-00006.png || fail 'a saved scene on two ranks'
run 2 "${render[@]}" --frames 7 -o path1 --ranks 2
tells 'path1 is not empty'
equal 'errors of two ranks' "$(grep -c error: err)" 1
run 2 "${render[@]}" --device cuda:0,1 --ranks 3 -o none
run 4 nvs eval --checkpoint nowhere --data-dir rooms --ranks 2
checks=$((checks + 1))
[ ! -e none ] || fail 'a run that could not begin left a folder'
finish
