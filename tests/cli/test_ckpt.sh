#!/bin/bash
# ttv ckpt average, diff, prune: values by hand, what is refused, and that what a run needs stays.
. "$(dirname "$0")/model_lib.sh"
train=(train --model custom --img-size 16 --patch-size 4 --width 32 --depth 2 --heads 2 --crop-pct 1 --batch-size 32
    --warmup-epochs 0 --lr 2e-3 --epochs 2 --no-progress --workers 1 --data-dir "$DIGITS" --set data.train_limit=640
    --set data.val_limit=100)

# ---- diff ----
BEST=$(readlink -f "$RUN/best.safetensors")
run 0 ckpt diff "$RUN" "$BEST"
says 'all equal'
run 0 export "$RUN" half.safetensors
run 1 ckpt diff "$BEST" half.safetensors
says 'tensors differ'
says 'relative'
run 0 ckpt diff "$BEST" half.safetensors --tolerance 0.01
says 'within the tolerance'
run 1 ckpt diff "$BEST" half.safetensors --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'rounding to 8 bits' "$(json_get out 'all(0 < r["relative"] < 2**-8 for r in d["differences"])')" True
    equal 'only matrices were rounded' "$(json_get out 'len(d["differences"]) == d["differ"] < d["tensors"]')" True
    equal 'most first' "$(json_get out 'd["differences"] == sorted(d["differences"], key=lambda r: -r["relative"])')" True
fi
# another network: shapes, and tensors that only one has
run 0 "${train[@]}" --width 16 --depth 1 --epochs 1 -o small
run 1 ckpt diff "$WEIGHTS" small --limit 0
says 'only in the first'
says 'in the second'
says '- depth = 2'
says '+ depth = 1'
run 1 ckpt diff "$WEIGHTS" small --limit 1
says 'more (--limit 0'
run 2 ckpt diff "$WEIGHTS"
run 4 ckpt diff "$WEIGHTS" nowhere
run 3 ckpt diff "$WEIGHTS" "$SOURCE/README.md"

# ---- average ----
run 0 "${train[@]}" --seed 5 -o other
run 0 ckpt average "$RUN" other mean.safetensors --json
json_ok out
run 0 inspect --verify mean.safetensors
says 'ttv.averaged'
run 0 eval --checkpoint mean.safetensors --data-dir "$DIGITS" --set data.val_limit=100
if command -v python3 >/dev/null; then
    cat >read.py <<'PY'
import json, struct, sys
def tensors(path):
    f = open(path, "rb").read()
    n = struct.unpack("<Q", f[:8])[0]
    head = json.loads(f[8:8 + n])
    meta = head.pop("__metadata__")
    out = {}
    for name, t in head.items():
        a, b = t["data_offsets"]
        out[name] = struct.unpack("<%df" % ((b - a) // 4), f[8 + n + a:8 + n + b])
    return out, meta
(a, _), (b, _), (m, meta) = map(tensors, sys.argv[1:])
assert list(a) == list(m), "order of tensors"
f32 = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]
worst = max(abs(f32((x + y) / 2) - z) for k in a for x, y, z in zip(a[k], b[k], m[k]))
assert worst == 0, worst
assert meta["ttv.averaged"] == "2" and "ttv.step" not in meta and "ttv.metric" not in meta, meta
assert "ttv.config" in meta and "ttv.classes" in meta
PY
    checks=$((checks + 1))
    python3 read.py "$BEST" "$(readlink -f other/best.safetensors)" mean.safetensors ||
        fail 'the mean is not the mean'
fi
run 0 ckpt average "$WEIGHTS" same.safetensors
run 0 ckpt diff "$WEIGHTS" same.safetensors
run 2 ckpt average "$RUN"
run 2 ckpt average "$RUN" other mean.safetensors
tells 'exists'
run 0 ckpt average "$RUN" other mean.safetensors --overwrite --dtype bf16
run 3 ckpt average "$RUN" small x.safetensors
tells 'tensors'
run 0 "${train[@]}" --width 16 --epochs 1 -o narrow
run 3 ckpt average "$RUN" narrow x.safetensors
tells 'has shape [16'
tells 'expected [32'
run 4 ckpt average "$RUN" nowhere x.safetensors

# ---- prune ----
run 0 "${train[@]}" --save-every 5 --checkpoint-hist 100 -o saved
names() { (cd saved/checkpoints && ls); }
before=$(names)
run 0 ckpt average --newest 3 saved newest.safetensors
run 3 ckpt average --newest 99 saved x.safetensors
run 3 ckpt average --newest 2 --weights ema saved x.safetensors
tells 'no averaged weights'
run 2 ckpt average --newest 2 saved other x.safetensors
run 2 ckpt prune saved
tells '--keep'
run 0 ckpt prune --keep 1 --dry-run saved
says 'removed'
says 'would be freed'
equal 'a dry run removes nothing' "$(names)" "$before"
run 0 ckpt prune --keep 2 --states --dry-run saved --json
json_ok out
run 0 ckpt prune --keep 1 --states saved
says '(last'
kept=$(printf '%s\n' $(names) | grep -vc state)
checks=$((checks + 1))
[ "$kept" -ge 2 ] && [ "$kept" -le 3 ] || fail "$kept weights files are left, not last, best and one"
run 0 inspect --verify saved
run 0 "${train[@]}" --epochs 3 --resume saved
run 0 ckpt prune --keep 0 saved
says 'freed'
# a folder in use, and folders that are none
exec 9>saved/lock
flock 9
run 4 ckpt prune --keep 0 saved
tells 'another process'
exec 9>&-
rm -f saved/lock
mkdir plain
run 3 ckpt prune --keep 0 plain
tells 'expected a run folder'
equal 'nothing is left behind' "$(ls plain)" ''
echo '{' >saved/last.json
run 3 ckpt prune --keep 0 saved
tells 'not known'
run 2 ckpt prune --keep 0
finish
