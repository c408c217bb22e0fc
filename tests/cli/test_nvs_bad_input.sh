#!/bin/bash
# Bad scenes in front of nvs train, eval and render: each named with file and line, left out, counted; the others go on.
. "$(dirname "$0")/nvs_lib.sh"

run 0 nvs train "${tiny[@]}" --steps 6 --val-split none -o model

# ---- one fault a scene; the last scene is whole ----
run 0 data synth-scenes bad --scenes 12 --frames 8 --size 48x32 --seed 9 --samples 1
mapfile -t name < <(basename -s .txt bad/train/*.txt)
line3() { # SCENE AWK-PROGRAM: changes the camera of line 3
    awk "NR == 3 {$2} {print}" "bad/train/${name[$1]}.txt" >changed && cp changed "bad/train/${name[$1]}.txt"
}
line3 0 '$0 = $0 " 7"'         # 20 columns
line3 1 'NF = 18'              # 18 columns
line3 2 '$2 = "nan"'           # not a number
line3 3 '$3 = 0'               # focal length
line3 4 '$8 += 0.2'            # rotation
awk 'NR == 2 {first = $1} NR == 4 {$1 = first + 1} {print}' "bad/train/${name[5]}.txt" >changed && cp changed "bad/train/${name[5]}.txt"
awk 'NR == 3 {$1 = t} {t = $1; print}' "bad/train/${name[6]}.txt" >changed && cp changed "bad/train/${name[6]}.txt" # repeats
head -n 1 "bad/train/${name[7]}.txt" >changed && cp changed "bad/train/${name[7]}.txt"                              # URL only
head -n 2 "bad/train/${name[8]}.txt" >changed && cp changed "bad/train/${name[8]}.txt"                              # one frame
cp "$SOURCE/data/photos/chelsea.png" "$(ls "bad/train/${name[9]}"/*.png | sed -n 3p)"                               # another size
awk 'NR > 2 {$11 = x; $15 = y; $19 = z; for (i = 8; i < 19; i++) if (i != 11 && i != 15) $i = r[i]}
     NR == 2 {x = $11; y = $15; z = $19; for (i = 8; i < 19; i++) r[i] = $i} {print}' \
    "bad/train/${name[10]}.txt" >changed && cp changed "bad/train/${name[10]}.txt" # all cameras in one place

report=("${name[0]}.txt:3: 20 columns" "${name[1]}.txt:3: 18 columns" "${name[2]}.txt:3: column 2 (fx)" "${name[3]}.txt:3: column 3"
    "${name[4]}.txt:3: columns 8 to 18" "${name[5]}.txt:4: column 1 (timestamp): '1' is earlier than line 3" "${name[6]}.txt:3: column 1 (timestamp): '0' repeats"
    "${name[7]}.txt: only a URL")
run 1 data check bad
for text in "${report[@]}"; do says "$text"; done
says 'only one camera'

# ---- eval: every scene of the index is accounted for ----
{
    printf '{"nobody": {"context": [0, 5], "target": [1]},\n"nothing": null'
    for i in 0 1 2 3 4 5 6 7 8 9 10 11; do printf ', "%s": {"context": [0, 7], "target": [2, 4]}' "${name[$i]}"; done
    printf '}\n'
} >index.json
run 3 nvs eval --checkpoint model --data-dir bad --split train --index index.json
for text in "${report[@]}"; do tells "$text"; done
tells "${name[9]}: failed: bad/train/${name[9]}/"
tells ': 451x300 pixels, but frame 0 of the scene has 48x32'
tells 'nobody: missing: the scene is not in the data (index.json:1)'
says '2 evaluated, 1 null, 2 missing, 8 faulty, 1 failed'
run 3 nvs eval --checkpoint model --data-dir bad --split train --index index.json --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'counts' "$(json_get out 'd["evaluated"] + d["null"] + d["missing"] + d["faulty"] + d["failed"] == len(d["scenes"])')" True
    equal 'one place' "$(json_get out "[s['model']['psnr'] > 3 for s in d['scenes'] if s['scene'] == '${name[10]}']")" '[True]'
fi
printf '{\n"%s": {"context": [0, 7], "target": [8]}}\n' "${name[11]}" >frame.json
run 3 nvs eval --checkpoint model --data-dir bad --split train --index frame.json
tells 'no frame 8: 8 cameras (frame.json:2)'

# ---- train: draws from the usable ones, replaces what cannot be loaded ----
bad=("${tiny[@]}" --data-dir bad --gap-max 7 --val-split none --log-interval 1)
run 0 nvs train "${bad[@]}" --steps 8 -o trained
tells '3 scenes to draw from (3 synthetic), 0 too short, 9 unusable'
for i in 0 1 2 3 4; do tells "unusable: bad/train/${report[$i]}"; done # the first five
tells "and 4 more ('ttv data check' lists all)"
tells 'samples could not be loaded and were replaced'
checks=$((checks + 1))
grep -q nan trained/metrics.csv && fail 'a number is not finite'
equal 'steps' "$(grep -c '^train,' trained/metrics.csv)" 8
run 3 nvs train "${bad[@]}" --steps 8 --val-split train --val-index frame.json
tells 'no frame 8'

printf '{"nobody": {"context": [0, 5], "target": [1]},\n"%s": {"context": [0, 7], "target": [3, 8]},\n"%s": {"context": [0, 7], "target": [3]}}\n' \
    "${name[11]}" "${name[10]}" >some.json
run 0 nvs train "${bad[@]}" --steps 6 --val-split train --val-index some.json -o judged
tells 'validation: 1 of 1 scenes that can be rendered; 0 null, 2 missing, 0 faulty'
tells 'nobody: missing: the scene is not in the data (some.json:1)'
tells "${name[11]}: missing: bad/train/${name[11]}.txt: no frame 8: 8 cameras (some.json:2)"

# by policy: the first fault ends the run before it begins, or a picture that cannot be used when its turn comes
run 3 nvs train "${bad[@]}" --steps 8 --on-corrupt fail -o none
tells "ttv: error: 8 of 12 scenes have faulty camera files (--on-corrupt fail), the first: bad/train/${report[0]}"
[ ! -e none ] || fail 'a refused run left a folder'
mkdir -p sizes/train
for i in 9 11; do cp -r "bad/train/${name[$i]}" "bad/train/${name[$i]}.txt" sizes/train; done
run 3 nvs train "${tiny[@]}" --data-dir sizes --gap-max 7 --val-split none --steps 30 --on-corrupt fail -o sizes_run
tells "sizes/train/${name[9]}/"
tells 'pixels, but frame'
run 0 nvs train "${tiny[@]}" --data-dir sizes --gap-max 7 --val-split none --steps 6 -o sizes_run2
# those of a validation as well
printf '{"%s": {"context": [0, 7], "target": [3]},\n"%s": {"context": [0, 7], "target": [2, 4]}}\n' "${name[11]}" "${name[9]}" >sizes.json
judged=("${tiny[@]}" --steps 6 --val-dir sizes --val-split train --val-index sizes.json)
run 0 nvs train "${judged[@]}" -o sizes_run3
tells "validation: scene ${name[9]} is left out: sizes/train/${name[9]}/"
run 3 nvs train "${judged[@]}" --on-corrupt fail -o sizes_run4
tells "validation: scene ${name[9]}: sizes/train/${name[9]}/"

# ---- render: a scene that cannot be used, by name ----
for i in 0 7 8; do
    run 3 nvs render --checkpoint model --data-dir bad --scene "${name[$i]}" --input-views 0,1 -o no
    tells "scene ${name[$i]} is not usable: "
done
run 0 nvs render --checkpoint model --data-dir bad --scene "${name[10]}" --input-views 0,7 --frames 3 -o place
run 2 nvs render --checkpoint model --data-dir bad --scene nobody --input-views 0,1 -o no
run 2 nvs render --checkpoint model --data-dir bad --scene "${name[11]}" --input-views 0,8 -o no
tells 'frames 0 to 7'
run 2 nvs render --checkpoint model --data-dir bad --view-width 33 -o no
tells 'not a multiple of patch'
run 3 nvs render --checkpoint model --data-dir bad --set nvs_model.variant=V4 -o no
tells 'trained with variant base'
checks=$((checks + 1))
[ ! -e no ] || fail 'a refused render left a folder'

# ---- another size of views than in training: told with the file, and scored ----
run 0 nvs eval --checkpoint model --data-dir rooms --view-height 48 --view-width 40
tells 'model/checkpoints/step-00000006.safetensors was trained on views of 32x32 pixels, it runs on 40x48: expect worse ones'
run 0 nvs render --checkpoint model --data-dir rooms --split test --view-height 48 --frames 2 -o tall
tells 'was trained on views of 32x32 pixels, it runs on 32x48: expect worse ones'
# ---- the one kind of model where the other is expected ----
run 3 eval --checkpoint model --data-dir rooms
tells "no classifier: novel views are scored by 'ttv nvs eval'"

# ---- weights that hold a NaN: no black pictures, no scores of them ----
if command -v python3 >/dev/null; then
    python3 - model/last.safetensors spoilt.safetensors <<'PY'
import json, struct, sys
b = bytearray(open(sys.argv[1], "rb").read())
n = struct.unpack("<Q", b[:8])[0]
at = json.loads(b[8:8 + n])["image_token_decoder.1.weight"]["data_offsets"][0]
b[8 + n + at:12 + n + at] = struct.pack("<f", float("nan"))
open(sys.argv[2], "wb").write(b)
PY
    run 6 nvs eval --checkpoint spoilt.safetensors --data-dir rooms
    tells 'are not finite'
    quiet_out
    run 6 nvs render --checkpoint spoilt.safetensors --data-dir rooms --split test --frames 2 -o spoilt
    tells 'are not finite'
    checks=$((checks + 1))
    [ ! -e spoilt ] || fail 'pictures were written'
else
    skip 'a NaN in weights: no python3 to write one'
fi

finish
