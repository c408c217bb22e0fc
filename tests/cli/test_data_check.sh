#!/bin/bash
# ttv data check: clean sets, every kind of fault, exit codes 0, 1 and 3.
. "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=1

DIGITS=$SOURCE/data/digits.tar
PHOTOS=$SOURCE/data/photos

# ---- clean: a tar, the same as folders ----
run 0 data check "$DIGITS"
says 'train: 1442 images, 10 classes'
says 'val: 355 images, 10 classes'
says 'clean'
quiet_err
run 0 data check "$DIGITS" --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'splits' "$(json_get out '[s["split"] for s in d["splits"]]')" "['train', 'val']"
    equal 'images' "$(json_get out 'sum(s["images"] for s in d["splits"])')" 1797
    equal 'formats' "$(json_get out 'd["splits"][0]["formats"]["png"]')" 1442
    equal 'clean' "$(json_get out 'd["clean"]')" True
fi
mkdir digits
tar -xf "$DIGITS" -C digits
run 0 data check digits -j 1
one_thread=$out
run 0 data check digits -j 3
equal 'report on 3 threads' "$out" "$one_thread"
run 0 data check --data-dir digits --split val
says 'val: 355 images'

# ---- a folder of class folders, without splits ----
run 0 data check digits/val
says '(root): 355 images, 10 classes'

# ---- faults: corrupt files in every shape ----
bad='bad set'
mkdir -p "$bad"/train/{cat,dog} "$bad"/val/{cat,dog}
cp "$PHOTOS/flower.jpg" "$bad/train/cat/good.jpg"
cp "$PHOTOS/coffee.png" "$bad/train/dog/good.png"
cp "$PHOTOS/chelsea.png" "$bad/val/cat/good.png"
cp "$PHOTOS/rocket.jpg" "$bad/val/dog/good.jpg"
run 0 data check "$bad"
says 'train: 2 images'
head -c 30000 "$PHOTOS/flower.jpg" >"$bad/train/cat/cut.jpg"
: >"$bad/train/cat/empty.png"
echo 'this is no picture' >"$bad/train/dog/text.jpg"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n' >"$bad/train/dog/lfs.png"
printf '<!DOCTYPE html><html></html>' >"$bad/train/dog/page.jpg"
cp "$PHOTOS/flower.jpg" "$bad/train/cat/really-a-jpeg.png" # type by content: fine, but repeated
run 1 data check "$bad"
for file in cut.jpg empty.png text.jpg lfs.png page.jpg; do says "$file"; done
says 'LFS pointer'
says '5 faults'
says '1          repeated files within a split'
run 1 data check "$bad" --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'corrupt' "$(json_get out 'len(d["splits"][0]["corrupt"])')" 5
    equal 'order' "$(json_get out '[c["path"].split("/")[-1] for c in d["splits"][0]["corrupt"]]')" \
        "['cut.jpg', 'empty.png', 'lfs.png', 'page.jpg', 'text.jpg']"
fi
run 1 data check 'bad set' --max-list 2
says '... and 3 more'

# ---- hidden, other and special files are passed over, links are followed ----
mkdir -p tree/train/a tree/train/b tree/train/.ipynb_checkpoints
cp "$PHOTOS/flower.jpg" tree/train/a
cp "$PHOTOS/coffee.png" tree/train/b
cp "$PHOTOS/coffee.png" tree/train/.ipynb_checkpoints
cp "$PHOTOS/flower.jpg" tree/train/a/.hidden.jpg
echo note >tree/train/a/note.txt
ln -s "$PHOTOS/rocket.jpg" tree/train/b/link.jpg
run 0 data check tree
says 'train: 3 images, 2 classes'
says 'hidden names passed over'
says 'other files passed over'
ln -s /nowhere/at-all.jpg tree/train/b/dangling.jpg
run 1 data check tree
says '1 dangling links'
rm tree/train/b/dangling.jpg
mkfifo tree/train/b/pipe.jpg
timeout 20 "$TTV" data check tree >out 2>err </dev/null
code=$?
checks=$((checks + 1))
[ "$code" -ne 124 ] || fail 'a FIFO blocks data check'
rm tree/train/b/pipe.jpg
if [ "$(id -u)" -eq 0 ]; then
    skip 'an unreadable file: root reads everything'
else
    cp "$PHOTOS/rocket.jpg" tree/train/b/secret.jpg
    chmod 000 tree/train/b/secret.jpg
    run 1 data check tree
    says 'secret.jpg'
    rm -f tree/train/b/secret.jpg
fi
odd=$(printf 'tree/train/a/new\nline \xff\x1b[31m.jpg')
cp "$PHOTOS/rocket.jpg" "$odd"
run 0 data check tree --no-duplicates --json
json_ok out
head -c 2000 "$PHOTOS/rocket.jpg" >"$odd"
run 1 data check tree --json
json_ok out
run 1 data check tree
checks=$((checks + 1))
case $out in *$'\033'*) fail 'an escape sequence of a file name reaches the report' ;; esac
rm "$odd"

# ---- empty classes, class sets that differ, pictures in both splits, two labels for one picture ----
mkdir -p tree/train/empty
run 1 data check tree
says "class 'empty' is empty"
rmdir tree/train/empty
mkdir -p tree/val/a tree/val/c
cp "$PHOTOS/chelsea.png" tree/val/c
cp "$PHOTOS/flower.jpg" tree/val/a
run 1 data check tree
says "class 'b' is in train, but not in val"
says "class 'c' is in val, but not in train"
says 'flower.jpg'
cp "$PHOTOS/coffee.png" tree/val/c
run 1 data check tree --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'across' "$(json_get out 'd["duplicates"]["across_splits"]')" 2
    equal 'conflicts' "$(json_get out 'd["duplicates"]["conflicting_labels"]')" 1
fi
run 1 data check tree --no-duplicates
checks=$((checks + 1))
case $out in *'same picture'*) fail '--no-duplicates still compares' ;; esac

# ---- a flat val folder: labels are asked for, and taken from a file ----
mkdir -p flat/val
cp -r digits/train flat/train
for class in 0 1 2 3 4 5 6 7 8 9; do
    cp "$(find digits/val/$class -name '*.png' | sort | head -n 1)" flat/val/picture$class.png
    echo "picture$class.png $class" >>labels.txt
done
run 1 data check flat
says 'val-labels'
says '1 fault'
run 0 data check flat --val-labels labels.txt
says 'val: 10 images, 10 classes'

# ---- EXIF and odd modes, from the shared corpus ----
corpus=$SHARED/data/decoder-corpus/decoder-corpus.tar
if [ -f "$corpus" ]; then
    run 1 data check "$corpus" --json
    json_ok out
    if command -v python3 >/dev/null; then
        equal 'images' "$(json_get out 'd["splits"][0]["images"]')" 671
        equal 'tagged' "$(json_get out 'd["splits"][0]["exif_tagged"] > 5')" True
        equal '16-bit' "$(json_get out 'd["splits"][0]["modes"]["bits_16"] > 30')" True
        equal 'cmyk' "$(json_get out 'd["splits"][0]["modes"]["cmyk"] > 3')" True
    fi
else
    skip 'the decoder corpus is not there'
fi

# ---- no data set ----
run 4 data check nowhere
tells 'nowhere'
quiet_out
mkdir void
run 3 data check void
tells 'void'
run 3 data check "$PHOTOS/flower.jpg"
head -c 100000 "$DIGITS" >cut.tar
run 3 data check cut.tar
tells 'cut.tar'
: >empty.tar
run 3 data check empty.tar
run 3 data check digits --split test
tells 'test'
run 1 data check digits --split train,test
says 'train: 1442 images'
says 'test'
run 2 data check
tells 'no data set'
run 2 data check digits digits
run 2 data check digits --splitt val
tells 'did you mean --split'
run 2 data check digits --workers many

# ---- what training sees ----
png() { head -c 8 "$1" | od -An -tx1 | tr -d ' \n'; }
for policy in none trivial rand-m9-mstd0.5-inc1; do
    run 0 data check digits --split val --set model.image_size=16 --set augment.aa=$policy --augment-preview $policy.png
    tells "wrote $policy.png"
    equal "signature of $policy.png" "$(png $policy.png)" 89504e470d0a1a0a
done
checks=$((checks + 1))
cmp -s none.png trivial.png && fail 'the preview does not show the policy'
run 2 data check digits --split val --set augment.aa=wild --augment-preview x.png
tells 'rand-mM'
run 4 data check digits --split val --augment-preview missing/x.png

# ---- output that cannot be written ----
if [ -w /dev/full ]; then
    "$TTV" data check "$DIGITS" >/dev/full 2>err
    equal 'exit code on /dev/full' $? 4
fi

run 0 data check --help
says '--split'
says '--data-dir'
checks=$((checks + 1))
grep -q -e '--on-corrupt' -e '--max-corrupt' <<<"$out" && fail '--help offers flags that do nothing here'
run 2 data check "$DIGITS" --on-corrupt fail
tells 'on-corrupt'
printf '[data]\non_corrupt = fail\nmax_corrupt = 0\n' >strict.ini
run 0 data check "$DIGITS" -c strict.ini
says 'clean'
# ---- ImageNet's classes: is the split whole? ----
mkdir -p net/val
for ((i = 0; i < 1000; i++)); do mkdir "net/val/n$((10000000 + i))"; done
cp "$SOURCE/data/photos/flower.jpg" net/val/n10000000
run 1 data check net
says "ImageNet-1k's classes, but the whole split has 50000 images"
says "val: 1 images"

finish
