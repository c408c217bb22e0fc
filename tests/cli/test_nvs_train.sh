#!/bin/bash
# ttv nvs train: learning, the run folder, bit-exact resume, what is refused.
. "$(dirname "$0")/nvs_lib.sh"

# ---- a whole run ----
run 0 nvs train "${tiny[@]}" --steps 200 --val-interval 100 -o straight --json
json_ok out
tells '4 scenes to draw from (4 synthetic)'
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

# patience
run 0 nvs train "${tiny[@]}" --steps 40 --lr 1e-30 --val-interval 2 --patience 3 -o patient
equal 'validations' "$(grep -c '^validate,' patient/metrics.csv)" 4
run 2 nvs train "${tiny[@]}" --steps 40 --patience 3 --val-split none -o never
tells '--patience needs validations'

# checkpoints on the way, also when nobody asks for them: a run that is killed must not lose everything
run 0 nvs train "${tiny[@]}" --steps 12 --val-interval 5 --val-split none -o saved
equal 'saves' "$(grep -o '"kind":"save","step":[0-9]*' saved/metrics.jsonl | sed 's/.*://' | tr '\n' ' ')" '5 10 12 '
run 0 nvs train "${tiny[@]}" --steps 12 --dry-run --json -o never
json_ok out
if command -v python3 >/dev/null; then
    equal 'plan' "$(json_get out 'd["dry_run"], d["steps"], d["save_interval"], d["memory"]["largest_batch"] > 4')" \
        '(True, 12, 20, True)'
fi
equal 'nothing written' "$(ls -d never* 2>/dev/null)" ''

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

# ---- the validation: columns, baselines, a given index; averaged weights ----
equal 'columns' "$(head -n 1 straight/metrics.csv)" \
    'kind,step,epoch,loss,lr,grad_norm,samples_per_s,wait_share,step_ms,val_psnr,val_loss,ema_psnr,nearest_psnr,mean_psnr,seconds'
run 0 nvs eval --checkpoint straight --data-dir rooms --gap-min 4 --gap-max 11 --targets 3 --write-index index.json
run 0 nvs train "${tiny[@]}" --steps 30 --val-interval 0 --val-index index.json --model-ema --model-ema-decay 0.9 \
    --mirror 0.5 --synthetic-share 1 -o averaged --json
json_ok out
tells 'averaged weights'
if command -v python3 >/dev/null; then
    nearest=$(json_get out '"%.3f %.3f" % (d["nearest_psnr"], d["mean_psnr"])')
    raw=$(json_get out '"%.4f" % d["psnr"]') average=$(json_get out '"%.4f" % d["ema_psnr"]')
    best=$(json_get out '"%.4f" % max(d["psnr"], d["ema_psnr"])')
    for choice in raw ema auto; do
        run 0 nvs eval --checkpoint averaged --weights $choice --data-dir rooms --index index.json --json
        case $choice in raw) expected=$raw ;; ema) expected=$average ;; auto) expected=$best ;; esac
        equal "PSNR of --weights $choice" "$(json_get out '"%.4f" % d["model"]["psnr"]')" "$expected"
    done
    equal 'baselines' "$nearest" "$(json_get out '"%.3f %.3f" % (d["nearest"]["psnr"], d["mean"]["psnr"])')"
fi
run 0 nvs train "${tiny[@]}" --steps 30 --val-interval 0 --val-index index.json --model-ema --model-ema-decay 0.9 \
    --mirror 0.5 --synthetic-share 1 -o averaged2 --max-steps 11
run 0 nvs train --resume averaged2 --no-progress
same_weights averaged averaged2 'averaged, mirrored, resumed'
checks=$((checks + 1))
cmp -s averaged/checkpoints/*30.ema.safetensors averaged2/checkpoints/*30.ema.safetensors || fail 'the averages differ'
run 3 nvs train "${tiny[@]}" --steps 10 --synthetic-share 0.5
tells 'synthetic'
run 4 nvs train "${tiny[@]}" --steps 10 --val-index nowhere.json
run 2 nvs train "${tiny[@]}" --steps 10 --mirror 2

# ---- large gradients: skipped, counted, and enough of them end the run ----
run 0 nvs train "${tiny[@]}" --steps 30 --skip-norm 0.3 --val-split none -o choosy
skipped=$(grep -c '^skip,' choosy/metrics.csv)
equal 'skipped steps are those above' "$skipped" \
    "$(awk -F, '($1 == "train" || $1 == "skip") && $6 > 0.3 {s[$2]} END {print length(s)}' choosy/metrics.csv)"
[ "$skipped" -eq 0 ] || tells 'were skipped'
run 6 nvs train "${tiny[@]}" --steps 300 --skip-norm 1e-9 --val-split none -o stuck
tells 'too large in 100 steps in a row'

# ---- memory: planned, and refused before anything is taken ----
tells_plan() { tells 'the largest batch that fits is'; }
run 0 nvs train "${tiny[@]}" --steps 10 --dry-run
tells_plan
run 5 nvs train "${tiny[@]}" --steps 10 --batch-size 65536 --view-height 512 --view-width 512 -o huge
tells_plan
tells '(more with --recompute)'
checks=$((checks + 1))
[ ! -e huge ] || fail 'a refused batch left a folder'
run 0 nvs train "${tiny[@]}" --steps 10 --recompute --val-split none -o recomputed
run 0 nvs train "${tiny[@]}" --steps 10 --val-split none -o kept
equal 'blocks computed again' "$(grep '^train,10,' recomputed/metrics.csv | cut -d, -f4,6)" "$(grep '^train,10,' kept/metrics.csv | cut -d, -f4,6)"

# ---- initial weights: as they are, with the names that wrappers give, and those that do not fit ----
run 0 nvs train "${tiny[@]}" --steps 10 --lr 0 --val-split none --initial-checkpoint straight -o same
if command -v python3 >/dev/null; then
    python3 - straight/best.safetensors wrapped.safetensors <<'EOF'
import json, struct, sys
data = open(sys.argv[1], 'rb').read()
size = struct.unpack('<Q', data[:8])[0]
header = json.loads(data[8:8 + size])
header.pop('__metadata__')
text = json.dumps({'module._orig_mod.' + k: v for k, v in header.items()}).encode()
text += b' ' * (-len(text) % 8)
open(sys.argv[2], 'wb').write(struct.pack('<Q', len(text)) + text + data[8 + size:])
EOF
    run 0 nvs train "${tiny[@]}" --steps 10 --lr 0 --val-split none --initial-checkpoint wrapped.safetensors -o same2
    same_weights same same2 'names with module._orig_mod.'
    run 0 nvs eval --checkpoint wrapped.safetensors --view-height 32 --view-width 32 --data-dir rooms --index index.json
    table=$out
    run 0 nvs eval --checkpoint straight/best.safetensors --data-dir rooms --index index.json
    equal 'scores of wrapped weights' "$table" "$out"
fi
run 3 nvs train "${tiny[@]}" --steps 10 --initial-checkpoint straight --set nvs_model.width=64
tells 'do not fit the model'
run 4 nvs train "${tiny[@]}" --steps 10 --initial-checkpoint nowhere
run 3 nvs eval --checkpoint straight --data-dir rooms --set nvs_model.variant=V1
tells 'trained with variant base'
run 0 nvs eval --checkpoint straight --data-dir rooms --view-height 16
tells 'trained on views of 32x32'

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
cp -r parts parts_moved
sed -i "s/^root = .*/root = gone.tar/" parts_moved/config.ini
run 4 nvs train --resume parts_moved --no-progress
tells "the data of the training run (--data-dir names others): cannot open 'gone.tar'"
run 2 nvs train --resume parts --seed 9 --no-progress
tells 'seed'
run 3 nvs train --resume parts --set nvs_model.width=64 --no-progress
cp parts/config.ini as_it_was.ini
run 3 nvs train --resume parts --set nvs_model.variant=V2 --no-progress
tells 'parts was trained with nvs_model.variant = base, it cannot go on as V2'
run 2 nvs train --resume parts --steps 30 --no-progress
tells 'parts stands at step 40 already: --steps is 30'
run 2 nvs train --resume parts --steps 50 --max-steps 42 --batch-size 4 --warmup-steps 50 --no-progress
checks=$((checks + 1))
cmp -s parts/config.ini as_it_was.ini || fail 'a refused resume changes config.ini'

# ---- a run that has ended goes on when it is given more steps; weights of another model are told ----
run 0 nvs train --resume parts --steps 50 --max-steps 42 --no-progress
tells 'changed since the run began: nvs_train.steps was 40, is now 50'
tells 'continuing parts at step 40'
says 'trained to step 42'
run 0 nvs train "${tiny[@]}" --steps 40 --max-steps 6 --progress -o timed
tells 'step 6/6 '
tells ' ETA 0:00'
run 0 nvs train "${tiny[@]}" --view-width 48 --set nvs_model.variant=V2 --steps 6 --initial-checkpoint whole -o other
tells 'was trained with variant base, it goes on as V2'
tells 'was trained on views of 32x32 pixels'
checks=$((checks + 1))
[ ! -e runs ] || fail 'a refused run left a folder'
run 0 nvs train --help
says 'gap-clamp'

finish
