#!/bin/bash
# ttv export: weights in half the bytes, which score as the run's do; what is refused.
. "$(dirname "$0")/nvs_lib.sh"

run 0 nvs train "${tiny[@]}" --steps 20 --val-interval 0 --model-ema -o model
run 0 export model half.safetensors --weights ema --json
json_ok out
run 0 export model whole.safetensors --dtype f32 --weights raw
checks=$((checks + 1))
small=$(wc -c <half.safetensors) large=$(wc -c <whole.safetensors)
[ $((small * 10)) -lt $((large * 6)) ] || fail "$small bytes are not about half of $large"
run 0 inspect --tensors half.safetensors
says 'BF16'
eval=(nvs eval --data-dir rooms --gap-min 4 --gap-max 11)
run 0 "${eval[@]}" --checkpoint model --weights raw
table=$out
run 0 "${eval[@]}" --checkpoint whole.safetensors
equal 'f32 scores' "$out" "$table"
run 0 "${eval[@]}" --checkpoint half.safetensors --json
if command -v python3 >/dev/null; then
    half=$(json_get out 'd["model"]["psnr"]')
    run 0 "${eval[@]}" --checkpoint model --weights ema --json
    equal 'bf16 weights score alike' "$(json_get out "abs(d['model']['psnr'] - $half) < 0.1")" True
fi
run 0 export half.safetensors again.safetensors
checks=$((checks + 1))
cmp -s half.safetensors again.safetensors || fail 'exporting bf16 weights changes them'

run 2 export model
run 2 export model half.safetensors
tells 'exists'
run 0 export model half.safetensors --overwrite --weights ema
run 4 export nowhere x.safetensors
run 2 export model x.safetensors --dtype f8
run 4 export model /nowhere/x.safetensors
echo rubbish >rubbish.safetensors
run 3 export rubbish.safetensors x.safetensors
run 3 export half.safetensors x.safetensors --weights raw
tells 'ema'
# ---- a folder for a hub ----
run 3 export model hub/
tells 'classifiers'
checks=$((checks + 1))
[ ! -e hub ] || fail 'a refused export left a folder'
if [ -f "$SOURCE/data/digits.tar" ]; then
    printf '0\tzero, "null"\n1\tone\n' >names.tsv
    run 0 train --model custom --img-size 16 --patch-size 4 --width 32 --depth 1 --heads 2 --epochs 1 --warmup-epochs 0 \
        --data-dir "$SOURCE/data/digits.tar" --set data.train_limit=200 --batch-size 50 --class-names names.tsv -o digits -q
    run 0 export --dtype f32 digits hub/
    says 'hub/model.safetensors'
    equal 'files' "$(ls hub | tr '\n' ' ')" 'README.md config.json model.safetensors '
    json_ok hub/config.json
    equal 'config.json' "$(json_get hub/config.json 'd["architecture"], d["num_classes"], d["num_features"], d["pretrained_cfg"]["input_size"], d["label_names"][9], d["label_descriptions"]["0"]')" "('custom', 10, 32, [3, 16, 16], '9', 'zero, \"null\"')"
    run 0 eval --checkpoint digits -q --json --data-dir "$SOURCE/data/digits.tar"
    score=$(json_get out 'd["top1_count"], d["loss"]')
    run 0 eval --checkpoint hub -q --json --data-dir "$SOURCE/data/digits.tar"
    equal 'score of the folder' "$(json_get out 'd["top1_count"], d["loss"]')" "$score"
    run 2 export digits hub
    tells 'hub/model.safetensors exists'
    mkdir home && echo mine >home/README.md
    run 2 export digits home
    tells 'home/README.md exists'
    equal 'a README of the user' "$(cat home/*)" mine
    run 0 export digits hub --overwrite --json
    json_ok out
fi
finish
