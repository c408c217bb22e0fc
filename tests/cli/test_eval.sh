#!/bin/bash
# Scoring: numbers, per-image results, self-describing checkpoints, and what they are refused for.
. "$(dirname "$0")/train_lib.sh"

run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 3 -o runs/a

# ---- the run folder knows its model, preprocessing and data; the numbers are those of the last validation ----
run 0 eval --checkpoint runs/a --no-progress
says 'top-1'
tells 'resize'
top1=$(sed -n 's/^top-1 \([0-9.]*\) .*/\1/p' out)
best=$(awk -F, '$1 == "validate" && $11 > best {best = $11} END {printf "%.3f", best}' runs/a/metrics.csv)
equal 'top-1 against the best validation' "$top1" "$best"
run 0 eval runs/a/last.safetensors --data-dir "$DIGITS" --json --results-file 'results, all.csv'
json_ok out
says '"scored":355'
equal 'rows of the results' "$(wc -l <'results, all.csv')" 356
right=$(awk -F, 'NR > 1 && $3 == $5' 'results, all.csv' | wc -l)
checks=$((checks + 1))
grep -q "\"top1_count\":$right," out || fail "top1_count differs from the $right right rows"
# batch size and workers change nothing
one=$("$TTV" eval runs/a --batch-size 1 --workers 1 -q --results-file one.csv 2>/dev/null | cut -d, -f1-2)
many=$("$TTV" eval runs/a --batch-size 64 --workers 3 -q --results-file many.csv 2>/dev/null | cut -d, -f1-2)
equal 'batch sizes' "$one" "$many"
# any weights of a training configuration are understood with that configuration
run 0 eval -c runs/a/config.ini --checkpoint runs/a -q
run 0 eval runs/a --precision bf16 -q

# ---- averaged over views: named, other scores, the same twice; for pictures that are their own mirror image flip
# changes nothing, and for pictures of one colour shift changes nothing either ----
loss_of() { sed -n 's/.*loss \([0-9.]*\),.*/\1/p' out; }
run 0 eval runs/a -q
plain=$(loss_of)
run 0 eval runs/a -q --tta none
equal '--tta none' "$(loss_of)" "$plain"
run 0 eval runs/a -q --tta flip
says 'tta flip (mean of 2 views)'
flipped=$(loss_of)
run 0 eval runs/a -q --tta shift --workers 1
says 'tta shift (mean of 18 views)'
shifted=$(loss_of)
run 0 eval runs/a -q --tta shift --workers 2
equal 'loss of --tta shift, once more' "$(loss_of)" "$shifted"
checks=$((checks + 1))
[ "$flipped" != "$plain" ] && [ "$shifted" != "$plain" ] && [ "$shifted" != "$flipped" ] ||
    fail "--tta changes nothing: none $plain, flip $flipped, shift $shifted"
run 0 eval runs/a -q --tta shift --json
json_ok out
says '"tta":"shift","views":18'
run 0 eval runs/a -q --json
says '"tta":"none","views":1'
run 2 eval runs/a -q --tta rotate
tells 'flip'
if command -v python3 >/dev/null; then
    for class in 0 1 2 3 4 5 6 7 8 9; do
        mkdir -p even/val/$class plain/val/$class
        python3 - $class even/val/$class/a.png plain/val/$class/a.png <<'PNG'
import struct, sys, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
c = int(sys.argv[1])
def write(path, value):
    rows = b"".join(b"\0" + bytes(value(x, y) % 256 for x in range(16)) for y in range(16))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 0, 0, 0, 0))
                + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
write(sys.argv[2], lambda x, y: c * 20 + y * 7 + min(x, 15 - x) * 11)
write(sys.argv[3], lambda x, y: c * 25)
PNG
    done
    run 0 eval runs/a -q --data-dir even
    plain=$(loss_of)
    run 0 eval runs/a -q --data-dir even --tta flip
    equal 'loss of even pictures' "$(loss_of)" "$plain"
    run 0 eval runs/a -q --data-dir plain
    plain=$(loss_of)
    run 0 eval runs/a -q --data-dir plain --tta shift
    equal 'loss of pictures of one colour' "$(loss_of)" "$plain"
fi

# ---- folders: damaged files are left out and named; nothing left is exit 3 ----
digits_folder set 3
cp "$SOURCE/CMakeLists.txt" set/val/5/text.png
: >set/val/6/empty.png
run 0 eval runs/a --data-dir set --set data.max_corrupt=0.5
tells 'set/val/5/text.png'
tells 'set/val/6/empty.png'
says '2 left out'
run 3 eval runs/a --data-dir set --on-corrupt fail
for class in 0 1 2 3 4 5 6 7 8 9; do
    for file in set/val/$class/*; do echo broken >"$file"; done
done
run 3 eval runs/a --data-dir set --set data.max_corrupt=1
quiet_out

# ---- labels that do not fit ----
digits_folder other 2
mv other/val/9 other/val/nine
run 3 eval runs/a --data-dir other
tells 'nine'

# ---- checkpoints that are none, or of another model ----
run 2 eval
tells '--checkpoint'
run 4 eval missing.safetensors --data-dir "$DIGITS"
tells 'missing.safetensors'
mkdir moved # a run whose data are gone
cp -r runs/a moved/a
sed -i 's/^root = .*/root = gone.tar/' moved/a/config.ini
for command in 'eval moved/a' 'ttt probe steps moved/a'; do
    run 4 $command
    tells "the data of the training run (--data-dir names others): cannot open 'gone.tar'"
done
run 4 eval moved/a --data-dir gone2.tar
tells "error: cannot open 'gone2.tar'"
refused() { # WHAT EXPECTED-TEXT
    run 3 eval broken.safetensors --data-dir "$DIGITS"
    tells 'broken.safetensors'
    tells "$2"
}
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n' >broken.safetensors
refused pointer LFS
printf '<!DOCTYPE html><html></html>' >broken.safetensors
refused page HTML
: >broken.safetensors
refused empty ''
head -c 2000 runs/a/last.safetensors >broken.safetensors
refused cut ''
printf '\200\002}q\000.' >broken.safetensors
refused pickle ''
run 3 eval runs/a --model vittt_tiny -q
tells 'vittt_tiny'
run 3 eval runs/a --width 64 -q
run 3 eval runs/a --num-classes 11 -q
run 2 eval runs/a --mixer nonsense -q
# weights that do not say what they are
if command -v python3 >/dev/null; then
    python3 - runs/a/last.safetensors bare.safetensors <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + n])
header.pop("__metadata__", None)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + n:])
PY
    run 2 eval bare.safetensors --data-dir "$DIGITS"
    tells '--model'
    run 0 eval bare.safetensors -c runs/a/config.ini --json -q
    run 3 eval bare.safetensors --model vittt_tiny --num-classes 10 --data-dir "$DIGITS"
    tells 'shape'
fi

# ---- streams ----
checks=$((checks + 1))
command_line='ttv eval >/dev/full'
"$TTV" eval runs/a -q >/dev/full 2>err
got=$?
err=$(cat err)
[ "$got" -eq 4 ] || fail "exit code $got instead of 4"
run 4 eval runs/a -q --results-file /dev/full/x.csv
run 4 eval runs/a -q --results-file missing/x.csv
tells 'missing/x.csv'

# ---- classes: the same counts as the rows of --results-file ----
run 0 eval runs/a --json -q --results-file rows.csv --per-class classes.csv --confusion confusion.png
equal 'PNG' "$(head -c 4 confusion.png | tail -c 3)" PNG
if command -v python3 >/dev/null; then
    equal 'classes' "$(python3 - <<'PY'
import csv, json
result = json.load(open("out"))
rows = [r for r in csv.DictReader(open("rows.csv", newline="")) if r["prediction"]]
classes = list(csv.DictReader(open("classes.csv", newline="")))
shares = []
for c in classes:
    mine = [r for r in rows if r["class"] == c["name"]]
    right = [r for r in mine if r["label"] == r["prediction"]]
    called = [r for r in rows if r["predicted_class"] == c["name"]]
    wrong = {}
    for r in mine:
        if r["label"] != r["prediction"]:
            wrong[r["predicted_class"]] = wrong.get(r["predicted_class"], 0) + 1
    assert (len(mine), len(right), len(called)) == (int(c["images"]), int(c["correct"]), int(c["predicted"])), c
    assert max(wrong.values(), default=0) == int(c["most_confused_count"]), c
    assert not wrong or wrong[c["most_confused"]] == int(c["most_confused_count"]), c
    assert c["precision"] == "" if not called else abs(float(c["precision"]) - len(right) / len(called)) < 1e-8, c
    if mine: shares.append(len(right) / len(mine))
print(len(classes), abs(100 * sum(shares) / len(shares) - result["balanced_top1"]) < 1e-9)
PY
)" '10 True'
fi
run 4 eval runs/a -q --per-class missing/x.csv
tells 'missing/x.csv'
run 4 eval runs/a -q --confusion missing/x.png
# ---- a set of some classes: the best of those, by the scores that classify gives ----
digits_folder whole 12
mkdir -p some/val && cp -r whole/val/2 whole/val/5 whole/val/7 some/val/
run 0 eval --checkpoint runs/a --data-dir some --classes present --json
json_ok out
tells '7 of 10 classes have no folder'
if command -v python3 >/dev/null; then
    cp out present.json
    run 0 classify --checkpoint runs/a some/val --recursive --topk 10 --output-type logit --exif-orientation ignore --format jsonl
    cat >best.py <<'PY'
import json
right = n = 0
for line in open("out"):
    row = json.loads(line)
    best = max((t for t in row["top"] if t["index"] in (2, 5, 7)), key=lambda t: t["logit"])
    right += best["index"] == int(row["path"].split("/")[-2])
    n += 1
d = json.load(open("present.json"))
print(d["top1_count"] == right and d["scored"] == n and d["top5"] == 100)
PY
    equal 'classes that are present' "$(python3 best.py)" True
fi
run 2 eval runs/a --classes some

# ---- reassessed labels: against the rows of --results-file ----
run 0 eval runs/a -q --results-file rows.csv
if command -v python3 >/dev/null; then
    python3 - <<'PY' >want
import csv, json, re
rows = [(int(re.search(r"(\d+)\.png$", r["path"]).group(1)), int(r["prediction"])) for r in csv.DictReader(open("rows.csv"))]
labels = [[] for i in range(max(n for n, p in rows))]
for i in range(len(labels)): labels[i] = [[], [i % 10], [i % 10, (i + 3) % 10, 7]][i % 3]
json.dump(labels, open("real.json", "w"))
json.dump(labels[:-1], open("short.json", "w"))
json.dump(labels + [[10]], open("high.json", "w"))
scored = [(n, p) for n, p in rows if labels[n - 1]]
print(len(scored), "%.6f" % (100 * sum(p in labels[n - 1] for n, p in scored) / len(scored)))
PY
    run 0 eval runs/a -q --real-labels real.json --json
    equal 'reassessed labels' "$(json_get out '"%d %.6f" % (d["real_scored"], d["real_top1"])')" "$(cat want)"
    run 0 eval runs/a -q --real-labels real.json
    says 'by reassessed labels: top-1'
    run 3 eval runs/a -q --real-labels short.json
    tells 'expected a name that ends in a number from 1 to'
    run 3 eval runs/a -q --real-labels high.json
    tells 'expected class indices from 0 to 9'
else
    skip 'reassessed labels: no python3'
fi
for bad in '{}' '[]' '[[1], 2]' '[["1"]]' '[[1.5]]' '[[1]'; do
    printf '%s' "$bad" >bad.json
    run 3 eval runs/a -q --real-labels bad.json
done
run 4 eval runs/a -q --real-labels none.json

run 0 eval runs/a -q --worst worst.png
equal 'a sheet' "$(head -c 4 worst.png | tail -c 3)" PNG
run 4 eval runs/a -q --worst missing/x.png

finish
