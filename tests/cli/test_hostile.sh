#!/bin/bash
# What the outside world does to training and scoring: odd names, label traps, specials in the data, no memory, no
# disk, numbers that are none.
. "$(dirname "$0")/train_lib.sh"
short=(--batch-size 16 --epochs 1 --max-steps 1)

# ---- names with spaces, newlines, bytes that are no UTF-8, a leading dash ----
for name in 'with space' $'new\nline' $'bad\xffbyte' '-dash' "quote'\"" ; do
    rm -rf tree && digits_folder tree 2
    mv tree "./$name"
    run 0 train "${tiny[@]}" "${short[@]}" --data-dir "$name" -o "run $name"
    run 0 eval --checkpoint "run $name" -q --results-file "$name.csv"
    says 'top-1'
    rm -rf "./$name"
done
checks=$((checks + 1))
printf '%s' "$err" | grep -q $'\xff' && fail 'a raw byte reached the terminal'
# class folders: any UTF-8 goes, other bytes are refused by name
digits_folder tree 2
for split in train val; do mv "tree/$split/3" "tree/$split/drei ü, \"3\""; done
run 0 train "${tiny[@]}" "${short[@]}" --data-dir tree -o utf8
run 0 eval --checkpoint utf8 --json -q --results-file utf8.csv
json_ok out
checks=$((checks + 1))
grep -q '"drei ü, ""3"""' utf8.csv || fail 'the class name is not quoted in the CSV'
for split in train val; do mv "tree/$split/drei ü, \"3\"" "tree/$split/"$'drei\xff'; done
run 3 train "${tiny[@]}" "${short[@]}" --data-dir tree -o x
tells 'UTF-8'
for split in train val; do mv "tree/$split/"$'drei\xff' "tree/$split/3"; done

# ---- class folders: hidden ones are no class, an empty one keeps its index ----
mkdir tree/train/.cache tree/val/.cache
touch tree/train/.cache/a.png
rm tree/train/7/*
run 0 train "${tiny[@]}" "${short[@]}" --data-dir tree -o hidden
tells 'have no image'
tells '10 classes'
rm -rf tree

# ---- files that are no pictures ----
digits_folder tree 4
mkdir tree/val/0/folder.png
mkfifo tree/val/1/pipe.png
ln -s nowhere tree/val/2/link.png
head -c 3000000 /dev/zero >tree/val/3/zero.png
printf '<html>' >tree/val/4/page.jpg
: >tree/val/5/empty.png
run 0 train "${tiny[@]}" "${short[@]}" --data-dir tree --set data.max_corrupt=0.5 -o specials
tells 'page.jpg'
tells 'empty.png'
tells 'zero.png'
run 3 eval --checkpoint specials --data-dir tree --set data.max_corrupt=0
tells 'tree/val/'
rm -rf tree

# ---- a flat validation folder needs labels, and the right ones ----
digits_folder tree 4
mkdir flat
: >labels.txt
: >short.txt
: >devkit.txt
for class in 0 1 2 3 4 5 6 7 8 9; do
    for file in tree/val/"$class"/*; do
        base=${class}_$(basename "$file")
        mv "$file" "flat/$base"
        echo "$base $class" >>labels.txt
        echo $((class + 1)) >>devkit.txt
    done
done
head -n 5 labels.txt >short.txt
rm -r tree/val
mv flat tree/val
flat=(--data-dir tree "${short[@]}")
run 3 train "${tiny[@]}" "${flat[@]}" -o x
tells 'val'
run 0 train "${tiny[@]}" "${flat[@]}" --val-labels labels.txt -o flat
says 'top-1'
run 3 train "${tiny[@]}" "${flat[@]}" --val-labels short.txt -o x
tells 'short.txt'
tells '40'
run 3 train "${tiny[@]}" "${flat[@]}" --val-labels devkit.txt -o x
tells 'devkit.txt'
sed 's/ 9$/ 12/' labels.txt >over.txt
run 3 train "${tiny[@]}" "${flat[@]}" --val-labels over.txt -o x
tells 'over.txt'
run 4 train "${tiny[@]}" "${flat[@]}" --val-labels missing.txt -o x
tells 'missing.txt'
checks=$((checks + 1))
[ ! -e x ] || fail 'a mistake left a run folder behind'

# ---- numbers that are none: skipped, counted, named; ten in a row end the run, the checkpoint stays ----
run 0 train "${tiny[@]}" "${small_data[@]}" --max-steps 2 -o nan
cp nan/last.safetensors before.safetensors
run 6 train --resume nan --epochs 8 --lr 100 --min-lr 100 --clip-grad 0 --weight-decay 10 --no-progress
tells 'skipped'
tells 'in a row'
run 0 inspect nan
json_ok nan/metrics.jsonl lines

# ---- weights that hold a NaN: told, nothing is called a result ----
if command -v python3 >/dev/null; then
    python3 - nan/last.safetensors spoilt.safetensors <<'PY'
import struct, sys
b = bytearray(open(sys.argv[1], "rb").read())
b[-40:-36] = struct.pack("<f", float("nan"))
open(sys.argv[2], "wb").write(b)
PY
    run 6 eval --checkpoint spoilt.safetensors --json "${small_data[@]}"
    json_ok out
    equal 'counted' "$(json_get out 'd["not_finite"], d["loss"]')" '(100, None)'
    tells 'the scores of 100 of 100 images are not finite'
    run 6 classify --checkpoint spoilt.safetensors "$SOURCE/data/photos/flower.jpg" --format jsonl
    json_ok out lines
    says 'not finite'
    tells 'no scores for 1 of 1 pictures'
else
    skip 'a NaN in weights: no python3 to write one'
fi

# ---- memory ----
if ! nm -D "$TTV" 2>/dev/null | grep -q __asan; then
    command_line='ttv train (1.5 GB of address space)'
    checks=$((checks + 1))
    (ulimit -v 1500000; "$TTV" train "${tiny[@]}" "${small_data[@]}" --width 4096 --depth 12 --threads 1 \
        -o memory >out 2>err)
    got=$?
    out=$(cat out) err=$(cat err)
    [ "$got" -eq 5 ] || fail "exit code $got instead of 5"
    tells 'memory'
fi

# ---- a disk of 1 MB ----
mkdir disk
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=1m tmpfs disk 2>/dev/null; then
    run 0 train "${tiny[@]}" "${small_data[@]}" --max-steps 1 --checkpoint-hist 0 -o disk/run
    cp disk/run/last.safetensors before.safetensors
    head -c 2000000 /dev/zero >disk/fill 2>/dev/null
    run 4 train --resume disk/run --epochs 2 --no-progress
    checks=$((checks + 1))
    cmp -s disk/run/last.safetensors before.safetensors || fail 'the old checkpoint is damaged'
    run 0 inspect disk/run
    rm disk/fill
    run 0 train --resume disk/run --epochs 1 --checkpoint-hist 0 --no-progress
    umount disk
    mkdir small
    mount -t tmpfs -o size=64k tmpfs small
    run 4 train "${tiny[@]}" "${small_data[@]}" -o small/run
    tells 'needs'
    checks=$((checks + 1))
    [ ! -e small/run ] || fail 'a run began that has no room'
    umount small
else
    skip 'no tmpfs can be mounted here: the full disk is only tested with a file size limit'
fi

finish
