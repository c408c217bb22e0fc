#!/bin/bash
# ttv psnr: values, pairing, averages, refusals, exit codes, outputs.
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { skip 'no python3 to make pictures with'; finish; }
IMAGES=$SOURCE/tests/data/images

# paint FILE WIDTH HEIGHT KIND EXPRESSION: a PNG; KIND is L, LA, RGB, RGBA or L16; the expression gives sample c of pixel x, y
paint() {
    python3 - "$@" <<'PY'
import struct, sys, zlib
path, w, h, kind, text = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
color, channels, bits = {"L": (0, 1, 8), "LA": (4, 2, 8), "RGB": (2, 3, 8), "RGBA": (6, 4, 8), "L16": (0, 1, 16)}[kind]
f = eval("lambda x, y, c: " + text)
rows = b"".join(b"\0" + b"".join(int(f(x, y, c)).to_bytes(bits // 8, "big") for x in range(w) for c in range(channels))
                for y in range(h))
def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
with open(path, "wb") as out:
    out.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, bits, color, 0, 0, 0)) +
              chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
PY
}
paint a.png 16 12 RGB '(x * 9 + y * 5 + c * 40) % 200'
paint b.png 16 12 RGB '(x * 9 + y * 5 + c * 40) % 200 + 8'
paint c.png 16 12 RGB '(x * 9 + y * 5 + c * 40) % 200 + 2'

# ---- one pair ----
run 0 psnr a.png b.png
says 'psnr 30.069004 dB'
says 'a.png  b.png'
tells 'LPIPS was not computed: no weights were given'
equal lines "$(wc -l <out)" 1
run 0 score -q a.png b.png --metric psnr
quiet_err
equal line "$out" 'psnr 30.069004 dB  a.png  b.png'
run 0 psnr a.png b.png --metric mse,psnr,ssim
says 'mse 64 '
run 0 psnr a.png b.png --metric mse --data-range 1
says 'mse 0.000984236832'
run 0 psnr a.png b.png --data-range 510
says 'psnr 36.089604 dB'
run 0 psnr a.png b.png --metric psnr,lpips
tells 'LPIPS was not computed'
run 0 psnr a.png b.png --json
json_ok out
equal psnr "$(json_get out 'round(d["psnr"], 6), d["n"], d["n_inf"], d["identical"], d["lpips"]')" '(30.069004, 1, 0, False, None)'
equal pair "$(json_get out 'd["pairs"][0]["width"], d["pairs"][0]["channels"], d["pairs"][0]["bits"], d["pairs"][0]["data_range"]')" \
    '(16, 3, 8, 255)'

# ---- identical ----
run 0 psnr a.png a.png --metric psnr,ssim,mse
says 'psnr inf dB  ssim 1.000000  mse 0'
run 0 psnr a.png a.png --json --min-psnr 99
json_ok out
equal identical "$(json_get out 'd["psnr"], d["identical"], d["pairs"][0]["psnr"], d["pairs"][0]["identical"], d["passed"]')" \
    '(None, True, None, True, True)'
run 0 psnr "$IMAGES/rgb.png" "$IMAGES/rgb_interlaced.png" --metric psnr
says 'inf'

# ---- sizes down to one pixel, 16 bits ----
paint one_a.png 1 1 L 0
paint one_b.png 1 1 L 255
run 0 psnr one_a.png one_b.png
says 'psnr 0.000000 dB  ssim -'
tells 'a side is below 11 pixels'
tells 'one_a.png: is all black'
paint row_a.png 7 1 L 'x'
paint row_b.png 7 1 L 'x + 1'
run 0 psnr row_a.png row_b.png --metric psnr
says 'psnr 48.130804 dB'
paint deep_a.png 4 4 L16 'x * 4000'
paint deep_b.png 4 4 L16 'x * 4000 + 256'
run 0 psnr deep_a.png deep_b.png --metric psnr
says 'psnr 48.164667 dB'
paint unit.png 4 4 L 'x % 2'
paint byte.png 4 4 L 'x % 2 * 255'
run 0 psnr byte.png unit.png
tells 'unit.png: holds no sample above 1'

# ---- --min-psnr ----
run 0 psnr a.png b.png --min-psnr 30
run 1 psnr a.png b.png --min-psnr 30.1
tells 'PSNR 30.069004 dB is below the floor of 30.1 dB'
says 'psnr 30.069004 dB'
run 1 psnr a.png b.png --min-psnr 30.1 --json
equal passed "$(json_get out 'd["passed"]')" False

# ---- refusals ----
paint tall.png 16 13 RGB 9
paint grey.png 16 12 L 9
paint deep.png 16 12 L16 9000
paint clear.png 16 12 RGBA '128 if c == 3 else (x * 9 + y * 5 + c * 40) % 200'
run 3 psnr a.png tall.png
tells 'tall.png: 16 x 13 pixels, but a.png has 16 x 12'
quiet_out
run 3 psnr a.png grey.png
tells 'grey.png: is grey, but a.png is RGB'
run 3 psnr grey.png deep.png
tells 'deep.png: has 16 bits, but grey.png has 8'
run 3 psnr a.png clear.png
tells 'clear.png: has an alpha channel'
run 0 psnr a.png clear.png --alpha ignore --metric psnr
says 'inf'
run 0 psnr a.png clear.png --alpha composite --metric psnr
says 'psnr '
run 3 psnr a.png tall.png --json
json_ok out
equal error "$(json_get out '"tall.png" in d["pairs"][0]["error"], d["n"], d["n_failed"], d["psnr"]')" '(True, 0, 1, None)'
run 3 psnr a.png "$IMAGES/cut_in_data.png"
tells 'cut_in_data.png'
run 3 psnr a.png no-such-file.png
tells 'no-such-file.png'
mkfifo pipe.png
run 3 psnr a.png pipe.png
tells 'FIFO'
run 3 psnr "$SOURCE/tests/data/images/implausible.jpg" a.png
tells 'too many for a file'
run 3 psnr "$SOURCE/tests/data/images/implausible.jpg" a.png --no-plausible-sizes
case $err in *'too many for a file'*) fail 'the check of sizes cannot be lifted' ;; esac
run 3 psnr a.png b.png --max-image-pixels 100
tells 'limit of 100'
run 3 psnr a.png b.png --crop-border 6
tells 'border of 6 pixels'
run 0 psnr a.png b.png --crop-border 5 --metric psnr

# ---- usage ----
run 2 psnr
tells 'two files or two folders'
run 2 psnr a.png
run 2 psnr a.png b.png c.png
run 2 psnr a.png b.png --metric psnr,vmaf
tells "'vmaf'"
run 2 psnr a.png b.png --metric ''
run 2 psnr a.png b.png --metric psnr,
run 2 psnr a.png b.png --alpha drop
run 2 psnr a.png b.png --min-psnr high
run 2 psnr a.png b.png --crop-border -1
run 2 psnr a.png .
tells 'is a folder'
run 2 psnr a.png b.png --pairs list
tells 'takes the place'

# ---- folders ----
mkdir -p x/sub y/sub
cp a.png x/1.png && cp b.png y/1.png
cp a.png x/2.png && cp a.png y/2.png
cp a.png x/sub/3.png && cp c.png y/sub/3.png
run 0 psnr x y --metric psnr
equal lines "$(wc -l <out)" 4
says '2 scored, 1 identical, 0 failed, 0 without partner'
says 'psnr mean 30.069004 dB over 1 finite; min 30.069004, median inf, pooled 33.079304'
run 0 psnr x y -r --json
json_ok out
equal summary "$(json_get out 'd["n"], d["n_inf"], round(d["psnr"], 6), round(d["psnr_pooled"], 6), d["psnr_median"] == d["pairs"][2]["psnr"]')" \
    '(3, 1, 36.089604, 34.576927, True)'
run 1 psnr x y --average pooled --min-psnr 33.1 --metric psnr
says 'psnr pooled 33.079304 dB'
run 0 psnr x y --average pooled --min-psnr 33
# other endings, missing and ambiguous partners
cp "$IMAGES/rgb_444.jpg" x/4.jpg
cp "$IMAGES/rgb_422.jpg" y/4.jpeg
cp a.png x/5.png
run 3 psnr x y
says 'x/4.jpg  y/4.jpeg'
says '3 scored'
tells 'x/5.png: no partner'
run 0 psnr x y --missing allow --json
equal missing "$(json_get out 'd["missing"], d["n_missing"]')" "(['x/5.png'], 1)"
rm x/5.png
cp "$IMAGES/rgb_420.jpg" y/4.png
run 3 psnr x y
tells 'x/4.jpg: no partner'
tells 'y/4.jpeg: no partner'
tells 'y/4.png: no partner'
rm y/4.png
# by order
mkdir p q
cp a.png p/first.png && cp b.png q/eins.png
cp a.png p/second.png && cp c.png q/zwei.png
run 3 psnr p q
run 0 psnr p q --pair-by order --metric psnr
says 'p/second.png  q/zwei.png'
cp a.png p/third.png
run 3 psnr p q --pair-by order
tells 'p holds 3 pictures, but q holds 2'
mkdir empty
run 3 psnr empty x
run 3 psnr x empty
# one bad pair does not stop the others
cp tall.png y/1.png
run 3 psnr x y --metric psnr
says '2 scored, 1 identical, 1 failed'
tells 'y/1.png: 16 x 13'
cp b.png y/1.png

# ---- lists ----
printf '# comment\n\na.png\tb.png\tmore\nx/2.png\ty/2.png\r\n' >list.tsv
run 0 psnr --pairs list.tsv --metric psnr
says '2 scored, 1 identical'
mkdir away && cp list.tsv away/ && cp -r a.png b.png x y away/
run 0 psnr --pairs away/list.tsv --metric psnr
says 'away/x/2.png  away/y/2.png'
printf 'a.png b.png\n' >bad.tsv
run 3 psnr --pairs bad.tsv
tells 'bad.tsv:1: expected two names with a tab between'
printf 'a.png\t\n' >bad.tsv
run 3 psnr --pairs bad.tsv
printf 'a.png\0\tb.png\n' >bad.tsv
run 3 psnr --pairs bad.tsv
tells 'NUL'
: >bad.tsv
run 3 psnr --pairs bad.tsv
tells 'no pair'
run 4 psnr --pairs no-such-list

# ---- results, error maps ----
run 3 psnr --pairs <(:) -q
printf 'a.png\tb.png\nodd, "name".png\ttall.png\n' >list.tsv
cp a.png 'odd, "name".png'
run 3 psnr --pairs list.tsv --results-file r.csv
equal heading "$(head -n 1 r.csv | tr -d '\r')" 'index,a,b,width,height,channels,bits,psnr,ssim,mse,lpips,identical,error'
equal rows "$(wc -l <r.csv)" 3
checks=$((checks + 1))
grep -q '^1,"odd, ""name"".png",tall.png,,,,,,,,,,"tall.png: 16 x 13' r.csv || fail 'the row of a failed pair'
python3 - <<'PY' || fail 'the CSV does not have 13 columns'
import csv
assert all(len(row) == 13 for row in csv.reader(open("r.csv", newline="")))
PY
run 4 psnr a.png b.png --results-file no/such/folder/r.csv
run 0 psnr a.png b.png --error-map map.png
run 0 psnr map.png map.png --metric psnr
run 0 psnr x y --error-map maps -q
equal maps "$(ls maps | tr '\n' ' ')" '00000_1.png 00001_2.png 00002_4.png '
run 0 psnr maps/00001_2.png maps/00001_2.png
tells 'is all black'
run 4 psnr a.png b.png --error-map no/such/folder/map.png
run 4 psnr x y --error-map a.png/maps

# ---- luma: 64 in all channels is 64 * 219 / 255 in Y; equal luma is identical there ----
run 0 psnr a.png b.png --channels y --metric psnr,mse
says 'psnr 31.390925 dB  mse 47.20'
run 0 psnr a.png b.png --channels y --json
equal luma "$(json_get out 'd["pairs"][0]["channels"], round(d["psnr"], 3), 0 < d["ssim"] < 1')" '(1, 31.391, True)'
paint red.png 16 12 RGB 'x * 9 + (20 if c == 0 else 0)'
paint black.png 16 12 RGB 'x * 9'
run 0 psnr red.png black.png --channels y --metric psnr # 65.481 / 255 * 20
says 'psnr 33.918701 dB'
run 0 psnr grey.png grey.png --channels y --metric psnr
says inf
run 2 psnr a.png b.png --channels cb

# ---- sizes and depths, only when asked ----
paint half.png 8 6 RGB '(x * 18 + y * 10 + c * 40) % 200'
run 3 psnr a.png half.png
run 0 psnr a.png half.png --resize to-ref --metric psnr
tells '1 pictures were resized to their reference'
run 0 psnr a.png half.png --resize to-ref --json
equal resized "$(json_get out 'd["pairs"][0]["resized"], d["pairs"][0]["width"]')" '(True, 16)'
run 0 psnr a.png b.png --resize to-ref --json
equal 'not resized' "$(json_get out '"resized" in d["pairs"][0], round(d["psnr"], 6)')" '(False, 30.069004)'
paint flat.png 8 6 L 9
run 0 psnr grey.png flat.png --resize to-ref --metric psnr
says inf
run 3 psnr deep_a.png deep.png --resize to-ref
tells 'has 16 bits: only 8-bit pictures without alpha are resized (--quantize 8bit)'
run 0 psnr deep_a.png deep.png --resize to-ref --quantize 8bit --metric psnr
run 3 psnr a.png clear.png --resize to-ref
paint clear_half.png 8 6 RGBA 9
run 3 psnr a.png clear_half.png --resize to-ref --alpha ignore
tells 'alpha channel'
paint deep_half.png 4 4 L16 'x * 4000 + 128'
run 3 psnr unit.png deep_half.png
run 0 psnr deep_a.png deep_half.png --quantize 8bit --json # 128 / 257 rounds to 0, 128.5 to 1
equal quantised "$(json_get out 'd["pairs"][0]["bits"], d["pairs"][0]["data_range"]')" '(8, 255)'
paint eight.png 4 4 L '(x * 4000 + 128) // 257'
run 0 psnr eight.png deep_a.png --quantize 8bit --metric psnr
says inf
run 2 psnr a.png b.png --resize always
run 2 psnr a.png b.png --quantize 4bit

# ---- mean over scenes: folders count alike, whatever they hold ----
mkdir -p t/one t/two r/one r/two
for i in 1 2 3; do cp a.png t/one/$i.png && cp b.png r/one/$i.png; done
cp a.png t/two/1.png && cp c.png r/two/1.png
run 0 psnr t r -r --metric psnr --average scene
says 'psnr mean over 2 scenes 36.089604 dB; mean 33.079304 over 4 finite'
run 0 psnr t r -r --average scene --json --min-psnr 36
equal scenes "$(json_get out 'd["average"], d["n_scenes"], round(d["psnr"], 6), round(d["psnr_scene"], 6), d["passed"]')" \
    "('scene', 2, 36.089604, 36.089604, True)"
run 1 psnr t r -r --average scene --min-psnr 36.1
run 0 psnr t r -r --json
equal scenes "$(json_get out 'round(d["psnr"], 6), round(d["psnr_scene"], 6)')" '(33.079304, 36.089604)'
cp a.png r/two/1.png # a scene that is identical has no finite PSNR
run 0 psnr t r -r --metric psnr --average scene
says 'psnr mean over 2 scenes 30.069004 dB'

# ---- LPIPS with weights of VGG16's sizes ----
lpips_weights lpips.safetensors
paint big_a.png 24 18 RGB '(x * 9 + y * 5 + c * 40) % 200'
paint big_b.png 24 18 RGB '(x * 9 + y * 7 + c * 40) % 200'
run 0 psnr big_a.png big_b.png --lpips-weights lpips.safetensors
says '  lpips 0.'
case $err in *LPIPS*) fail 'LPIPS was computed, but stderr says it was not' ;; esac
run 0 psnr big_a.png big_a.png --lpips-weights lpips.safetensors --json
equal identical "$(json_get out 'd["lpips"], d["n_lpips"], "lpips_note" in d')" '(0, 1, False)'
run 0 psnr big_a.png big_b.png --lpips-weights lpips.safetensors --results-file r.csv -q
checks=$((checks + 1))
grep -q ',0\.[0-9]*,0,' r.csv || fail 'the CSV lacks LPIPS'
run 0 psnr a.png b.png --lpips-weights lpips.safetensors
says 'lpips -'
tells 'LPIPS was not computed for 1 pairs: a side is below 16 pixels'
run 4 psnr a.png b.png --lpips-weights no-such-file
run 3 psnr a.png b.png --lpips-weights a.png
head -c 20000 lpips.safetensors >cut.safetensors
run 3 psnr a.png b.png --lpips-weights cut.safetensors

# ---- streams ----
if [ -w /dev/full ]; then
    for format in --json --no-json; do
        "$TTV" psnr a.png b.png $format >/dev/full 2>err
        equal "exit code on /dev/full, $format" $? 4
    done
    err=$(cat err)
    tells 'cannot write to standard output'
fi

# ---- known pairs ----
if [ -r "$SHARED/data/psnr-pairs/psnr-pairs.tar" ]; then
    tar -xf "$SHARED/data/psnr-pairs/psnr-pairs.tar"
    sed 1d pairs.tsv >known.tsv
    run 3 psnr --pairs known.tsv --json --ssim-covariance population
    json_ok out
    equal 'known pairs' "$(json_get out 'd["n"], d["n_inf"], d["n_failed"]')" '(34, 1, 1)'
    python3 - >off.txt <<'PY'
import csv, json
pairs = json.load(open("out"))["pairs"]
for row, pair in zip(csv.reader(open("pairs.tsv"), delimiter="\t"), [None] + pairs):
    if pair is None or "error" in pair or pair["identical"]:
        continue
    jpeg = ".jpg" in row[1]
    if abs(pair["psnr"] - float(row[5])) > (0.05 if jpeg else 1e-6): print(row[1], pair["psnr"])
    if abs(pair["ssim"] - float(row[7])) > (1e-3 if jpeg else 1e-6): print(row[1], pair["ssim"])
PY
    equal 'values off' "$(cat off.txt)" ''
else
    skip 'no shared psnr-pairs'
fi
finish
