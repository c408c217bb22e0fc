#!/bin/bash
# ttv classify: inputs, formats, labels, and every kind of picture that is none.
. "$(dirname "$0")/model_lib.sh"

tar -xf "$DIGITS" -C . val
classify=(classify --checkpoint "$RUN")
three=$(find val/3 -name '*.png' | sort | head -n 1)
seven=$(find val/7 -name '*.png' | sort | head -n 1)

# ---- text, order, batches ----
run 0 "${classify[@]}" "$seven" "$three"
equal 'first line' "$(sed -n 1p out)" "$seven"
equal 'second picture' "$(sed -n 7p out)" "$three"
equal 'lines' "$(wc -l <out)" 12
quiet_err
run 0 "${classify[@]}" --topk 99 "$seven"
equal 'top-k is cut at the classes' "$(wc -l <out)" 11
run 0 "${classify[@]}" val/0 val/1 --format csv
mv out whole
equal 'rows' "$(wc -l <whole)" $(($(ls val/0 val/1 | grep -c png) + 1))
for batch in 1 3 64; do
    run 0 "${classify[@]}" val/0 val/1 --format csv --batch-size $batch --workers 2
    checks=$((checks + 1))
    cmp -s out whole || fail "results depend on the batch size ($batch)"
done
run 0 predict --checkpoint "$RUN/best.safetensors" val/0 val/1 --format csv
checks=$((checks + 1))
cmp -s out whole || fail 'the weights file gives other results than its run folder'

# ---- folders, lists, standard input ----
run 3 "${classify[@]}" val
tells '--recursive'
run 0 "${classify[@]}" val --recursive --format csv --topk 1
equal 'pictures in folders' "$(wc -l <out)" 356
cut -d, -f1 out | tail -n +2 >names
checks=$((checks + 1))
sort -c names || fail 'folders are not walked in order'
find val -name '*.png' | sort >list
run_in 0 list "${classify[@]}" --files-from - --format csv --topk 1
cut -d, -f1 out | tail -n +2 >from_list
checks=$((checks + 1))
cmp -s names from_list || fail 'a list on standard input gives another order'
run 0 "${classify[@]}" --files-from list --format csv --topk 1
equal 'list from a file' "$(wc -l <out)" 356
printf '%s\r\n\r\n%s\r\n' "$three" "$seven" >crlf
run 0 "${classify[@]}" --files-from crlf --format csv
equal 'CRLF list' "$(wc -l <out)" 3
odd=$(printf 'new\nline, "quoted" \xff.png')
cp "$three" "./$odd"
cp "$three" ./-dash.png
cp "$three" 'with space.png'
find . -maxdepth 1 -name '*.png' -print0 | sort -z >list0
run_in 0 list0 "${classify[@]}" --files-from - --null --json
equal 'NUL list' "$(wc -l <out)" 3
json_ok out lines
says '"path_bytes":"'
run 0 "${classify[@]}" --format csv -- -dash.png "$odd"
if command -v python3 >/dev/null; then
    rows=$(python3 -c 'import csv,sys
print(len(list(csv.reader(open("out", newline="", encoding="latin-1")))))')
    equal 'CSV rows of an odd name' "$rows" 3
fi
run 2 "${classify[@]}" -dash.png
tells "--"
run_in 0 "$three" "${classify[@]}" - --format csv
equal 'standard input' "$(tail -n 1 out | cut -d, -f1)" -
run 0 "${classify[@]}" "$three" --format csv
mv out file_row
run_in 0 "$three" "${classify[@]}" - --format csv
equal 'the same picture from standard input' "$(tail -n 1 out | cut -d, -f2-)" \
    "$(tail -n 1 file_row | cut -d, -f2-)"
run 2 "${classify[@]}" - -
tells 'once'
run 2 "${classify[@]}" - --files-from -
run 3 "${classify[@]}" -
tells 'empty'
: >nothing
run 0 "${classify[@]}" --files-from nothing
tells 'no pictures'
mkdir -p mixed
cp "$three" mixed/three.PNG
echo note >mixed/readme.txt
run 0 "${classify[@]}" mixed
tells 'passed over'
says 'mixed/three.PNG'
ln -s .. mixed/loop
run 0 "${classify[@]}" mixed --recursive

# ---- real photographs, JPEG and PNG ----
run 0 "${classify[@]}" "$PHOTOS" --json
equal 'photographs' "$(wc -l <out)" 4
json_ok out lines
says '"width":640,"height":427,"orientation":1'

# ---- formats ----
run 0 "${classify[@]}" --results-file rows.csv val/3
quiet_out
equal 'results file' "$(head -n 1 rows.csv | cut -d, -f1-4)" path,index1,label1,prob1
run 0 "${classify[@]}" --results-file rows.jsonl val/3
json_ok rows.jsonl lines
run 0 "${classify[@]}" --results-format jsonl "$three"
json_ok out lines
run 3 "${classify[@]}" --format json "$three" "$SOURCE/tests/data/images/zeros.jpg" "$three" # one array
json_ok out
if command -v python3 >/dev/null; then
    equal 'rows of the array' "$(json_get out '[sorted(r)[0] for r in d]')" "['height', 'error', 'height']"
fi
run 3 "${classify[@]}" --format json "$SOURCE/tests/data/images/zeros.jpg"
json_ok out
run 0 "${classify[@]}" --results-file rows.json val/3
json_ok rows.json
equal 'rows' "$(grep -c '"path"' rows.json)" "$(grep -c . rows.jsonl)"
run 0 "${classify[@]}" --format jsonl --output-type logit "$three"
says '"logit":'
run 0 "${classify[@]}" --json --topk 10 "$three"
if command -v python3 >/dev/null; then
    equal 'probabilities sum to 1' "$(python3 -c 'import json
print(abs(sum(t["prob"] for t in json.load(open("out"))["top"]) - 1) < 1e-5)')" True
    equal 'best first' "$(python3 -c 'import json
p = [t["prob"] for t in json.load(open("out"))["top"]]
print(p == sorted(p, reverse=True))')" True
fi

# ---- labels ----
for i in 0 1 2 3 4 5 6 7 8 9; do echo "digit, number $i"; done >names.txt
run 0 "${classify[@]}" --labels names.txt "$three"
says 'digit, number'
run 0 "${classify[@]}" --labels names.txt --format csv "$three"
says '"digit, number'
for i in 9 8 7 6 5 4 3 2 1 0; do printf '%d\tname %d\n' $i $i; done >tabs.txt
run 0 "${classify[@]}" --labels tabs.txt --label-type both --topk 10 "$three"
checks=$((checks + 1))
grep -E '^ .*%' out | awk '{if ($3 != $5) exit 1}' || fail 'index and name do not fit'
run 0 "${classify[@]}" --label-type index --topk 1 --format csv "$three"
equal 'no label column' "$(head -n 1 out | tr -d '\r')" path,index1,prob1,error
head -n 9 names.txt >short.txt
run 3 "${classify[@]}" --labels short.txt "$three"
tells 'short.txt'
tells '10 classes'
run 4 "${classify[@]}" --labels missing.txt "$three"

# ---- preprocessing: said on request, the same as eval's ----
run 0 "${classify[@]}" --print-preprocess
says 'EXIF orientation applied'
says 'centre crop 16'
run 0 "${classify[@]}" --print-preprocess --exif-orientation ignore
says 'EXIF orientation ignored'
run 0 "${classify[@]}" --print-preprocess --format csv "$three"
equal 'rows stay pure' "$(head -n 1 out | cut -d, -f1)" path
tells 'centre crop 16'
exif=$SHARED/data/decoder-corpus/decoder-corpus.tar
if [ -f "$exif" ]; then
    mkdir corpus
    tar -xf "$exif" -C corpus
    run 0 "${classify[@]}" corpus/jpeg_exif_orientation --json
    mv out turned
    run 0 "${classify[@]}" corpus/jpeg_exif_orientation --json --exif-orientation ignore
    checks=$((checks + 1))
    cmp -s out turned && fail 'EXIF orientation changes nothing'
    run 3 "${classify[@]}" corpus --recursive --json
    equal 'a row for every file of the corpus' "$(wc -l <out)" 671
    json_ok out lines
else
    skip 'the decoder corpus is not there'
fi

# ---- bad pictures: an error line, an error row, exit code 3, the others classified ----
mkdir bad
: >bad/empty.png
head -c 30000 "$PHOTOS/flower.jpg" >bad/cut.jpg
echo 'just text' >bad/text.jpg
printf 'GIF89a\1\0\1\0' >bad/picture.gif
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n' >bad/lfs.jpg
# a PNG header that claims 65,535 x 65,535 pixels
printf '\211PNG\r\n\032\n\0\0\0\rIHDR\0\0\377\377\0\0\377\377\010\006\0\0\0\012\141\026\242' >bad/bomb.png
mkfifo bad/pipe.jpg
mkdir bad/folder.jpg
all=(bad/empty.png bad/cut.jpg bad/text.jpg bad/picture.gif bad/lfs.jpg bad/bomb.png bad/pipe.jpg bad/missing.jpg)
for file in "${all[@]}"; do
    run 3 "${classify[@]}" "$three" "$file" "$seven" --format csv
    tells "$file"
    says "$seven"
    equal "rows around $file" "$(grep -c . out)" 4
    equal "error column of $file" "$(sed -n 3p out | tr -d '\r' | awk -F, '{print ($NF != "")}')" 1
done
tells '1 of 3 pictures'
run 3 "${classify[@]}" "$three" bad/folder.jpg "$seven"
tells 'bad/folder.jpg'
run 3 "${classify[@]}" "${all[@]}" "$three" --json
equal 'error rows' "$(grep -c '"error"' out)" ${#all[@]}
json_ok out lines
run 3 "${classify[@]}" "$three" bad/cut.jpg "$seven" --on-corrupt fail --format csv
equal 'stopped at the first' "$(wc -l <out)" 3
run 3 "${classify[@]}" bad/cut.jpg --set data.max_pixels=1000 "$PHOTOS/rocket.jpg"
tells 'rocket.jpg'
run_in 3 bad/text.jpg "${classify[@]}" -
tells 'standard input'
if [ "$(id -u)" -eq 0 ]; then
    skip 'an unreadable file: root reads everything'
else
    cp "$three" secret.png
    chmod 000 secret.png
    run 3 "${classify[@]}" secret.png
    tells 'secret.png'
fi
escape=$(printf 'esc\033[31m.png')
: >"$escape"
run 3 "${classify[@]}" "$escape"
checks=$((checks + 1))
case $err in *$'\033'*) fail 'an escape sequence of a file name reaches stderr' ;; esac

# ---- checkpoints that are none, or of another model ----
run 4 classify --checkpoint missing.safetensors "$three"
tells 'missing.safetensors'
run 3 classify --checkpoint bad/lfs.jpg "$three"
tells 'LFS'
head -c 5000 "$WEIGHTS" >cut.safetensors
run 3 classify --checkpoint cut.safetensors "$three"
quiet_out
run 3 "${classify[@]}" --model vittt_tiny "$three"
tells 'vittt_tiny'
# what limits pictures, and how it is lifted
claims=$SOURCE/tests/data/images/implausible.jpg
run 3 "${classify[@]}" "$claims"
tells 'too many for a file of 995 bytes (data.plausible, --no-plausible-sizes)'
run 2 "${classify[@]}" --no-plausible-sizes "$claims"
tells 'here it is --set data.plausible=false'
run 3 "${classify[@]}" --set data.plausible=false "$claims" # it is cut short besides
checks=$((checks + 1))
case $err in *'too many'*) fail 'the check of sizes cannot be lifted' ;; esac
run 2 "${classify[@]}" --max-image-pixels 100 "$three"
tells 'here it is --set data.max_pixels=VALUE'
run 3 "${classify[@]}" --set data.max_pixels=10 "$three"
tells 'more than the limit of 10 (data.max_pixels'
run 2 "${classify[@]}" --img-size 15 "$three"
tells '15'
run 0 "${classify[@]}" --img-size 32 "$three"
tells 'was trained on pictures of 16x16 pixels, it runs on 32x32'
run 0 "${classify[@]}" --mixer q_is_k "$three"
tells 'was trained with model.mixer = base, it runs with q_is_k'
run 0 "${classify[@]}" --mixer base --img-size 16 "$three"
quiet_err

# A foreign file: the same tensors without metadata, as a converter writes them.
if command -v python3 >/dev/null; then
    python3 - "$RUN/best.safetensors" foreign.safetensors <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + n])
header.pop("__metadata__")
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + n:])
PY
    run 2 classify --checkpoint foreign.safetensors "$three"
    tells '--model'
    sizes=(--model custom --img-size 16 --patch-size 4 --width 32 --depth 2 --heads 2 --num-classes 10 --crop-pct 1)
    run 0 classify --checkpoint foreign.safetensors "${sizes[@]}" "$three" --format csv
    mv out foreign
    run 0 "${classify[@]}" "$three" --format csv
    equal 'a foreign file, described by flags' "$(cat out)" "$(cat foreign)"
    run 0 classify --checkpoint foreign.safetensors "${sizes[@]}" --labels tabs.txt "$three"
    says '  name '
    run 3 classify --checkpoint foreign.safetensors "${sizes[@]}" --num-classes 11 "$three"
    tells 'head.weight'
    run 3 classify --checkpoint foreign.safetensors "${sizes[@]}" --depth 3 "$three"
    tells 'blocks.2.'
else
    skip 'no python3: no foreign checkpoint'
fi

# ---- usage, full disks, broken pipes ----
run 2 classify "$three"
tells '--checkpoint'
run 2 "${classify[@]}"
run 2 "${classify[@]}" --formt csv "$three"
tells 'did you mean --format'
run 2 "${classify[@]}" --format xml "$three"
tells 'jsonl'
run 2 "${classify[@]}" --topk 0 "$three"
run 4 "${classify[@]}" --files-from missing.txt
run 3 "${classify[@]}" --files-from bad
run 4 "${classify[@]}" --results-file no/such/folder/rows.csv "$three"
tells 'no/such/folder'
if [ -w /dev/full ]; then
    "$TTV" "${classify[@]}" val/3 >/dev/full 2>err
    equal 'exit code on /dev/full' $? 4
fi
"$TTV" "${classify[@]}" --recursive val 2>err | head -n 1 >/dev/null
checks=$((checks + 1))
[ ! -s err ] || fail 'a broken pipe is not silent'
echo old >rows.csv
(ulimit -f 1 && "$TTV" "${classify[@]}" --recursive val --results-file rows.csv >out 2>err)
equal 'exit code on a file size limit' $? 4
equal 'the old results survive' "$(cat rows.csv)" old
equal 'nothing is left behind' "$(find . -maxdepth 1 -name 'rows.csv*' | wc -l)" 1
run 0 classify --help
says '--files-from'
finish
