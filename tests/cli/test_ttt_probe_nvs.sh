#!/bin/bash
# ttv ttt probe on novel-view models: PSNR as ttv nvs eval has it, every mode with its files, controls, and what is refused.
. "$(dirname "$0")/nvs_lib.sh"

run 0 nvs train "${tiny[@]}" --steps 10 -o model
before=$(cksum model/best.safetensors)
probe=(--data-dir rooms --split test --gap-min 4 --gap-max 11 --seed 3 --pictures 1 --no-progress)
run 0 nvs eval --checkpoint model --data-dir rooms --gap-min 4 --gap-max 11 --seed 3 --write-index views.json --json
[ -z "$(command -v python3)" ] || psnr=$(json_get out '"%.6f %.6f" % (d["model"]["psnr"], d["model"]["ssim"])')

run 0 ttt probe steps --list 1,3 model "${probe[@]}" -o steps --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'baseline as nvs eval has it' "$(json_get out '"%.6f %.6f" % (d["rows"][0]["psnr"], d["rows"][0]["ssim"])')" "$psnr"
    equal 'one step is the baseline' "$(json_get out 'd["rows"][0]["psnr"] == d["rows"][1]["psnr"]')" True
    equal 'three steps are not' "$(json_get out 'd["rows"][1]["psnr"] == d["rows"][2]["psnr"]')" False
    equal 'views' "$(json_get out 'd["rows"][0]["views"]')" 6
    equal 'the inner loss falls' "$(json_get out 'd["rows"][0]["inner_loss_after"] < d["rows"][0]["inner_loss_before"]')" True
    equal 'three steps move more' "$(json_get out 'd["rows"][2]["moved"] > d["rows"][1]["moved"] > 0')" True
    equal 'the interval holds the mean' "$(json_get out 'd["rows"][0]["psnr_low"] < d["rows"][0]["psnr"] < d["rows"][0]["psnr_high"]')" True
fi
equal 'rows of steps.csv' "$(wc -l <steps/steps.csv)" 4
equal 'rows of steps_layers.csv' "$(wc -l <steps/steps_layers.csv)" 7
for picture in steps_psnr steps_ssim steps_inner; do [ -s steps/$picture.png ] || fail "no $picture.png"; done
run 0 ttt probe steps --list 1,3 model --data-dir rooms --split test --index views.json --resample scene --pictures 1 -o scenes
says 'baseline'
equal 'the same views by their index' "$(cut -d, -f1-4 scenes/steps.csv)" "$(cut -d, -f1-4 steps/steps.csv)"
[ "$(cut -d, -f5 scenes/steps.csv)" != "$(cut -d, -f5 steps/steps.csv)" ] || fail 'scenes drawn whole, the same intervals'
run 0 ttt probe steps --list 1 model/best.safetensors "${probe[@]}" --scenes 1 --resample scene -o one
tells 'no intervals: resampling needs two scenes or more'

run 0 ttt probe ascent model "${probe[@]}" -o ascent --json
if command -v python3 >/dev/null; then
    equal 'ascent raises the inner loss' "$(json_get out 'd["rows"][1]["inner_loss_after"] > d["rows"][1]["inner_loss_before"]')" True
fi
run 0 ttt probe swap --per-layer model "${probe[@]}" -o swap --json
if command -v python3 >/dev/null; then
    equal 'settings' "$(json_get out 'len(d["rows"])')" 9
    equal 'every swap changes the views' "$(json_get out 'len({r["psnr"] for r in d["rows"]})')" 9
    equal 'attention too' "$(json_get out 'd["rows"][4]["setting"]')" 'q = k in the attention'
fi
for picture in swap_psnr swap_psnr_difference; do [ -s swap/$picture.png ] || fail "no $picture.png"; done
run 0 ttt probe qk --tsne --vectors 32 --shuffles 19 model "${probe[@]}" -o qk
says 'layer  1 q_k'
says 'layer  1 qhat_khat'
equal 'rows of qk.csv' "$(wc -l <qk/qk.csv)" 9
for picture in qk_auc qk_energy tsne_q_k_layer0 tsne_v_o_layer1 tsne_qhat_khat_layer0; do [ -s qk/$picture.png ] || fail "no $picture.png"; done
equal 'the checkpoint' "$(cksum model/best.safetensors)" "$before"

# the run folder knows its scenes; the shipped weights on the free pair, whose views are the inputs
run 0 ttt probe ascent model --gap-min 4 --gap-max 11 --scenes 1 --pictures 1 -o x
echo '{"6d6f746f72637963": {"context": [0, 1], "target": [0, 1]}}' >pair.json
run 0 ttt probe steps --list 1,2 "$SOURCE/data/nvs_demo.safetensors" --data-dir "$SOURCE/data/motorcycle.tar" --index pair.json -o pair
says 'steps 2'

# ---- the linear-attention form on scenes, also of a pair, whose inputs are the targets ----
run 0 ttt verify model rooms --limit 2
says '2 pictures'
says 'every layer equals'
mkdir -p broken/test
printf 'https://www.youtube.com/watch?v=x\n1 0.9 0.9 0.5 0.5 0 0 1 0 0 0 0 1 0 0 0 0 1 0\n' >broken/test/00ff00ff00ff00ff.txt
run 3 ttt verify model broken "$SOURCE/data/motorcycle.tar"
says '1 pictures'
says 'every layer equals'
tells 'scene 00ff00ff00ff00ff is not usable'
run 3 ttt verify model broken
tells 'no scene is usable'

# ---- what is refused ----
run 2 ttt probe steps model/best.safetensors -o x
tells 'no scenes: give --data-dir'
mkdir empty
run 3 ttt probe steps model/best.safetensors --data-dir empty -o x
tells 'empty'
run 3 ttt probe steps model/best.safetensors --data-dir "$SOURCE/data/digits.tar" -o x
tells 'digits.tar'
run 3 ttt probe steps model/best.safetensors --data-dir rooms --split nowhere -o x
echo '{"nobody": {"context": [0, 1], "target": [2]}}' >nobody.json
run 3 ttt probe steps model/best.safetensors --data-dir rooms --index nobody.json -o x
tells 'none of 1 scenes can be rendered (first: nobody'
run 0 nvs render --checkpoint model --data-dir rooms --input-views 0,5 --frames 2 --format none -o r --save-scene scene.safetensors
run 2 ttt probe steps scene.safetensors --data-dir rooms -o x
tells 'scene.safetensors does not say which model'
run 2 ttt probe steps model/best.safetensors --data-dir rooms --inputs 40 --targets 40 -o x
tells 'at most 64 views'
finish
