#!/bin/bash
# ttv nvs render: a path, listed frames beside the truth, what is refused.
. "$(dirname "$0")/nvs_lib.sh"

run 0 nvs train "${tiny[@]}" --steps 10 -o model
render=(nvs render --checkpoint model --data-dir rooms --split test)
scene=$(basename "$(ls rooms/test/*.txt | head -n 1)" .txt)

# ---- a path: its ends are the cameras of the input views ----
run 0 "${render[@]}" --input-views 2,8 --frames 7 -o path
says "7 views of scene $scene in path"
equal 'files' "$(ls path | tr '\n' ' ')" "$(printf 'frame-%05d.png ' 0 1 2 3 4 5 6)render.apng sheet.png "
equal 'animation' "$(grep -ac acTL path/render.apng)" 1
run 0 "${render[@]}" --input-views 2,8 --frames 7 -o again
checks=$((checks + 1))
diff -r path again >/dev/null || fail 'the same call renders other pictures'
run 0 "${render[@]}" --input-views 2,8 --poses inputs --frames 7 -o fixed
run 0 "${render[@]}" --input-views 2,8 --poses inputs --targets 2,8 -o ends
run 0 psnr fixed/frame-00000.png ends/frame-00000.png --min-psnr 50
run 0 psnr fixed/frame-00006.png ends/frame-00001.png --min-psnr 50
run 0 "${render[@]}" --input-views 0,4,9 --frames 5 -o three
run 0 psnr three/frame-00000.png three/frame-00002.png

# ---- listed frames: the numbers of ttv nvs eval, of ttv psnr where a view is its file ----
echo "{\"$scene\": {\"context\": [2, 8], \"target\": [3, 5]}}" >index.json
run 0 nvs eval --checkpoint model --data-dir rooms --index index.json --json
command -v python3 >/dev/null && want=$(json_get out '"%.4f" % d["model"]["psnr"]')
run 0 "${render[@]}" --scene "$scene" --input-views 2,8 --targets 3,5 -o listed --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'PSNR as nvs eval' "$(json_get out '"%.4f" % d["psnr"]')" "$want"
    equal 'compared' "$(json_get out 'd["compared"]')" 2
else
    skip 'PSNR against nvs eval: no python3'
fi
equal 'comparisons' "$(ls listed | grep compare | tr '\n' ' ')" 'compare-00003.png compare-00005.png '
run 0 data synth-scenes square --split test --scenes 1 --frames 8 --size 32x32 --seed 6 --samples 1
mapfile -t frame < <(ls square/test/*/*.png | sort -t/ -k4 -n)
run 0 nvs render --checkpoint model --data-dir square --input-views 0,7 --targets 3 -o square_out
shown=$(sed -n 's/^frame 3: psnr \([0-9.]*\) dB.*/\1/p' out)
run 0 psnr "${frame[3]}" square_out/frame-00000.png
says "psnr $shown dB"
rm "${frame[3]}"
run 0 nvs render --checkpoint model --data-dir square --input-views 0,7 --targets 3,4 -o no_truth
tells 'frame 3 has no picture'
says 'over 1'

# ---- what is refused ----
run 2 "${render[@]}" --input-views 2,8 -o path
tells 'not empty'
run 0 "${render[@]}" --input-views 2,8 --frames 7 -o path --overwrite
run 2 nvs render --data-dir rooms
tells '--checkpoint and --data-dir are needed'
run 2 "${render[@]}" --input-views 2 -o x
tells 'two frames or more'
run 2 "${render[@]}" --input-views 2,99 -o x
tells 'frames 0 to 11, not 99'
run 2 "${render[@]}" --input-views 2,-1 -o x
run 2 "${render[@]}" --input-views 2,b -o x
run 2 "${render[@]}" --input-views 2,8 --targets , -o x
run 2 "${render[@]}" --scene nobody -o x
run 3 "${render[@]}" --input-views 2,8 --set nvs_model.width=64 -o x
run 3 nvs render --checkpoint model --data-dir square --input-views 0,3 -o x
run 4 "${render[@]}" --input-views 2,8 -o /proc/nowhere
checks=$((checks + 1))
[ ! -e x ] || fail 'a refused call left a folder'

finish
