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
fi
equal 'rows of steps.csv' "$(wc -l <steps/steps.csv)" 4
for picture in steps_top1 steps_inner; do [ -s steps/$picture.png ] || fail "no $picture.png"; done

run 0 ttt probe ascent "$RUN" "${data[@]}" -o ascent
says 'ascent of the GLU branch'
run 0 ttt probe swap --per-layer "$RUN" "${data[@]}" -o swap
says 'q = k in layer 1'
run 0 ttt probe qk --tsne --vectors 24 --pictures 2 --shuffles 19 "$RUN" "${data[@]}" -o qk
says 'q_k'
equal 'rows of qk.csv' "$(wc -l <qk/qk.csv)" 7
for picture in qk_auc tsne_layer0 tsne_layer1; do [ -s qk/$picture.png ] || fail "no $picture.png"; done
equal 'the checkpoint' "$(cksum "$WEIGHTS")" "$before"

run 2 ttt probe
tells 'steps, ascent, swap or qk'
run 2 ttt probe nothing "$RUN"
tells "'nothing'"
run 2 ttt probe steps
tells 'exactly one checkpoint'
run 2 ttt probe steps --list 1,x "$RUN" "${data[@]}" -o x
tells 'separated by commas'
run 4 ttt probe steps nothing.safetensors "${data[@]}" -o x
tells 'nothing.safetensors'
finish
