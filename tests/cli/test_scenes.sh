#!/bin/bash
# Posed scenes: ttv data synth-scenes, ttv data check on scenes, the epipolar picture.
. "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=1

PAIR=$SOURCE/data/motorcycle.tar

# ---- the committed pair ----
run 0 data check "$PAIR" --epipolar pair.png
says 'posed scenes: 1 (1 usable), 2 cameras, 2 pictures'
says 'pictures 741x500'
says '1 scenes fit, 0 look inverted'
says 'clean'
tells 'frames 0 and 1 of scene 6d6f746f72637963'
equal 'PNG' "$(head -c 4 pair.png | tail -c 3)" PNG
run 0 data check "$PAIR" --json
json_ok out
if command -v python3 >/dev/null; then
    equal 'pose' "$(json_get out 'd["scenes"][0]["pose"]')" fits
    equal 'travel' "$(json_get out 'round(d["scenes"][0]["travel"], 6)')" 0.193001
fi
run 2 data check "$PAIR" --epipolar x.png --pair 0,2
tells 'frames 0 to 1'
run 2 data check "$PAIR" --epipolar x.png --pair one
run 2 data check "$PAIR" --epipolar x.png --scene nobody
run 3 data check "$PAIR" --split train
tells "split 'train'"
run 2 data check "$SOURCE/data/digits.tar" --epipolar x.png
tells 'no posed scenes'

# ---- camera-to-world matrices, pixels, and other faults ----
mkdir m
tar -xf "$PAIR" -C m
text=m/test/6d6f746f72637963.txt
cp "$text" good.txt
sed 's/-0\.193001/0.193001/' good.txt >"$text"
run 1 data check m
says 'look like camera-to-world'
says '1 look inverted'
sed 's/ 1\.34275034/ 994.978/' good.txt >"$text"
run 1 data check m
says "6d6f746f72637963.txt:2: column 2 (fx): '994.978' looks like pixels"
says '(0 usable)'
sed 's/$/\r/; s/ 0 0 1 / 0  0\t1 /' good.txt >"$text"
run 0 data check m
sed '3s/ 0$//' good.txt >"$text"
run 1 data check m
says ':3: 18 columns'
sed '3s/^1000000/0/' good.txt >"$text"
run 1 data check m
says ':3: column 1 (timestamp)'
says 'repeats the timestamp of line 2'
head -n 1 good.txt >"$text"
run 1 data check m
says 'only a URL'
: >"$text"
run 1 data check m
says 'an empty file'
head -n 2 good.txt >"$text"
run 1 data check m
says 'only one camera'
sed '2s/ 1 0 0 0 / 1 0.1 0 0 /' good.txt >"$text"
run 1 data check m
says 'not orthonormal by 0.1'

# ---- pictures: missing, extra, cut, of another size ----
cp good.txt "$text"
mv m/test/6d6f746f72637963/0.jpg m/test/6d6f746f72637963/8001.jpg
run 1 data check m
says 'only one picture'
says '1          cameras without a picture'
says '1          pictures without a camera'
mv m/test/6d6f746f72637963/8001.jpg m/test/6d6f746f72637963/7999.jpg
run 0 data check m
cp m/test/6d6f746f72637963/7999.jpg keep.jpg
head -c 9000 keep.jpg >m/test/6d6f746f72637963/7999.jpg
run 1 data check m
says 'corrupt: m/test/6d6f746f72637963/7999.jpg'
cp "$SOURCE/data/photos/coffee.png" m/test/6d6f746f72637963/7999.jpg
run 1 data check m
says '1 pictures are not 600x400 like the first: m/test/6d6f746f72637963/1000000.jpg'

# ---- procedural scenes ----
run 0 data synth-scenes rooms --scenes 2 --frames 5 --size 64x48 --seed 4 --samples 1
says '2 synthetic scenes of 5 frames (64x48)'
grep -qi 'synthetic' rooms/README.md || fail 'the README does not say synthetic'
equal 'URL' "$(head -qn 1 rooms/train/*.txt | grep -c '^synthetic:')" 2
run 0 data check rooms
says 'posed scenes: 2 (2 usable), 10 cameras, 10 pictures'
says '2 scenes fit'
run 0 data check rooms/train
run 0 data synth-scenes again --scenes 2 --frames 5 --size 64x48 --seed 4 --samples 1 -j 1 --json
json_ok out
checks=$((checks + 1))
diff -r rooms/train again/train >/dev/null || fail 'the same seed gives other scenes'
tar -C rooms -cf rooms.tar train
run 0 data check rooms.tar
says '10 pictures'
run 2 data synth-scenes rooms --scenes 1
tells 'not empty'
run 0 data synth-scenes rooms --split test --seed 5 --scenes 1 --frames 2 --size 32x32 --overwrite
run 0 data check rooms --split test
says '2 cameras'
run 2 data synth-scenes
run 2 data synth-scenes x --size 100
tells 'WIDTHxHEIGHT'
run 2 data synth-scenes x --split a/b
run 2 data synth-scenes x --frames 1
run 4 data synth-scenes /proc/nowhere --scenes 1
run 0 data synth-scenes --help
says '--frames'

# ---- real clips, where they are ----
real=$SHARED/data/multiview/re10k-real.tar
if [ -f "$real" ]; then
    run 0 data check "$real"
    says 'posed scenes: 8 (8 usable), 564 cameras, 564 pictures'
    says '8 scenes fit'
else
    skip 'the RealEstate10K clips are not there'
fi
finish
