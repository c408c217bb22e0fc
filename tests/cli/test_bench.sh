#!/bin/bash
# ttv bench: every part runs, measures every kernel, allocates nothing after step 1, speaks JSON. No timings are judged.
. "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=1

small=(--seconds 0.001 --batch-size 2 --img-size 16 --patch-size 4 --model custom --width 16 --depth 2
    --heads 2 --num-classes 10)

run 0 bench ops "${small[@]}"
says 'GFLOP/s'
for kernel in linear_dw vittt_glu_backward adamw dwconv3_taps layernorm cross_entropy; do says "$kernel"; done
run 0 bench ops "${small[@]}" --precision bf16 --filter vittt --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'filtered cases' "$(json_get out 'len(d["ops"]["cases"])')" 4
    equal 'times' "$(json_get out 'all(c["ms"] > 0 and c["ceiling_share"] > 0 for c in d["ops"]["cases"])')" True
    equal 'activations' "$(json_get out 'd["activations"]')" BF16
fi
run 2 bench ops "${small[@]}" --filter nothing-like-that
tells 'nothing-like-that'

run 0 bench step "${small[@]}"
says 'allocations after step 1: 0'
says 'time goes to'
run 0 bench step "${small[@]}" --drop-path 0.2 --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'allocations' "$(json_get out 'd["step"]["memory"]["allocations_after_step_1"]')" 0
    equal 'batch' "$(json_get out '(d["step"]["classify_one"]["batch"], d["step"]["train"]["batch"])')" '(1, 2)'
fi
run 0 bench step "${small[@]}" --batch-size 1
# the published parameter counts
run 0 bench step --seconds 0.001 --batch-size 1 --img-size 32 --json
[ -z "$(command -v python3)" ] || equal 'parameters of ViTTT-T' "$(json_get out 'd["step"]["parameters"]')" 6149416

scene=(--seconds 0.001 --batch-size 2 --nvs-model custom --view-height 16 --view-width 16 --inputs 2 --targets 1
    --set nvs_model.patch=4 --set nvs_model.width=16 --set nvs_model.layers=2 --set nvs_model.head_width=8)
run 0 bench nvs "${scene[@]}"
says 'allocations after step 1: 0'
says 'views/s'
run 0 bench nvs "${scene[@]}" --precision bf16 --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'scenes, views' "$(json_get out '[d["nvs"][k]["batch"] for k in ("train", "reconstruct", "render")]')" '[2, 1, 1]'
    equal 'rates' "$(json_get out 'd["nvs"]["train"]["scenes_per_s"] > 0 and d["nvs"]["render"]["views_per_s"] > 0')" True
fi
run 2 bench nvs --nvs-model l12_d768_ttt3x
tells 'did you mean'

run 0 bench loader "${small[@]}" --images 4 --workers 1
says 'pictures of own making'
says 'img/s'
run 0 bench loader "${small[@]}" --data-dir "$SOURCE/data/digits.tar" --workers 2 --json
json_ok out
[ -z "$(command -v python3)" ] || equal 'pixels' "$(json_get out 'd["loader"]["mean_pixels"]')" 64
equal 'nothing is left behind' "$(find "${TMPDIR:-/tmp}" -maxdepth 1 -name 'ttv-bench-*' -user "$(id -un)" | wc -l)" 0

run 0 bench all "${small[@]}" --images 2 --workers 1 --json
json_ok out
[ -z "$(command -v python3)" ] || equal 'parts' "$(json_get out '[k in d for k in ("step", "ops", "loader")]')" '[True, True, True]'

# ---- fast-weight layers ----
layers=(--batch-size 2 --fast-heads 2 --head-width 8 --chunk 16 --tokens 40,64 --seconds 0.002 --no-progress)
run 0 bench ttt "${layers[@]}"
says 'V2  parallel          64 tokens'
run 0 bench ttt "${layers[@]}" --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'rows' "$(json_get out 'len(d["ttt"])')" 24
    equal 'forms of V0' "$(json_get out '[r["form"] for r in d["ttt"] if r["variant"] == 0]')" "['recurrent', 'recurrent']"
fi
run 0 bench ttt "${layers[@]}" --filter 'V6 parallel' --json --precision bf16
[ -z "$(command -v python3)" ] || equal 'filtered' "$(json_get out 'len(d["ttt"])')" 2
run 0 bench ttt "${layers[@]}" --filter 'V0,V2 par' --profile --output lengths
says 'time goes to'
equal 'table' "$(cut -d, -f1-3 lengths.csv | tr '\n' ' ')" \
    'variant,form,tokens 0,recurrent,40 2,parallel,40 0,recurrent,64 2,parallel,64 '
equal 'plot' "$(head -c 8 lengths.png | od -An -tx1 | tr -d ' ')" 89504e470d0a1a0a
run 0 bench ttt "${layers[@]}" --filter V2 --composed
says 'composed'
run 4 bench ttt "${layers[@]}" --filter V6 --output /no/such/folder/x
tells '/no/such/folder/x.csv'
run 2 bench ttt --tokens 12,x
tells 'separated by commas'

# ---- mistakes ----
run 2 bench
tells 'ops, step, nvs, ttt, loader or all'
run 2 bench opps
tells "'opps'"
run 2 bench step --model vittt_tiney
tells 'did you mean'
run 2 bench step --img-size 17
run 2 bench step --batch-size 0
run 3 bench loader --data-dir "$SOURCE/data/photos" --images 2
run 5 bench step --device cuda:99 # no such card, or no CUDA at all
if [ -w /dev/full ]; then
    "$TTV" bench ops "${small[@]}" --filter zero >/dev/full 2>err
    equal 'exit code on /dev/full' $? 4
fi
TMPDIR=/no/such/folder run 4 bench loader "${small[@]}"
tells '/no/such/folder'
finish
