#!/bin/bash
# Training end to end on the digits: run folder, metrics, limits, mistakes found before step 1.
. "$(dirname "$0")/train_lib.sh"

# ---- a run and its folder ----
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 -o runs/a
says 'top-1'
says 'runs/a'
tells 'parameters'
tells 'memory of a step'
for file in config.ini metrics.jsonl metrics.csv log.txt last.json best.json last.safetensors; do
    checks=$((checks + 1))
    [ -f "runs/a/$file" ] || fail "runs/a/$file is missing"
done
checks=$((checks + 1))
[ ! -e runs/a/lock ] || fail 'the lock stays behind'
json_ok runs/a/metrics.jsonl lines
equal 'fields of a CSV row' "$(awk -F, 'NF != 15' runs/a/metrics.csv | wc -l)" 0
equal 'train rows' "$(grep -c '^train,' runs/a/metrics.csv)" 20
checks=$((checks + 1))
grep -q 'batch_size = 32 .*batch-size' runs/a/config.ini || fail 'config.ini lacks the origin of batch_size'
# the loss falls
first=$(awk -F, '$1 == "train" && $2 == 1 {print $4}' runs/a/metrics.csv)
last=$(awk -F, '$1 == "train" && $2 == 20 {print $4}' runs/a/metrics.csv)
checks=$((checks + 1))
awk "BEGIN {exit !($last < $first)}" || fail "the loss did not fall: $first -> $last"

# ---- never overwritten; --json; --quiet ----
run 0 train "${tiny[@]}" "${small_data[@]}" --max-steps 1 --json -q -o runs/a
quiet_err
json_ok out
says 'runs/a-2'
run 2 train "${tiny[@]}" "${small_data[@]}" --max-steps 1 -o runs/a --exist-ok
tells 'holds a checkpoint'
mkdir runs/b
echo note >runs/b/note.txt
run 0 train "${tiny[@]}" "${small_data[@]}" --max-steps 1 -o runs/b --exist-ok
checks=$((checks + 1))
[ -f runs/b/last.json ] || fail '--exist-ok did not use the folder'
echo file >runs/file
run 4 train "${tiny[@]}" "${small_data[@]}" --max-steps 1 -o runs/file
tells 'no folder'

# ---- the same seed gives the same bytes ----
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 --workers 1 -o 'runs/with space'
checks=$((checks + 1))
cmp -s runs/a/last.safetensors 'runs/with space/last.safetensors' || fail 'two equal runs differ'
run 0 train "${tiny[@]}" "${small_data[@]}" --max-steps 1 --seed 5 -o runs/seed
checks=$((checks + 1))
cmp -s runs/a-2/last.safetensors runs/seed/last.safetensors && fail 'the seed changes nothing'

# ---- mixing, erasing, flips and policies: each changes the run, --no-aug turns all of them off ----
run 0 train "${tiny[@]}" "${small_data[@]}" --max-steps 2 --hflip 0 --no-aug -o runs/plain
for flag in '--mixup 0.8' '--cutmix 1' '--reprob 1' '--hflip 1' '--aa rand-m9-mstd0.5-inc1' '--aa trivial'; do
    folder=runs/${flag%% *}
    # shellcheck disable=SC2086 # a flag and its value
    run 0 train "${tiny[@]}" "${small_data[@]}" --max-steps 2 --hflip 0 --no-aug $flag -o "$folder-off"
    checks=$((checks + 1))
    cmp -s runs/plain/last.safetensors "$folder-off/last.safetensors" || fail "--no-aug leaves $flag on"
done
run 0 train "${tiny[@]}" "${small_data[@]}" --max-steps 2 --hflip 0 -o runs/unmixed
for flag in '--mixup 0.8' '--cutmix 1' '--reprob 1' '--hflip 1' '--aa rand-m9-mstd0.5-inc1' '--aa trivial'; do
    folder=runs/${flag%% *}
    # shellcheck disable=SC2086
    run 0 train "${tiny[@]}" "${small_data[@]}" --max-steps 2 --hflip 0 $flag -o "$folder-on"
    checks=$((checks + 1))
    cmp -s runs/unmixed/last.safetensors "$folder-on/last.safetensors" && fail "$flag changes nothing"
done
run 2 train "${tiny[@]}" "${small_data[@]}" --mixup-prob 1.5 -o runs/x
tells 'mixup-prob'
run 2 train "${tiny[@]}" "${small_data[@]}" --aa randaugment -o runs/x
tells "'randaugment'"
tells 'there are none, trivial and rand-mM'
# mixing that ends: from epoch 1 on the run is the one without mixing after it
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 --mixup 0.8 -o runs/mixed
for off in 1 2; do
    run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 --mixup 0.8 --mixup-off-epoch $off -o runs/off$off
done
losses() { awk -F, '$1 == "train" {print $2 "," $4}' "$1/metrics.csv"; }
equal 'first epoch, mixed' "$(losses runs/off1 | head -n 10)" "$(losses runs/mixed | head -n 10)"
checks=$((checks + 1))
[ "$(losses runs/off1 | tail -n 10)" != "$(losses runs/mixed | tail -n 10)" ] || fail '--mixup-off-epoch changes nothing'
equal 'mixed to the end' "$(losses runs/off2)" "$(losses runs/mixed)"

# ---- paths in a configuration file are those of the folder where ttv runs ----
run 4 train -c "$SOURCE/configs/digits.ini" --data-dir "$DIGITS" --dry-run
tells "data.class_names, relative to the current folder: cannot open 'configs/digits_classes.tsv'"
run 4 train -c "$SOURCE/configs/digits.ini" --data-dir "$DIGITS" --set data.class_names= --class-map nowhere.txt --dry-run
tells "data.class_map: cannot open 'nowhere.txt'"

# ---- a root that is something else ----
run 3 train "${tiny[@]}" --data-dir "$SOURCE/data/photos" --dry-run
tells 'coffee.png, flower.jpg, rocket.jpg (pictures are expected in a folder for each class; where'
run 0 data synth-scenes rooms --scenes 2 --frames 20 --size 32x32 --samples 1
run 0 train "${tiny[@]}" --data-dir rooms --val-split none --dry-run
tells "rooms holds posed scenes, which 'ttv nvs train' is for: here each of them is a class"

mkdir -p single/train/3
cp "$(find . -name '*.png' -path '*/train/*' | head -n 1)" single/train/3/one.png
run 0 train "${tiny[@]}" --data-dir single --val-split none --batch-size 1 --dry-run
tells "single has one class only, '3': there is nothing to tell apart"

# ---- dry run ----
run 0 train "${tiny[@]}" "${small_data[@]}" --dry-run -o runs/dry
tells 'nothing was written'
tells 'memory: weights'
tells 'the largest batch that fits is'
checks=$((checks + 1))
[ ! -e runs/dry ] || fail 'the dry run wrote'
run 0 train "${tiny[@]}" "${small_data[@]}" --dry-run --json -q -o runs/dry
quiet_err
json_ok out
if command -v python3 >/dev/null; then
    equal 'plan' "$(json_get out 'd["dry_run"], d["training_images"], d["steps_per_epoch"], d["classes"], d["memory"]["weights"] > 0')" \
        '(True, 320, 10, 10, True)'
fi

# ---- patience: weights that stand still are never better than at the first validation ----
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 9 --lr 1e-30 --min-lr 0 --patience 2 -o runs/patient
equal 'validations' "$(grep -c '^validate,' runs/patient/metrics.csv)" 3
grep -q '"reason":"patience"' runs/patient/metrics.jsonl || fail 'the end does not say why'
run 2 train "${tiny[@]}" "${small_data[@]}" --patience 2 --val-split none -o runs/x
tells '--patience needs validations'
run 2 train "${tiny[@]}" "${small_data[@]}" --patience 2 --val-interval 0 -o runs/x

# ---- overfitting one batch ----
run 0 train "${tiny[@]}" "${small_data[@]}" --overfit-batch --no-aug --smoothing 0 --epochs 12 --lr 5e-3 \
    --val-split none -o runs/overfit
last=$(awk -F, '$1 == "train" {loss = $4} END {print loss}' runs/overfit/metrics.csv)
checks=$((checks + 1))
awk "BEGIN {exit !($last < 0.1)}" || fail "one batch is not learnt: loss $last"

# ---- accumulation, bf16, starting weights, a share of the data ----
run 0 train "${tiny[@]}" "${small_data[@]}" --batch-size 16 --grad-accum-steps 2 --max-steps 2 -o runs/accum
run 0 train "${tiny[@]}" "${small_data[@]}" --precision bf16 --max-steps 2 -o runs/bf16
run 0 train "${tiny[@]}" "${small_data[@]}" --initial-checkpoint runs/a --img-size 32 --mixer q_is_k --max-steps 1 -o runs/larger
tells 'was trained on pictures of 16x16 pixels, it runs on 32x32'
tells 'was trained with model.mixer = base, it runs with q_is_k'
run 0 train "${tiny[@]}" "${small_data[@]}" --initial-checkpoint runs/a --max-steps 1 -o runs/from
case $err in *'was trained'*) fail 'the same model is told to be another' ;; esac
first=$(awk -F, '$1 == "train" && $2 == 1 {print $4}' runs/from/metrics.csv)
scratch=$(awk -F, '$1 == "train" && $2 == 1 {print $4}' runs/a/metrics.csv)
checks=$((checks + 1))
awk "BEGIN {exit !($first < $scratch)}" || fail 'the initial checkpoint was not used'
run 0 train "${tiny[@]}" "${small_data[@]}" --fraction 0.5 --epochs 1 -o runs/half
equal 'steps of half the data' "$(grep -c '^train,' runs/half/metrics.csv)" 5

# ---- mistakes, all before step 1 and without a run folder ----
none() {
    checks=$((checks + 1))
    [ ! -e runs/x ] || fail 'a run folder was left behind'
}
run 2 train "${tiny[@]}" -o runs/x
tells '--data-dir'
run 4 train "${tiny[@]}" --data-dir missing -o runs/x
tells 'missing'
run 2 train "${tiny[@]}" "${small_data[@]}" --epochs 2 --warmup-epochs 3 -o runs/x
tells 'warmup'
run 3 train "${tiny[@]}" "${small_data[@]}" --batch-size 4096 -o runs/x
tells 'less than one step'
run 3 train "${tiny[@]}" "${small_data[@]}" --num-classes 7 -o runs/x
tells '10 classes'
run 2 train "${tiny[@]}" "${small_data[@]}" --img-size 17 -o runs/x
tells 'patch'
run 2 train "${tiny[@]}" "${small_data[@]}" --model vittt_huge -o runs/x
tells 'vittt_huge'
run 2 train "${tiny[@]}" "${small_data[@]}" --device tpu -o runs/x
tells "'tpu'"
run 2 train "${tiny[@]}" "${small_data[@]}" --resume last -o runs/x
tells 'no checkpoint'
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n' >pointer.safetensors
run 3 train "${tiny[@]}" "${small_data[@]}" --initial-checkpoint pointer.safetensors -o runs/x
tells 'LFS'
run 3 train "${tiny[@]}" "${small_data[@]}" --width 48 --initial-checkpoint runs/a -o runs/x
tells 'shape'
none

# ---- traps in the data ----
digits_folder set 8
set_flags=(--data-dir set --batch-size 16 --epochs 1)
mv set/val set/hidden
run 3 train "${tiny[@]}" "${set_flags[@]}" -o runs/x
tells 'val'
mv set/hidden set/val
mv set/val/3 set/val/three
run 3 train "${tiny[@]}" "${set_flags[@]}" -o runs/x
tells 'three'
mv set/val/three set/val/3
none
# a damaged picture is left out, counted and named
head -c 60 set/train/4/"$(ls set/train/4 | head -n 1)" >cut.png
cp cut.png set/train/4/"$(ls set/train/4 | head -n 1)"
cp cut.png set/val/4/"$(ls set/val/4 | head -n 1)"
run 0 train "${tiny[@]}" "${set_flags[@]}" --set data.max_corrupt=0.5 -o runs/corrupt
tells 'could not be decoded'
tells 'set/val/4/'
json_get runs/corrupt/metrics.jsonl 'd' >/dev/null 2>&1
checks=$((checks + 1))
grep -q '"left_out":1' runs/corrupt/metrics.jsonl || fail 'the damaged picture is not counted'
run 3 train "${tiny[@]}" "${set_flags[@]}" --on-corrupt fail -o runs/strict
tells 'set/'

# ---- a full disk keeps the last checkpoint ----
run 0 train "${tiny[@]}" "${small_data[@]}" --max-steps 1 -o runs/full
cp runs/full/last.safetensors before.safetensors
command_line='ttv train --resume runs/full (file size limit)'
checks=$((checks + 1))
(ulimit -f 100; "$TTV" train --resume runs/full --epochs 2 --no-progress >out 2>err)
got=$?
out=$(cat out) err=$(cat err)
[ "$got" -eq 4 ] || fail "exit code $got instead of 4"
run 0 inspect runs/full
checks=$((checks + 1))
cmp -s runs/full/last.safetensors before.safetensors || fail 'the old checkpoint was damaged'

finish
