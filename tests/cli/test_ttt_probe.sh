#!/bin/bash
# ttv ttt probe: each experiment on a small trained model: the first row is what eval says, files are complete, the
# checkpoint is left alone, mistakes are named.
. "$(dirname "$0")/model_lib.sh"

data=(--data-dir "$DIGITS" --set data.val_limit=60 --no-progress)
before=$(cksum "$WEIGHTS")
run 0 eval --checkpoint "$RUN" "${data[@]}" --json
[ -z "$(command -v python3)" ] || top1=$(json_get out 'd["top1"]')

run 0 ttt probe steps --list 1,2 "$RUN" "${data[@]}" -o steps --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'baseline as eval has it' "$(json_get out 'd["rows"][0]["top1"]')" "$top1"
    equal 'one step is the baseline' "$(json_get out 'd["rows"][0]["loss"] == d["rows"][1]["loss"]')" True
    equal 'two steps are not' "$(json_get out 'd["rows"][1]["loss"] == d["rows"][2]["loss"]')" False
    equal 'the inner loss falls' "$(json_get out 'd["rows"][0]["inner_loss_after"] < d["rows"][0]["inner_loss_before"]')" True
    equal 'more steps move more' "$(json_get out 'd["rows"][2]["moved"] > d["rows"][1]["moved"]')" True
    equal 'the interval holds the mean' "$(json_get out 'd["rows"][0]["loss_low"] < d["rows"][0]["loss"] < d["rows"][0]["loss_high"]')" True
    equal 'the first row differs from itself by nothing' \
        "$(json_get out 'd["rows"][0]["loss_difference_low"], d["rows"][0]["loss_difference_high"]')" '(0, 0)'
    equal 'differences are those of the means' \
        "$(json_get out 'abs(d["rows"][2]["loss_difference"] - d["rows"][2]["loss"] + d["rows"][0]["loss"]) < 1e-9')" True
fi
equal 'rows of steps.csv' "$(wc -l <steps/steps.csv)" 4
equal 'rows of steps_layers.csv' "$(wc -l <steps/steps_layers.csv)" 7
for picture in steps_top1 steps_loss steps_inner; do [ -s steps/$picture.png ] || fail "no $picture.png"; done
cp steps/steps.csv first.csv
run 0 ttt probe steps --list 1,2 "$RUN" "${data[@]}" -o steps -b 7
equal 'the same table from other batches' "$(cut -d, -f1-6 steps/steps.csv)" "$(cut -d, -f1-6 first.csv)"
run 0 ttt probe steps --list 1,2 "$RUN" "${data[@]}" -o steps --seed 2
[ "$(cut -d, -f5 steps/steps.csv)" != "$(cut -d, -f5 first.csv)" ] || fail 'another seed, the same intervals'

run 0 ttt probe ascent "$RUN" "${data[@]}" -o ascent
says 'ascent of the GLU branch'
for picture in ascent_top1 ascent_top1_difference; do [ -s ascent/$picture.png ] || fail "no $picture.png"; done
run 0 ttt probe swap --per-layer "$RUN" "${data[@]}" -o swap --json
if command -v python3 >/dev/null; then
    equal 'settings' "$(json_get out '[r["setting"] for r in d["rows"]]')" "['baseline', 'q = k in all layers', \
'q of another token in all layers', 'q = noise of its length in all layers', 'q = k in layer 0', 'q = k in layer 1']"
    equal 'every swap changes the loss' "$(json_get out 'len({r["loss"] for r in d["rows"]})')" 6
fi
run 0 ttt probe qk --tsne --vectors 24 --pictures 2 --shuffles 19 "$RUN" "${data[@]}" -o qk
says 'q_k'
equal 'rows of qk.csv' "$(wc -l <qk/qk.csv)" 7
equal 'points of tsne.csv' "$(wc -l <qk/tsne.csv)" $((2 * 2 * 2 * 24 + 1))
for picture in qk_auc qk_energy tsne_q_k_layer0 tsne_v_o_layer1; do [ -s qk/$picture.png ] || fail "no $picture.png"; done
equal 'the checkpoint' "$(cksum "$WEIGHTS")" "$before"

# one image: numbers, but no intervals
run 0 ttt probe ascent "$RUN" --data-dir "$DIGITS" --set data.val_limit=1 -o one
tells 'no intervals: resampling needs two images or more'
equal 'no interval in the table' "$(sed -n 2p one/ascent.csv | cut -d, -f3,5,6)" '1,,'

run 2 ttt probe
tells 'steps, ascent, swap or qk'
run 2 ttt probe nothing "$RUN"
tells "there is no probe 'nothing'"
run 2 ttt probe steps
tells 'exactly one checkpoint'
run 2 ttt probe steps --list 1,x "$RUN" "${data[@]}" -o x
tells 'separated by commas'
run 2 ttt probe steps "$RUN" "${data[@]}" --resample scene -o x
tells 'images stand alone'
run 2 ttt probe steps "$RUN" "${data[@]}" --resamples 0 -o x
run 3 ttt probe steps "$RUN" --data-dir "$SOURCE/data/motorcycle.tar" -o x
tells 'motorcycle.tar'
run 4 ttt probe steps nothing.safetensors "${data[@]}" -o x
tells 'nothing.safetensors'
run 2 ttt probe swap "$WEIGHTS" "${data[@]}" --set model.mixer=q_is_k -o x
tells 'nothing to swap'
finish
