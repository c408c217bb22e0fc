#!/bin/bash
# ttv inspect: reports of files and run folders, --verify against every kind of damage, files that are no checkpoint.
. "$(dirname "$0")/model_lib.sh"

# ---- reports ----
run 0 inspect "$RUN"
says 'ViTTT of custom size: width 32, depth 2, heads 2, patch 4, MLP ratio 4, 10 classes'
says 'parameters   34,538'
says 'ttv.classes: 10 names'
quiet_err
run 0 inspect "$WEIGHTS" --tensors
says 'blocks.1.attn.w3'
says '[32, 1, 3, 3]'
run 0 inspect "$WEIGHTS" --stats
says 'non-finite'
run 0 inspect --json --stats "$RUN"
json_ok out
if command -v python3 >/dev/null; then
    equal 'parameters' "$(json_get out 'd["parameters"]')" 34538
    equal 'tensors' "$(json_get out 'len(d["tensors"])')" 40
    equal 'sum of bytes' "$(json_get out 'sum(t["bytes"] for t in d["tensors"]) == d["tensor_bytes"]')" True
    equal 'norm weights' "$(json_get out '[t["min"] > 0.5 for t in d["tensors"] if t["name"] == "norm.weight"]')" '[True]'
    equal 'kind' "$(json_get out 'd["model"]["kind"]')" vittt
    equal 'whole' "$(json_get out '"whole" in d')" False
fi
run 0 inspect --verify "$RUN" "$WEIGHTS"
says 'verified     every tensor of the model is there'
run 0 inspect --verify --json "$RUN"
json_ok out
[ -z "$(command -v python3)" ] || equal 'whole' "$(json_get out 'd["whole"]')" True
state=$(find "$RUN/checkpoints" -name '*.state.safetensors' | sort | tail -n 1)
run 0 inspect "$state"
says 'optimiser state'

# ---- damage that --verify finds ----
damaged() { rm -rf copy && cp -r "$RUN" copy; }
damaged
file=copy/checkpoints/$(basename "$WEIGHTS")
size=$(wc -c <"$file")
poke "$file" $((size - 3)) '\x7f'
run 1 inspect --verify copy
run 1 ckpt verify copy
says "$(basename "$WEIGHTS")"
says 'CRC'
damaged
truncate -s -5 copy/checkpoints/"$(basename "$state")"
run 1 inspect --verify copy
says "$(basename "$state")"
run 1 inspect --verify copy --json
json_ok out
damaged
rm copy/checkpoints/"$(basename "$WEIGHTS")"
run 1 inspect --verify copy
damaged
echo '{' >copy/last.json
run 1 inspect --verify copy
says 'last.json'

cp "$WEIGHTS" nan.safetensors
poke nan.safetensors $((size - 4)) '\x00\x00\xc0\x7f'
run 1 inspect --verify nan.safetensors
says '1 non-finite of'
run 0 inspect nan.safetensors --stats
says 'non-finite   1'

# ---- other models, by hand-made files ----
make() { # FILE NAME DTYPE SHAPE BYTES [NAME...]: one tensor of zeros
    local header="{\"$2\":{\"dtype\":\"$3\",\"shape\":$4,\"data_offsets\":[0,$5]}}"
    local n=${#header} pad
    pad=$(((8 - n % 8) % 8))
    header="$header$(printf '%*s' "$pad" '')"
    n=${#header}
    printf "\\x$(printf %02x $((n % 256)))\\x$(printf %02x $((n / 256)))\\0\\0\\0\\0\\0\\0" >"$1"
    printf '%s' "$header" >>"$1"
    head -c "$5" /dev/zero >>"$1"
}
make other.safetensors some.weight F32 '[2,3]' 24
run 0 inspect other.safetensors --tensors
says 'no ViTTT'
says 'some.weight'
run 0 inspect --verify other.safetensors
run 0 inspect "$SOURCE/data/nvs_demo.safetensors"
says 'LaCT-NVS'
run 0 inspect --json "$SOURCE/data/nvs_demo.safetensors"
says '"kind":"lact_nvs"'
run 0 train --model custom --img-size 16 --patch-size 4 --width 32 --depth 1 --heads 2 --crop-pct 1 --mixer lact --batch-size 32 \
    --max-steps 1 --no-progress --workers 1 --data-dir "$DIGITS" --set data.train_limit=64 --set data.val_limit=10 -o "$WORK/lact"
run 0 inspect --json "$WORK/lact"
says '"kind":"vittt_sequence"'
for whole in "$SOURCE/data/nvs_demo.safetensors" "$WORK/lact"; do
    run 0 inspect --verify "$whole"
    says 'every tensor of the model is there'
done
run 0 inspect --verify --json other.safetensors
says '"whole":true,"compared":false'
if command -v python3 >/dev/null; then # without the last tensor, and described as something else
    python3 - "$SOURCE/data/nvs_demo.safetensors" "$WORK/lact/last.safetensors" <<'PY'
import json, struct, sys
def change(path, out, drop, change_from, change_to):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    h = json.loads(b[8:8 + n])
    end = len(b)
    if drop:
        last = max((k for k in h if k != "__metadata__"), key=lambda k: h[k]["data_offsets"][1])
        end = 8 + n + h.pop(last)["data_offsets"][0]
    h["__metadata__"]["ttv.config"] = h["__metadata__"]["ttv.config"].replace(change_from, change_to)
    t = json.dumps(h).encode()
    t += b" " * (-len(t) % 8)
    open(out, "wb").write(struct.pack("<Q", len(t)) + t + b[8 + n:end])
change(sys.argv[1], "short.safetensors", True, "", "")
change(sys.argv[1], "variant.safetensors", False, "variant = base", "variant = V7")
change(sys.argv[2], "lact_short.safetensors", True, "", "")
PY
    run 1 ckpt verify short.safetensors
    says "is missing"
    says 'NOT whole: 1 fault'
    run 1 ckpt verify lact_short.safetensors
    says "is missing"
    run 1 ckpt verify variant.safetensors
    says 'V7'
    run 3 nvs render --checkpoint short.safetensors --data-dir "$SOURCE/data/motorcycle.tar" -o views
    equal 'the file is named once' "$(grep -o 'short.safetensors:' err | wc -l)" 1
fi
run 0 inspect --json other.safetensors
says '"kind":"unknown"'
make block.safetensors blocks.0.mlp.fc1.weight F32 '[2,3]' 24
run 0 inspect block.safetensors
says 'no ViTTT'
make hierarchical.safetensors layers.0.blocks.0.attn.w1 BF16 '[4]' 8
run 0 inspect hierarchical.safetensors
says 'H-ViTTT'
make escape.safetensors 'evil\u001b[31m' F16 '[1]' 2
run 0 inspect escape.safetensors --tensors
checks=$((checks + 1))
case $out in *$'\033'*) fail 'an escape sequence of a tensor name reaches the terminal' ;; esac
run 0 inspect escape.safetensors --tensors --json
json_ok out

# ---- shards ----
make part1.safetensors a F32 '[2]' 8
make part2.safetensors b BF16 '[3]' 6
printf '{"metadata":{},"weight_map":{"a":"part1.safetensors","b":"part2.safetensors"}}' >w.safetensors.index.json
run 0 inspect --verify w.safetensors.index.json
says 'in 2 shards'
says '1 F32, 1 BF16'
printf '{"weight_map":{"a":"part1.safetensors","b":"../part2.safetensors"}}' >w.safetensors.index.json
run 3 inspect w.safetensors.index.json
rm part2.safetensors
printf '{"weight_map":{"a":"part1.safetensors","b":"part2.safetensors"}}' >w.safetensors.index.json
run 4 inspect w.safetensors.index.json
tells 'part2.safetensors'

# ---- what is no checkpoint at all: exit 3 with the reason, 4 where the system refuses ----
refuse() { # CODE TEXT FILE
    run "$1" inspect "$3"
    tells "$2"
    quiet_out
}
refuse 4 'missing.safetensors' missing.safetensors
: >empty.safetensors
refuse 3 'empty.safetensors' empty.safetensors
head -c 1000 "$WEIGHTS" >cut.safetensors
refuse 3 'cut.safetensors' cut.safetensors
head -c -4 "$WEIGHTS" >short.safetensors
refuse 3 'short.safetensors' short.safetensors
(cat "$WEIGHTS"; echo more) >long.safetensors
refuse 3 'long.safetensors' long.safetensors
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n' >lfs.safetensors
refuse 3 'LFS' lfs.safetensors
printf 'PK\003\004rest of a zip, as torch.save writes it' >model.pth
refuse 3 'model.pth' model.pth
printf '\200\002}q\000.' >pickle.pt
refuse 3 'pickle' pickle.pt
printf '<!DOCTYPE html><html>not found</html>' >page.safetensors
refuse 3 'HTML' page.safetensors
refuse 3 'flower.jpg' "$PHOTOS/flower.jpg"
mkfifo pipe.safetensors
refuse 3 'FIFO' pipe.safetensors
mkdir folder
run 3 inspect folder
tells 'folder'
make overlap.safetensors a F32 '[2]' 4
refuse 3 'overlap.safetensors' overlap.safetensors
make unknown.safetensors a F7 '[1]' 4
refuse 3 'F7' unknown.safetensors
cp "$WEIGHTS" "$(printf 'new\nline \xff.safetensors')"
run 0 inspect --json "$(printf 'new\nline \xff.safetensors')"
json_ok out
cp "$WEIGHTS" ./-dash.safetensors
run 0 inspect -- -dash.safetensors
run 2 inspect -dash.safetensors

# ---- usage, several files, a full disk ----
run 2 inspect
tells 'no checkpoint'
run 2 inspect --tensor "$RUN"
tells 'did you mean --tensors'
run 4 inspect "$RUN" missing.safetensors
says 'parameters   34,538'
if [ -w /dev/full ]; then
    "$TTV" inspect "$RUN" >/dev/full 2>err
    equal 'exit code on /dev/full' $? 4
fi
run 0 inspect --help
says '--verify'
finish
