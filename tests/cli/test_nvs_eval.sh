#!/bin/bash
# ttv nvs eval: the table, baselines against ttv psnr, indices, counts with reasons.
. "$(dirname "$0")/nvs_lib.sh"

run 0 nvs train "${tiny[@]}" --steps 10 -o model
eval=(nvs eval --checkpoint model --data-dir rooms)

# ---- a generated index, written and read back ----
run 0 "${eval[@]}" --gap-min 4 --gap-max 11 --write-index index.json
says 'mean over scenes'
says '2 evaluated, 0 null, 0 missing, 0 faulty, 0 failed'
json_ok index.json
table=$out
run 0 "${eval[@]}" --index index.json
equal 'the same index' "$out" "$table"
run 0 "${eval[@]}" --index index.json --precision bf16
run 0 nvs eval --checkpoint model/best.safetensors --data-dir rooms --index index.json
run 0 nvs eval -c model/config.ini --checkpoint model --data-dir rooms --index index.json
run 0 "${eval[@]}" --split train --inputs 3 --targets 2
says '4 evaluated'

# ---- what the numbers are of ----
run 0 "${eval[@]}" --index index.json
tells 'views of 32x32, activations F32, frame of the poses: all; index: index.json'
tells "standard error of the model's mean PSNR over 2 scenes"
run 0 "${eval[@]}" --index index.json --json --poses inputs --precision bf16
json_ok out
equal 'protocol' "$(json_get out '" ".join(str(d[k]) for k in ("checkpoint", "data", "split", "index", "poses", "width", "precision"))')" \
    'model rooms test index.json inputs 32 BF16'
equal 'standard error' "$(json_get out 'abs(2 * d["psnr_standard_error"] - abs(d["scenes"][0]["model"]["psnr"] - d["scenes"][1]["model"]["psnr"])) < 1e-9')" True

# ---- kept pictures: ttv psnr finds the same numbers in them ----
run 0 "${eval[@]}" --index index.json --save-images kept --json
equal 'kept' "$(find kept/truth kept/render -name '*.png' | wc -l)" 12
checks=$((checks + 1))
for picture in $(grep -o 'src="[^"]*"' kept/index.html | sed 's/src="//; s/"//' | sort -u); do
    [ -f "kept/$picture" ] || fail "the page shows $picture, which is not there"
done
equal 'pictures of the page' "$(grep -o 'src="[^"]*"' kept/index.html | sort -u | wc -l)" 16
if command -v python3 >/dev/null; then
    model=$(json_get out '"%.6f %.6f" % (d["model"]["psnr"], d["model"]["ssim"])')
    run 0 psnr kept/truth kept/render -r --average scene --json
    equal 'PSNR and SSIM of the kept pictures' "$(json_get out '"%.6f %.6f" % (d["psnr"], d["ssim"])')" "$model"
else
    skip 'kept pictures against ttv psnr: no python3'
fi
run 4 "${eval[@]}" --index index.json --save-images index.json/x

# ---- LPIPS: only with weights, then what ttv psnr finds in the kept pictures, by view and on average ----
run 0 "${eval[@]}" --index index.json
tells 'LPIPS was not computed: no weights were given (--lpips-weights)'
case $out in *lpips*) fail 'a column of LPIPS without weights' ;; esac
run 4 "${eval[@]}" --index index.json --lpips-weights nowhere.safetensors
run 3 "${eval[@]}" --index index.json --lpips-weights model/best.safetensors
tells 'features.0.weight'
if command -v python3 >/dev/null; then
    lpips_weights lpips.safetensors
    run 0 "${eval[@]}" --index index.json --lpips-weights lpips.safetensors --per-view
    says 'lpips'
    says '  frame '
    case $err in *LPIPS*) fail 'LPIPS was computed, but stderr says it was not' ;; esac
    run 0 "${eval[@]}" --index index.json --lpips-weights lpips.safetensors --json
    json_ok out
    equal 'no note' "$(json_get out '"lpips_note" in d')" False
    equal 'baselines too' "$(json_get out 'd["nearest"]["lpips"] > 0 and d["mean"]["lpips"] > 0')" True
    equal 'the mean is that of the views' "$(json_get out \
        'abs(d["model"]["lpips"] - sum(t["model"]["lpips"] for s in d["scenes"] for t in s["targets"]) / 6) < 1e-12')" True
    lpips=$(json_get out '"%.6f" % d["model"]["lpips"]')
    first=$(json_get out '"%.6f" % d["scenes"][0]["targets"][0]["model"]["lpips"]')
    view=$(json_get out '"%s/%06d.png" % (d["scenes"][0]["scene"], d["scenes"][0]["targets"][0]["frame"])')
    run 0 psnr kept/truth kept/render -r --average scene --json --lpips-weights lpips.safetensors
    equal 'LPIPS of the kept pictures' "$(json_get out '"%.6f" % d["lpips"]')" "$lpips"
    run 0 psnr "kept/truth/$view" "kept/render/$view" --json --lpips-weights lpips.safetensors
    equal 'LPIPS of one view' "$(json_get out '"%.6f" % d["lpips"]')" "$first"
else
    skip 'LPIPS: no python3'
fi

# ---- baselines: what ttv psnr says about the files, where a view is its file ----
run 0 data synth-scenes square --split test --scenes 1 --frames 8 --size 32x32 --seed 6 --samples 1
scene=$(basename square/test/*.txt .txt)
mapfile -t frame < <(ls "square/test/$scene"/*.png | sort -t/ -k4 -n)
echo "{\"$scene\": {\"context\": [0, 7], \"target\": [1]}}" >one.json
run 0 nvs eval --checkpoint model --data-dir square --index one.json --json
json_ok out
if command -v python3 >/dev/null; then
    nearest=$(json_get out '"%.5f %.5f" % (d["nearest"]["psnr"], d["nearest"]["ssim"])')
    run 0 psnr "${frame[1]}" "${frame[0]}" --json
    equal 'nearest' "$nearest" "$(json_get out '"%.5f %.5f" % (d["psnr"], d["ssim"])')"
else
    skip 'baselines against ttv psnr: no python3'
fi

# ---- a target that is an input: identical to the nearest view, no finite PSNR ----
echo "{\"$scene\": {\"context\": [0, 7], \"target\": [7]}}" >input.json
run 0 nvs eval --checkpoint model --data-dir square --index input.json
says 'inf'
run 0 nvs eval --checkpoint model --data-dir square --index input.json --json
json_ok out

# ---- scenes that are not evaluated: counted, with reasons ----
cp -r rooms broken
mapfile -t name < <(basename -s .txt broken/test/*.txt)
for picture in "broken/test/${name[0]}"/*.png; do head -c 200 "$picture" >cut.png && cp cut.png "$picture"; done
cat >mixed.json <<EOF
{"${name[0]}": {"context": [0, 8], "target": [4]}, "${name[1]}": {"context": [0, 8], "target": [4, 5]},
 "nobody": {"context": [0, 5], "target": [1]}, "nothing": null}
EOF
run 3 nvs eval --checkpoint model --data-dir broken --index mixed.json
says '1 evaluated, 1 null, 1 missing, 0 faulty, 1 failed'
tells 'nobody: missing: '
tells "${name[0]}: failed: "
run 3 nvs eval --checkpoint model --data-dir broken --index mixed.json --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'states' "$(json_get out '" ".join(s["state"] for s in d["scenes"])')" 'failed evaluated missing null'
    equal 'views' "$(json_get out 'd["views"]')" 2
fi
run 0 "${eval[@]}" --index mixed.json # without the broken pictures: missing and null are normal
says '2 evaluated, 1 null, 1 missing, 0 faulty, 0 failed'
sed -i '3s/ [^ ]*$//' "broken/test/${name[1]}.txt"
run 3 nvs eval --checkpoint model --data-dir broken --index mixed.json
says '0 evaluated, 1 null, 1 missing, 1 faulty, 1 failed'
tells '18 columns'
tells 'no scene was evaluated'

# ---- what is refused ----
run 2 nvs eval --data-dir rooms
tells '--checkpoint and --data-dir are needed'
run 2 "${eval[@]}" stray
run 3 "${eval[@]}" --split nowhere
run 2 "${eval[@]}" --view-height 30
tells 'not a multiple of patch'
run 3 "${eval[@]}" --set nvs_model.width=64
run 4 "${eval[@]}" --index nowhere.json
echo '{"a": [1]}' >bad.json
run 3 "${eval[@]}" --index bad.json
tells 'bad.json'
run 4 nvs eval --checkpoint nowhere --data-dir rooms
run 2 "${eval[@]}" --inputs 40 --targets 40
tells 'at most 64 views'

# the same index without a model, and what it finds among the scenes
run 0 data index rooms alone.json --gap-min 4 --gap-max 11
says '2 scenes: 2 ready, 0 null, 0 missing, 0 faulty'
checks=$((checks + 1))
cmp -s index.json alone.json || fail 'data index and nvs eval --write-index differ'
run 0 data index rooms other.json --gap-min 4 --gap-max 11 --seed 9
checks=$((checks + 1))
! cmp -s other.json alone.json || fail 'the seed does not matter'
sed 's/{/{"gone":{"context":[0,9],"target":[4]},"no":null,/' alone.json >more.json
run 0 data index --index more.json rooms --json
json_ok out
says '"scenes":4,"ready":2,"null":1,"missing":1,"faulty":0'
tells 'gone: missing'
run 1 data index --index more.json rooms --split train
tells 'missing'
run 2 data index rooms
run 2 data index
run 2 data index rooms x.json --write-index y.json
tells 'named twice'
run 3 data index rooms x.json --split none
run 4 data index nowhere x.json
finish
