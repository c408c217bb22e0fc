#!/bin/bash
# ttv nvs train: learning, the run folder, bit-exact resume, what is refused.
. "$(dirname "$0")/nvs_lib.sh"

same_weights() { # A B WHAT
    checks=$((checks + 1))
    cmp -s "$1/last.safetensors" "$2/last.safetensors" || fail "$3: the weights differ"
}
mean_loss() { # FOLDER FIRST LAST: of train rows, in millionths
    awk -F, -v a="$2" -v b="$3" '$1 == "train" && $2 >= a && $2 <= b {s += $4; n++}
        END {printf "%d", 1e6 * s / n}' "$1/metrics.csv"
}

# ---- a whole run ----
run 0 nvs train "${tiny[@]}" --steps 200 --val-interval 100 -o straight --json
json_ok out
tells '4 scenes to draw from'
tells 'validation: 2 of 2 scenes'
tells 'steps are skipped when their norm is above 4 or not finite'
json_ok straight/metrics.jsonl lines
checks=$((checks + 1))
[ "$(mean_loss straight 181 200)" -lt $(($(mean_loss straight 1 20) * 3 / 4)) ] ||
    fail "the loss did not fall by a quarter: $(mean_loss straight 1 20) to $(mean_loss straight 181 200)"
equal 'first learning rate' "$(grep '^train,1,' straight/metrics.csv | cut -d, -f5)" 0
equal 'pictures' "$(ls straight/pictures | tr '\n' ' ')" 'step-00000100.png step-00000200.png '
equal 'PNG' "$(head -c 4 straight/pictures/step-00000100.png | tail -c 3)" PNG
grep -q '"val_psnr":' straight/metrics.jsonl || fail 'no val_psnr in metrics.jsonl'
for file in config.ini metrics.csv log.txt last.json best.json last.safetensors best.safetensors; do
    checks=$((checks + 1))
    [ -e "straight/$file" ] || fail "the run folder lacks $file"
done
if command -v python3 >/dev/null; then
    equal 'step' "$(json_get out 'd["step"]')" 200
    equal 'a PSNR' "$(json_get out '10 < d["psnr"] < 60')" True
fi
for text in '"ttv.model":"lact_nvs"' 'view_width = 32' 'layers = 2'; do
    checks=$((checks + 1))
    head -c 20000 straight/last.safetensors | grep -aqF "$text" || fail "the weights' metadata lacks $text"
done

# ---- resume: the same bits, whatever the number of workers ----
run 0 nvs train "${tiny[@]}" --steps 40 -o whole
run 0 nvs train "${tiny[@]}" --steps 40 --max-steps 7 -o parts
run 0 nvs train --resume parts --workers 1 --max-steps 23 --no-progress
tells 'continuing parts at step 7'
tells 'changed since the run began: scenes.workers was 2, is now 1'
run 0 nvs train --resume last -o parts --no-progress
same_weights whole parts 'stopped at 7 and 23 of 40'
equal 'rows' "$(grep -c '^train,' parts/metrics.csv)" 40
equal 'doubled rows' "$(grep '^train,' parts/metrics.csv | cut -d, -f2 | sort -n | uniq -d | wc -l)" 0
equal 'last loss' "$(grep '^train,40,' parts/metrics.csv | cut -d, -f4)" "$(grep '^train,40,' whole/metrics.csv | cut -d, -f4)"
run 0 nvs train "${tiny[@]}" --steps 40 -o whole --val-split none # taken: another folder
says 'whole-2'
tells 'no validation'
equal 'last loss without validation' "$(grep '^train,40,' whole-2/metrics.csv | cut -d, -f4)" \
    "$(grep '^train,40,' whole/metrics.csv | cut -d, -f4)"

# bf16, accumulation and recomputation resume to the same bits, too
more=(--precision bf16 --batch-size 2 --grad-accum-steps 2 --set nvs_model.recompute=true)
run 0 nvs train "${tiny[@]}" "${more[@]}" --steps 12 -o whole16
run 0 nvs train "${tiny[@]}" "${more[@]}" --steps 12 --max-steps 5 -o parts16
run 0 nvs train --resume auto -o parts16 --no-progress
same_weights whole16 parts16 'bf16 with accumulation'

# ---- stopped by a signal: saved, and it goes on to the same bits ----
command_line='ttv nvs train ... then SIGTERM'
checks=$((checks + 1))
"$TTV" nvs train "${tiny[@]}" --steps 100000 -o stopped >out 2>err &
pid=$!
for _ in $(seq 300); do
    grep -qs '^train,3,' stopped/metrics.csv && break
    sleep 0.05
done
kill -TERM $pid
wait $pid
got=$?
out=$(cat out) err=$(cat err)
[ "$got" -eq 143 ] || fail "exit code $got instead of 143"
tells 'continue with: ttv nvs train --resume'
step=$(sed -n 's/.*"step": *\([0-9]*\).*/\1/p' stopped/last.json | head -n 1)
run 0 nvs train --resume stopped --max-steps $((step + 5)) --no-progress
run 0 nvs train "${tiny[@]}" --steps 100000 --max-steps $((step + 5)) -o unstopped
same_weights stopped unstopped 'continued after SIGTERM'

# ---- dry run, configuration file ----
run 0 nvs train "${tiny[@]}" --steps 10 --dry-run -o nothing
tells 'dry run'
checks=$((checks + 1))
[ ! -e nothing ] || fail 'a dry run made a folder'
run 0 nvs train -c whole/config.ini --max-steps 2 -o from_file --no-progress
says 'trained to step 2'

# ---- a broken scene: left out, counted, told ----
cp -r rooms broken
victim=$(ls broken/test/*.txt | head -n 1)
head -c 200 "$(ls "${victim%.txt}"/*.png | head -n 1)" >cut.png
for picture in "${victim%.txt}"/*.png; do cp cut.png "$picture"; done
run 0 nvs train "${tiny[@]}" --data-dir broken --steps 10 -o with_broken
tells 'is left out'
says 'on 1 scenes'
grep -q '"failed":1' with_broken/metrics.jsonl || fail 'the failed scene is not counted'

# ---- what is refused ----
run 2 nvs train
tells '--data-dir is needed'
run 2 nvs train "${tiny[@]}" --steps 5
tells '--warmup-steps 5 must be less than --steps 5'
run 2 nvs train "${tiny[@]}" --view-height 30
tells 'not a multiple of patch'
run 2 nvs train "${tiny[@]}" --nvs-model l12_d768_ttt
tells 'did you mean'
run 2 nvs train "${tiny[@]}" --gap-min 12 --gap-max 11
run 2 nvs train "${tiny[@]}" --inputs 40 --targets 40
tells 'at most 64 views'
run 3 nvs train "${tiny[@]}" --gap-min 12 --gap-max 30
run 3 nvs train "${tiny[@]}" --train-split nowhere
run 3 nvs train "${tiny[@]}" --val-split nowhere
tells 'none: without'
run 2 nvs train stray
run 2 nvs train --resume nowhere
tells 'no checkpoint'
run 2 nvs train --resume parts --seed 9 --no-progress
tells 'seed'
run 3 nvs train --resume parts --set nvs_model.width=64 --no-progress
checks=$((checks + 1))
[ ! -e runs ] || fail 'a refused run left a folder'
run 0 nvs train --help
says 'gap-clamp'

finish
