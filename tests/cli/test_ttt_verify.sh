#!/bin/bash
# ttv ttt verify: the identity holds on a trained model in every variant, is reported by layer, and what cannot be
# checked is named.
. "$(dirname "$0")/model_lib.sh"

run 0 ttt verify "$RUN"
says 'every layer equals its linear-attention form'
says 'depthwise'
says 'no soft norm'
tells 'no pictures were named: 2 of noise are used'
run 0 ttt verify "$RUN" "$PHOTOS" --limit 2
says '2 pictures'
for variant in ga_both q_is_k v1_only_w1 v3_linear_paper v3_linear_fork v6_linattn_both mse mse_fork; do
    run 0 ttt verify "$WEIGHTS" --random 1 --set model.mixer=$variant
    says 'every layer equals'
done
run 0 ttt verify --json "$RUN"
json_ok out
if command -v python3 >/dev/null; then
    equal 'layers' "$(json_get out 'len(d["layers"])')" 4
    equal 'holds' "$(json_get out 'd["holds"]')" True
    equal 'f64' "$(json_get out 'max(l["f64"] for l in d["layers"]) < 1e-12')" True
    equal 'controls miss' "$(json_get out 'all(min(l["controls"].values()) > 100 * l["f64"] for l in d["layers"])')" True
fi

# a novel-view model, its last layer too, where input tokens only write and target tokens only read
run 0 ttt verify "$SOURCE/data/nvs_demo.safetensors" --random 1 --json
if command -v python3 >/dev/null; then
    equal 'layers' "$(json_get out '[l["layer"] for l in d["layers"]]')" '[0, 1, 2, 3, 4, 5]'
    equal 'all hold' "$(json_get out 'all(l["holds"] for l in d["layers"])')" True
    equal 'controls' "$(json_get out 'sorted(d["layers"][5]["controls"])')" \
        "['features before the step', 'no Newton-Schulz map', 'no weight-norm decay']"
    equal 'which miss' "$(json_get out 'all(min(l["controls"].values()) > 1e-2 for l in d["layers"])')" True
fi
run 3 ttt verify "$SOURCE/data/nvs_demo.safetensors" "$PHOTOS"

run 2 ttt verify
tells 'the checkpoint is missing'
run 4 ttt verify nothing.safetensors
tells 'nothing.safetensors'
echo 'no picture' >text.png
run 3 ttt verify "$RUN" text.png
tells 'text.png'
run 3 ttt verify "$RUN" text.png "$PHOTOS"
says '4 pictures'
run 2 ttt verify "$RUN" --random 0
finish
