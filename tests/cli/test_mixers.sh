#!/bin/bash
# The mixers of [model] mixer: each trains, its checkpoint is read back with the same result, and what does not go together is
# refused.
. "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=1

small=(--model custom --img-size 16 --patch-size 4 --width 32 --depth 2 --heads 2 --crop-pct 1 --batch-size 32
    --warmup-epochs 0 --lr 2e-3 --epochs 2 --max-steps 24 --log-interval 12 --no-progress --workers 1
    --data-dir "$SOURCE/data/digits.tar" --set data.train_limit=640 --set data.val_limit=100)

trains() { # NAME FLAGS...
    local name=$1
    shift
    run 0 train "${small[@]}" "$@" -o "$name"
    run 0 eval --checkpoint "$name" --data-dir "$SOURCE/data/digits.tar" --json
    sed 's/"seconds".*//' out >first
    run 0 eval --checkpoint "$name" --data-dir "$SOURCE/data/digits.tar" --json --set model.recompute=true
    [ "$(sed 's/"seconds".*//' out)" = "$(cat first)" ] || fail "$name: evaluated twice, two results"
    if command -v python3 >/dev/null; then
        python3 - "$name/metrics.jsonl" <<'P' || fail "$name: the loss does not fall"
import json, sys
rows = [json.loads(l) for l in open(sys.argv[1])]
loss = [r["loss"] for r in rows if r["kind"] == "train"]
sys.exit(not (len(loss) >= 2 and loss[-1] < loss[0]))
P
    fi
}

trains lact --mixer lact
trains lact_V6 --mixer lact_V6
trains ttt_linear --mixer ttt_linear
trains ttt_mlp --mixer ttt_mlp
trains swiglu --mixer graph:swiglu
trains own --mixer 'graph:w = linear(input d), n = norm(w eps=1e-2), r = add(input n)' --mixer-scan both \
    --mixer-visibility causal --mixer-chunk 8
trains inner --mixer graph:linear --mixer-loss inner --mixer-steps 2
trains steps --mixer base --mixer-steps 2

# a stem of convolutions in place of the patch embedding: its checkpoint is recognised without what it says of itself
trains stem --stem-depth 2 --stem-width 16
run 0 inspect --verify stem
says 'stem of 2 blocks of 16 channels'
says 'every tensor of the model is there'
run 0 eval --checkpoint stem --data-dir "$SOURCE/data/digits.tar" --tta flip
run 2 train "${small[@]}" --stem-depth 17 -o x
run 2 train "${small[@]}" --patch-size 1 --stem-depth 1 -o x
tells 'an even patch'

run 2 train "${small[@]}" --mixer nonsense -o x
tells "unknown mixer 'nonsense'"
run 2 train "${small[@]}" --mixer 'graph:w = linear(input d), idle = silu(w), y = linear(w d)' -o x
tells "'idle' is disconnected"
run 2 train "${small[@]}" --mixer ttt_linear --mixer-steps 2 -o x
tells 'a token prefix has one step'
run 2 train "${small[@]}" --mixer ttt_linear --mixer-loss rmse -o x
tells 'rmse'
run 2 train "${small[@]}" --mixer base --mixer-chunk 8 -o x
tells 'graph mixers'
run 2 train "${small[@]}" --mixer lact --mixer-steps 3 -o x
tells 'inner steps'
run 2 train "${small[@]}" --mixer base --mixer-steps 2 --mixer-form pairs -o x
tells 'token-pair'
for name in lact lact_V6 swiglu; do
    run 0 ttt verify "$name"
    says 'every layer equals'
done
for name in ttt_linear ttt_mlp own; do
    run 0 ttt verify "$name" --random 1
    says 'every read equals its linear-attention form'
    says "no linear form: norm 'n' follows what was read"
done
run 0 ttt verify ttt_linear --random 1 --json
if command -v python3 >/dev/null; then
    equal 'rows' "$(json_get out '[(l["branch"], l["linear_form"]) for l in d["layers"][:3]]')" \
        "[('W1', True), ('b1', True), ('output', False)]"
    equal 'controls miss' "$(json_get out 'all(min(l["controls"].values()) > 1e-4 for l in d["layers"])')" True
fi

# experiments on them: more steps go further down, ascent goes up
probe=(--data-dir "$SOURCE/data/digits.tar" --set data.val_limit=40 --pictures 1 --no-progress --json)
for name in lact lact_V6 inner; do
    run 0 ttt probe steps --list 1,3 "$name" "${probe[@]}" -o probe
    if command -v python3 >/dev/null; then
        equal "$name: more steps" "$(json_get out 'd["rows"][2]["moved"] > d["rows"][1]["moved"] > 0')" True
        equal "$name: the inner loss falls" "$(json_get out 'd["rows"][1]["inner_loss_after"] < d["rows"][1]["inner_loss_before"]')" True
    fi
done
for name in swiglu ttt_linear; do
    run 0 ttt probe ascent "$name" "${probe[@]}" -o probe
    if command -v python3 >/dev/null; then
        equal "$name: ascent" "$(json_get out 'd["rows"][1]["inner_loss_after"] > d["rows"][1]["inner_loss_before"]')" True
    fi
    run 0 ttt probe swap "$name" "${probe[@]}" -o probe
    if command -v python3 >/dev/null; then
        equal "$name: every swap changes the loss" "$(json_get out 'len({r["loss"] for r in d["rows"]})')" 4
    fi
    run 0 ttt probe qk --vectors 16 --shuffles 9 "$name" --data-dir "$SOURCE/data/digits.tar" --set data.val_limit=40 --pictures 2 -o probe
    says 'layer  1 v_o'
done
run 2 ttt probe steps ttt_linear --data-dir "$SOURCE/data/digits.tar" -o probe
tells 'one inner step a token'
finish
