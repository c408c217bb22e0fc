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
finish
