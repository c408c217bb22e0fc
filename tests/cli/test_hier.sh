#!/bin/bash
# The hierarchical ViTTT: learning, exact resume with statistics and averages, the other commands on its weights, what
# is refused.
. "$(dirname "$0")/train_lib.sh"

# 32x32 pixels: maps of 8x8, 4x4, 2x2 tokens and a single one
hier=(--model custom --stages 8x1x2,16x1x2,16x1x2,32x1x2 --img-size 32 --crop-pct 1 --batch-size 32 --warmup-epochs 0
    --lr 3e-3 --log-interval 1 --no-progress --workers 2)

# ---- learning, in two ways that must give the same bits ----
random=(--drop-path 0.2 --mixup 0.8 --cutmix 1 --mixup-prob 0.8 --reprob 0.5 --model-ema --model-ema-decay 0.9)
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 2 "${random[@]}" -o straight
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 2 "${random[@]}" --max-steps 7 -o parts
run 0 train --resume parts --workers 1 --no-progress
tells 'step 7'
same_weights straight parts 'stopped at 7 of 20'
checks=$((checks + 1))
cmp -s straight/checkpoints/step-00000020.ema.safetensors parts/checkpoints/step-00000020.ema.safetensors ||
    fail 'the averages differ after a resume'
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 2 "${random[@]}" --grad-checkpointing -o again
equal 'last loss of blocks computed twice' "$(grep '^train,20,' again/metrics.csv | cut -d, -f4)" \
    "$(grep '^train,20,' straight/metrics.csv | cut -d, -f4)"
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 8 --lr 1e-2 --smoothing 0 --no-aug -o learns
checks=$((checks + 1))
[ "$(mean_loss learns 71 80)" -lt $(($(mean_loss learns 1 10) / 2)) ] ||
    fail "the loss did not halve: $(mean_loss learns 1 10) to $(mean_loss learns 71 80)"
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 1 --precision bf16 --batch-size 16 --grad-accum-steps 2 -o narrow
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 1 --no-rope -o plain
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 1 --mixer v3_linear_paper --max-steps 1 -o variant


# ---- self-distillation: from the second epoch on, resumed before and behind its start ----
mesa=(--model-ema --model-ema-decay 0.9 --mesa 1.5 --mesa-start 0.5 --drop-path 0.2)
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 2 "${mesa[@]}" -o taught
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 2 "${mesa[@]}" --mesa 0 -o alone
loss_at() { grep "^train,$2," "$1/metrics.csv" | cut -d, -f4; }
equal 'last loss before the teacher' "$(loss_at taught 10)" "$(loss_at alone 10)"
checks=$((checks + 1))
awk "BEGIN {exit !($(loss_at taught 11) > 1.8 * $(loss_at alone 11))}" ||
    fail "the teacher's part is missing: $(loss_at taught 11), without it $(loss_at alone 11)"
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 2 "${mesa[@]}" --max-steps 8 -o school
run 0 train --resume school --max-steps 14 --no-progress
run 0 train --resume school --no-progress
same_weights taught school 'a teacher, stopped at 8 and 14'
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 2 "${mesa[@]}" --grad-checkpointing -o thrifty
equal 'last loss of blocks computed twice' "$(loss_at thrifty 20)" "$(loss_at taught 20)"
run 0 train "${hier[@]}" "${small_data[@]}" --epochs 1 "${mesa[@]}" --mesa-start 0 --precision bf16 -o narrow-taught
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 1 --model-ema --mesa 1 --mesa-start 0 -o plain-taught
# in the first step the average is the model itself, whose probabilities are nearly even: log(10) more
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 1 --max-steps 1 -o plain-alone
checks=$((checks + 1))
awk "BEGIN {d = $(loss_at plain-taught 1) - $(loss_at plain-alone 1) - log(10); exit !(d < 0.02 && d > -0.02)}" ||
    fail "the teacher adds $(loss_at plain-taught 1) - $(loss_at plain-alone 1), expected log(10)"
run 2 train "${hier[@]}" "${small_data[@]}" --mesa 1 -o none
tells 'needs --model-ema'

run 0 train "${hier[@]}" "${small_data[@]}" --epochs 1 --device cpu --ranks 2 --max-steps 4 -o ranks

# ---- other commands read what the run wrote ----
report=$(grep '"kind":"validate"' learns/metrics.jsonl | tail -n 1 | sed 's/.*"top1":\([0-9.]*\).*/\1/')
run 0 eval --json -q "${small_data[@]}" --checkpoint learns
checks=$((checks + 1))
case $(cat out) in *"\"top1\":$report"*) ;; *) fail "eval does not find the top-1 $report of the run" ;; esac
run 0 inspect --verify learns
says 'hierarchical ViTTT (H-ViTTT) of custom size: stages 8x1x2,16x1x2,16x1x2,32x1x2'
says '32 px, rotary positions'
run 0 inspect --json learns
says '"kind":"h_vittt"'
run 0 export --dtype f32 learns small.safetensors
run 0 eval --json -q "${small_data[@]}" --checkpoint small.safetensors
checks=$((checks + 1))
case $(cat out) in *"\"top1\":$report"*) ;; *) fail 'the exported weights score otherwise' ;; esac
run 0 export learns half.safetensors
run 0 inspect half.safetensors --tensors
checks=$((checks + 1))
grep 'layers.0.blocks.0.rope.rotations' out | grep -q ' F32 ' || fail 'the rotary table was rounded'
# the plan knows of the tables and statistics, too, which are no parameters
large=("${hier[@]}" --stages 16x2x2,32x2x2,64x1x2,64x1x2 --img-size 224 --batch-size 2 --data-dir "$DIGITS"
    --set data.train_limit=2 --val-split none --model-ema)
run 0 train "${large[@]}" --dry-run --json -o none
bytes=$(grep -o '"checkpoint_bytes":[0-9]*' out | cut -d: -f2)
run 0 train "${large[@]}" --max-steps 1 -o large
saved=$(cat large/checkpoints/*.safetensors | wc -c)
checks=$((checks + 1))
[ "$bytes" -ge "$saved" ] || fail "a checkpoint takes $saved bytes, the plan says $bytes"
run 0 ckpt average learns straight mean.safetensors --weights raw
run 0 eval -q "${small_data[@]}" --checkpoint mean.safetensors
mkdir pictures
tar -xf "$DIGITS" -C pictures
run 0 predict --checkpoint learns "$(find pictures -name '*.png' | sort | head -n 1)"
run 0 ttt verify learns "$(find pictures -name '*.png' | sort | head -n 1)"

# ---- names, sizes, plans ----
run 0 models
says 'vittt_h_tiny        28703560 parameters'
says 'vittt_h_base        94369304 parameters'
run 0 train --model h_vittt_tiny "${small_data[@]}" --batch-size 2 --dry-run --json -o none
says '"parameters":28195690'
run 0 bench step "${hier[@]:0:6}" --batch-size 2 --seconds 0.01 --json
json_ok out
says '"batchnorm'

# ---- refused ----
run 2 train "${hier[@]}" "${small_data[@]}" --img-size 40 -o none
tells '40 is not a multiple of patch 32'
run 2 train "${hier[@]}" "${small_data[@]}" --mixer lact -o none
tells "'lact' is not for hierarchical models"
run 2 train "${hier[@]}" "${small_data[@]}" --stem-depth 2 -o none
tells 'a stem of its own'
run 2 train "${hier[@]}" "${small_data[@]}" --width 64 -o none
tells 'takes its sizes from them alone'
run 2 train --model vittt_small --stages 8x1x2,16x1x2,16x1x2,32x1x2 "${small_data[@]}" -o none
tells 'vittt_small is a plain model'
run 3 eval -q "${small_data[@]}" --checkpoint learns --img-size 64
tells 'rope.rotations'

finish
