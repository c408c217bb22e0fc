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

# ---- spirals, orbits, loops: closed, other than the path, of the size of the inputs ----
for kind in spiral orbit; do
    run 0 "${render[@]}" --input-views 2,8 --trajectory $kind --frames 6 --format none -o $kind
    equal "$kind" "$(ls $kind | tr '\n' ' ')" "$(printf 'frame-%05d.png ' 0 1 2 3 4 5)sheet.png "
    run 0 "${render[@]}" --input-views 2,8 --trajectory $kind --path-size 2 --frames 6 --format none -o big_$kind
    checks=$((checks + 1))
    ! cmp -s $kind/frame-00001.png big_$kind/frame-00001.png || fail "--path-size does nothing to a $kind"
done
run 0 "${render[@]}" --input-views 2,8 --trajectory spiral --rounds 1 --frames 6 --format none -o one_round
run 0 "${render[@]}" --input-views 2,8 --trajectory orbit --turn 360 --frames 6 --format none -o around
run 0 "${render[@]}" --input-views 2,8 --poses inputs --loop --frames 8 --format none -o loop
run 0 psnr loop/frame-00004.png ends/frame-00001.png --min-psnr 50
run 2 "${render[@]}" --input-views 2,8 --trajectory circle -o x
run 2 "${render[@]}" --input-views 2,8 --trajectory orbit --turn 400 -o x
run 2 "${render[@]}" --input-views 2,8 --path-size 0 -o x
run 3 "${render[@]}" --input-views 2,2 --trajectory spiral -o x
tells 'stand at one place'

# ---- cameras from a file: lines as they stand in the scene's file, in another order, twice ----
lines=rooms/test/$scene.txt
for line in 10 4 10; do sed -n ${line}p "$lines"; done >path.txt # frames 8, 2, 8
run 0 "${render[@]}" --input-views 2,8 --poses inputs --cameras path.txt --format none -o listed_cameras
says '3 views'
for pair in 0:1 1:0 2:1; do
    run 0 psnr listed_cameras/frame-0000${pair%:*}.png ends/frame-0000${pair#*:}.png --metric psnr
    says inf
done
sed -n '1p;4p' "$lines" | tr '\n' '\r' | sed 's/\r/\r\n/g' >crlf.txt
run 0 "${render[@]}" --input-views 2,8 --poses inputs --cameras crlf.txt --format none -o crlf
run 0 psnr crlf/frame-00000.png ends/frame-00000.png --metric psnr
says inf
if command -v python3 >/dev/null; then
    python3 - path.txt >opencv_cameras.json <<'PY'
import json, sys
views = []
for line in open(sys.argv[1]):
    n = [float(x) for x in line.split()]
    views.append({"w": 48, "h": 32, "fx": n[1] * 48, "fy": n[2] * 32, "cx": n[3] * 48, "cy": n[4] * 32,
                  "w2c": [n[7:11], n[11:15], n[15:19], [0, 0, 0, 1]]})
print(json.dumps(views))
PY
    run 0 "${render[@]}" --input-views 2,8 --poses inputs --cameras opencv_cameras.json --format none -o json_cameras
    for i in 0 1 2; do run 0 psnr json_cameras/frame-0000$i.png listed_cameras/frame-0000$i.png --min-psnr 60; done
else
    skip 'JSON cameras: no python3'
fi
sed -n 1p "$lines" >bad.txt # an URL alone
run 3 "${render[@]}" --input-views 2,8 --cameras bad.txt -o x
tells 'no camera lines'
: >bad.txt
run 3 "${render[@]}" --input-views 2,8 --cameras bad.txt -o x
tells 'bad.txt: an empty file'
{ cat path.txt; echo 1 2 3; } >bad.txt
run 3 "${render[@]}" --input-views 2,8 --cameras bad.txt -o x
tells 'bad.txt:4: 3 columns; 19 are expected'
awk '{ $8 = 5; print }' path.txt >bad.txt
run 3 "${render[@]}" --input-views 2,8 --cameras bad.txt -o x
tells 'not orthonormal'
tells '2 more faults'
awk '{ $2 = "nan"; print }' path.txt >bad.txt
run 3 "${render[@]}" --input-views 2,8 --cameras bad.txt -o x
awk '{ $2 = 0; print }' path.txt >bad.txt
run 3 "${render[@]}" --input-views 2,8 --cameras bad.txt -o x
tells 'focal length is 0'
awk '{ $2 = 300; print }' path.txt >bad.txt
run 3 "${render[@]}" --input-views 2,8 --cameras bad.txt -o x
tells 'looks like pixels'
for text in '[' '[]' '[{"w": 48}]' '{"frames": 3}' '[{"w":48,"h":32,"fx":0.5,"fy":0.5,"cx":0.5,"cy":0.5,"w2c":[[1,0,0,0],[0,1,0,0],[0,0,1,0],[0,0,0,1]]}]'; do
    echo "$text" >bad.json
    run 3 "${render[@]}" --input-views 2,8 --cameras bad.json -o x
    tells bad.json
done
run 4 "${render[@]}" --input-views 2,8 --cameras no-such-file -o x
run 2 "${render[@]}" --input-views 2,8 --cameras path.txt --targets 3 -o x
tells 'only one of them'

# ---- saved scenes ----
run 0 "${render[@]}" --input-views 2,8 --poses inputs --frames 7 --save-scene room.safetensors -o saved
checks=$((checks + 1))
cmp -s saved/frame-00003.png fixed/frame-00003.png || fail '--save-scene renders other pictures'
run 0 nvs render --checkpoint model --load-scene room.safetensors --frames 7 -o from_file
says "7 views of scene $scene"
checks=$((checks + 1))
diff -r saved from_file >/dev/null || fail 'a saved scene renders other pictures'
run 0 nvs render --checkpoint model --load-scene room.safetensors --cameras path.txt --format none -o from_file_cameras
run 0 psnr from_file_cameras/frame-00001.png ends/frame-00000.png --metric psnr
says inf
run 0 nvs render --checkpoint model --load-scene room.safetensors --data-dir rooms --split test --targets 3,5 --html -o from_file_targets
says 'over 2'
run 0 inspect room.safetensors
run 2 nvs render --checkpoint model --load-scene room.safetensors --targets 3 -o x
tells 'needs --data-dir'
run 2 nvs render --checkpoint model --load-scene room.safetensors --input-views 2,8 -o x
run 0 inspect room.safetensors
says 'a reconstructed scene (nvs render --load-scene)'
run 0 inspect room.safetensors --json
says '"kind":"scene"'
run 2 nvs render --checkpoint model --load-scene room.safetensors --save-scene again.safetensors -o x
run 4 nvs render --checkpoint model --load-scene no-such-file -o x
run 3 nvs render --checkpoint model --load-scene path.txt -o x
run 3 nvs render --checkpoint model --load-scene model -o x
run 3 nvs render --checkpoint model --load-scene model/last.safetensors -o x
tells "expected 'lact-scene 1'"
run 4 "${render[@]}" --input-views 2,8 --save-scene no/such/folder/room.safetensors -o x
run 0 nvs train "${tiny[@]}" --steps 11 -o other
run 3 nvs render --checkpoint other --load-scene room.safetensors -o x
tells 'other weights'
head -c 3000 room.safetensors >cut.safetensors
run 3 nvs render --checkpoint model --load-scene cut.safetensors -o x

# what the file says besides its tensors
if command -v python3 >/dev/null; then
    spoil() { # KEY VALUE: bad.safetensors with that metadata; VALUE - takes the key out
        python3 - "$1" "$2" <<'PY'
import json, struct, sys
data = open("room.safetensors", "rb").read()
n = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + n])
if sys.argv[2] == "-": del header["__metadata__"][sys.argv[1]]
else: header["__metadata__"][sys.argv[1]] = sys.argv[2]
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open("bad.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data[8 + n:])
PY
    }
    one='1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1 9 9 5 5'
    for case in 'ttv.input_cameras|-' 'ttv.input_cameras|' 'ttv.input_cameras|1 2 3' "ttv.input_cameras|$one nan" \
        "ttv.input_cameras|${one/1/2}" "ttv.input_cameras|${one/9/0}" "ttv.input_cameras|$(yes "$one" | head -n 65 | tr '\n' ' ')" \
        'ttv.input_frames|-' 'ttv.input_frames|2' 'ttv.input_frames|2,x' 'ttv.source|-' 'ttv.source|48' 'ttv.source|0 32' \
        'ttv.source|48 1e9' 'ttv.scene|-' 'ttv.weights_crc32c|-' 'ttv.weights_crc32c|00000000' 'ttv.frame|1' 'ttv.patch|4' \
        'ttv.width|64' 'ttv.variant|V1'; do
        spoil "${case%%|*}" "${case#*|}"
        run 3 nvs render --checkpoint model --load-scene bad.safetensors -o x
        tells bad.safetensors
    done
    spoil ttv.scene '<b>"bold" & co</b>'
    run 0 nvs render --checkpoint model --load-scene bad.safetensors --frames 2 --html -o escaped
    checks=$((checks + 1))
    grep -q 'Scene &lt;b&gt;&quot;bold&quot; &amp; co&lt;/b&gt;' escaped/page.html || fail 'a name became markup'
else
    skip 'metadata of saved scenes: no python3'
fi

# ---- animations ----
run 0 "${render[@]}" --input-views 2,8 --frames 7 --format gif,apng -o both
equal 'GIF' "$(head -c 6 both/render.gif)" GIF89a
equal 'loop' "$(grep -ac NETSCAPE2.0 both/render.gif)" 1
if python3 -c 'import PIL' 2>/dev/null; then
    python3 - both >frames.txt 2>&1 <<'PY'
import sys
from PIL import Image, ImageChops
gif, png = Image.open(sys.argv[1] + "/render.gif"), Image.open(sys.argv[1] + "/render.apng")
worst = 0
for i in range(7):
    gif.seek(i)
    png.seek(i)
    d = ImageChops.difference(gif.convert("RGB"), png.convert("RGB")).histogram()
    worst = max(worst, sum(k % 256 * n for k, n in enumerate(d)) / sum(d))
print(gif.n_frames, png.n_frames, gif.size, worst < 6)
PY
    equal 'GIF frames as Pillow reads them' "$(cat frames.txt)" '7 7 (32, 32) True'
else
    skip 'GIF against Pillow: no Pillow'
fi
run 2 "${render[@]}" --input-views 2,8 --format webp -o x
tells "'webp' is none of apng, gif, mp4, y4m, png, none"
run 0 "${render[@]}" --input-views 2,8 --frames 2 --format png -o frames_alone
equal 'frames and nothing that moves' "$(ls frames_alone | tr '\n' ' ')" 'frame-00000.png frame-00001.png sheet.png '
run 2 "${render[@]}" --input-views 2,8 --format gif, -o x
mkdir -p tools_without tools_with tools_broken
ln -s "$(command -v bash)" tools_without/bash
checks=$((checks + 1))
command_line='ttv nvs render --format mp4, without ffmpeg'
PATH=$PWD/tools_without "$TTV" "${render[@]}" --input-views 2,8 --format mp4 -o x >out 2>err
equal "exit code of $command_line" $? 4
err=$(cat err)
tells 'needs the program ffmpeg, which is not in PATH'
# a program that stands for it: keeps its last argument and what it was fed
cat >tools_with/ffmpeg <<'SH'
#!/bin/bash
for last; do :; done
printf '%s\n' "$@" >ffmpeg_arguments
cat >"${last#file:}"
SH
printf '#!/bin/bash\nhead -c 10 >/dev/null\necho "no such codec" >&2\nexit 3\n' >tools_broken/ffmpeg
chmod +x tools_with/ffmpeg tools_broken/ffmpeg
PATH=$PWD/tools_with:$PATH run 0 "${render[@]}" --input-views 2,8 --frames 7 --format mp4 --fps 12.5 -o 'film: 1'
equal 'bytes fed to ffmpeg' "$(wc -c <'film: 1/render.mp4')" $((7 * 32 * 32 * 3))
equal 'size and rate' "$(grep -x -A1 -e -video_size -e -framerate ffmpeg_arguments | grep -v -e - | tr '\n' ' ')" '32x32 12.500000 '
equal 'nothing left' "$(ls 'film: 1' | grep -c tmp)" 0
PATH=$PWD/tools_broken:$PATH run 4 "${render[@]}" --input-views 2,8 --frames 30 --format mp4 -o broken
tells 'ffmpeg failed with exit code 3: no such codec'
equal 'frames are kept, no film' "$(ls broken | grep -c png) $(ls broken | grep -c mp4)" '31 0'
if command -v ffmpeg >/dev/null; then
    run 0 "${render[@]}" --input-views 2,8 --frames 7 --format mp4 -o film
    equal 'MP4' "$(head -c 8 film/render.mp4 | tail -c 4)" ftyp
else
    skip 'a real MP4: no ffmpeg'
fi

# heading and size; values are tested in test_y4m.c
run 0 "${render[@]}" --input-views 2,8 --frames 5 --format y4m --fps 12.5 -o raw
equal 'Y4M' "$(head -n 1 raw/render.y4m)" 'YUV4MPEG2 W32 H32 F12500:1000 Ip A1:1 C420jpeg'
equal 'bytes of a Y4M' "$(tail -c +2 raw/render.y4m | wc -c)" $(($(head -n 1 raw/render.y4m | wc -c) + 5 * (6 + 32 * 32 * 3 / 2) - 1))

# ---- the page: whole, with every picture inside and nothing fetched ----
run 0 "${render[@]}" --input-views 2,8 --targets 3,5 --html -o page
equal 'pictures in the page' "$(grep -o 'src="data:image/a\?png;base64,' page/page.html | wc -l)" $((2 + 3 * 2 + 2 + 1))
equal 'links in the page' "$(grep -c -e 'http' -e '<script' -e '<link' page/page.html)" 0
run 0 "${render[@]}" --input-views 2,8 --targets 3,5 -o page_numbers
shown=$(sed -n 's/^frame 3: psnr \([0-9]*\.[0-9]\{2\}\).*/\1/p' out)
checks=$((checks + 1))
grep -q "<td>$shown" page/page.html || fail "the page lacks the PSNR $shown"
if command -v python3 >/dev/null; then
    python3 - page/page.html >parts.txt 2>&1 <<'PY'
import base64, re, sys, html.parser
text = open(sys.argv[1], encoding="utf-8").read()
parts = [base64.b64decode(p, validate=True) for p in re.findall(r'base64,([^"]*)"', text)]
print(all(p.startswith(b"\x89PNG") and p.endswith(b"IEND\xaeB\x60\x82") for p in parts))
open("first.png", "wb").write(parts[1])
class Balanced(html.parser.HTMLParser):
    def __init__(self): super().__init__(); self.open = []
    def handle_starttag(self, tag, attrs): self.open += [tag] if tag not in ("img", "meta", "br") else []
    def handle_endtag(self, tag): assert self.open.pop() == tag, tag
b = Balanced(); b.feed(text); print(b.open)
PY
    equal 'the page decodes' "$(tr '\n' ' ' <parts.txt)" 'True [] '
else
    skip 'the page in detail: no python3'
fi

# ---- a full disk: exit code 4, what was begun is not there ----
for what in --html '--format gif' '--save-scene full/room.safetensors'; do
    mkdir -p full
    command_line="ttv nvs render $what, files of at most 8 KiB"
    (ulimit -f 8 && "$TTV" "${render[@]}" --input-views 2,8 --frames 20 --format none $what -o full --overwrite >out 2>err)
    equal "exit code of $command_line" $? 4
    equal "left by $command_line" "$(find full -name '*.gif' -o -name '*.html' -o -name '*.safetensors' -o -name '*.tmp-*' | wc -l)" 0
    rm -r full
done

checks=$((checks + 1))
[ ! -e x ] || fail 'a refused call left a folder'

finish
