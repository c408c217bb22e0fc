#!/bin/bash
# Averaged weights: validated and saved beside the others, chosen by --weights, resumed to the same bits.
. "$(dirname "$0")/train_lib.sh"

top1() { # ARGS...: top-1 of an evaluation
    "$TTV" eval --json -q --workers 2 "${small_data[@]}" "$@" | sed 's/.*"top1":\([0-9.]*\).*/\1/'
}
weights_of() { "$TTV" eval --json -q --workers 2 "${small_data[@]}" "$@" | sed 's/.*"weights":"\([a-z]*\)".*/\1/'; }
field() { grep '"kind":"validate"' "$1/metrics.jsonl" | tail -n 1 | sed "s/.*\"$2\":\([0-9.]*\).*/\1/"; }

# ---- a slow average stays behind: the raw weights are the better ones ----
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 3 --model-ema --model-ema-decay 0.999 -o slow
tells 'their average'
tells 'averaged weights: top-1'
says 'averaged weights top-1'
json_ok slow/metrics.jsonl lines
equal 'fields of a CSV row' "$(awk -F, 'NF != 15' slow/metrics.csv | wc -l)" 0
checks=$((checks + 1))
ls slow/checkpoints | grep -q 'ema.safetensors' || fail 'no averaged weights were saved'
equal 'metric of the better weights' "$(field slow metric)" "$(field slow top1)"
equal 'weights of auto' "$(weights_of --checkpoint slow)" raw
equal 'weights of ema' "$(weights_of --checkpoint slow --weights ema)" ema
equal 'top-1 of auto' "$(top1 --checkpoint slow)" "$(top1 --checkpoint slow --weights raw)"

# ---- an average of one step is the weights themselves ----
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 --model-ema --model-ema-decay 0 -o same
equal 'top-1 of an average that forgets all' "$(field same ema_top1)" "$(field same top1)"
equal 'weights of auto when both are equal' "$(weights_of --checkpoint same)" ema
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 -o plain
checks=$((checks + 1))
cmp -s <(tail -c 20000 same/last.safetensors) <(tail -c 20000 plain/last.safetensors) ||
    fail 'averaging changes the weights'

# ---- what eval finds is what the run reported ----
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 4 --model-ema --model-ema-decay 0.5 -o quick
last_ema=$(ls quick/checkpoints/*.ema.safetensors | tail -n 1)
reported=$(field quick ema_top1) found=$(top1 --checkpoint "$last_ema")
checks=$((checks + 1))
awk "BEGIN {d = $reported - $found; exit !(d < 1e-9 && d > -1e-9)}" || fail "reported $reported, found $found"

# ---- single files are checked; classify takes the choice, too ----
equal 'weights of a file' "$(weights_of --checkpoint "$last_ema")" ema
run 3 eval "${small_data[@]}" --checkpoint "$last_ema" --weights raw
tells 'holds averaged (ema) weights'
run 3 eval "${small_data[@]}" --checkpoint slow/last.safetensors --weights ema
tells 'holds raw weights'
run 3 eval --checkpoint plain --weights ema
tells 'no averaged weights'
run 0 eval --checkpoint plain -q
digits_folder set 1
run 0 classify --checkpoint slow --weights ema set/val/3
run 0 classify --checkpoint slow --weights auto set/val/3
run 3 classify --checkpoint plain --weights ema set/val/3
run 2 classify --checkpoint plain --weights mean set/val/3
tells 'mean'

# ---- resume ----
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 --model-ema --model-ema-decay 0.9 -o straight
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 --model-ema --model-ema-decay 0.9 --max-steps 13 -o parts
run 0 train --resume parts --no-progress
for kind in '' .ema; do
    checks=$((checks + 1))
    cmp -s "straight/checkpoints/step-00000020$kind.safetensors" "parts/checkpoints/step-00000020$kind.safetensors" ||
        fail "the resumed run has another '$kind' file"
done
run 2 train --resume parts --epochs 3 --no-model-ema --no-progress
tells 'averages its weights'
run 0 train --resume plain --epochs 3 --model-ema --no-progress # begins to average now
run 0 train "${tiny[@]}" "${small_data[@]}" --initial-checkpoint quick --max-steps 1 -o from

finish
