#!/bin/bash
# ttv data pack: shards that every WebDataset reader takes, and that train and score as the folders they came from.
. "$(dirname "$0")/train_lib.sh"
digits_folder tree 12

run 0 data pack tree shards --shard-images 50
says 'shards/train-*.tar: 120 images of 10 classes in 3 shards'
says 'shards/val-*.tar: 120 images of 10 classes in 3 shards'
equal 'files' "$(ls shards | tr '\n' ' ')" \
    'classes.txt train-000000.tar train-000001.tar train-000002.tar val-000000.tar val-000001.tar val-000002.tar '
equal 'pictures and classes of a shard' "$(tar -tf shards/train-000002.tar | sed 's/.*\.//' | sort | uniq -c | tr -s ' \n' ' ')" \
    ' 20 cls 20 png '
# What lies in a shard is the very file, beside its class.
tar -xf shards/train-000000.tar -C "$WORK" && first=$(ls 0*.png | head -n 1) # numbers are places in the sorted tree
number=$((10#${first%.png}))
equal 'class' "$(cat "${first%.png}.cls")" $((number / 12))
cmp -s "$first" "$(ls tree/train/$((number / 12))/* | sed -n $((number % 12 + 1))p)" || fail 'the picture has changed'
rm 0*
run 0 data check shards
says 'clean'

# ---- the same run, and the same score ----
run 0 train "${tiny[@]}" --data-dir tree --epochs 1 -o a
run 0 train "${tiny[@]}" --data-dir shards --epochs 1 -o b
same_weights a b 'trained on shards'
run 0 eval --checkpoint a --json -q
cp out folders.json
for root in shards 'shards/{train,val}-{000000..000002}.tar' 'shards/val-{000000..000002}.tar'; do
    run 0 eval --checkpoint a --json -q --data-dir "$root"
    equal "score of $root" "$(json_get out 'd["top1_count"], d["loss"]')" \
        "$(json_get folders.json 'd["top1_count"], d["loss"]')"
done
run 0 eval --checkpoint a --data-dir shards/val-000000.tar # fewer shards than there were: fewer images, said
says '/50)'
run 4 eval --checkpoint a --data-dir 'shards/val-{000000..000003}.tar'
tells 'val-000003.tar'

# ---- names of classes decide, not their numbers ----
mkdir odd && cp shards/val-*.tar odd && tac shards/classes.txt >odd/classes.txt
run 0 eval --checkpoint a --json -q --data-dir odd --per-class odd.csv
json_ok out
run 0 data pack tree bytes --shard-mb 0.05 --no-shuffle --split train --json
json_ok out
equal 'shards by size' "$(json_get out '[(s["images"], s["shards"] > 2) for s in d["splits"]]')" '[(120, True)]'
run 0 data pack tree/train plain --no-shuffle
says 'plain/all-*.tar: 120 images'
run 0 data pack tree again --shard-images 50
cmp -s again/train-000001.tar shards/train-000001.tar || fail 'the same call gives other bytes'

# ---- class folders alone: a share of them validates, the same in the pack ----
run 0 train "${tiny[@]}" --data-dir tree/train --train-split '' --val-split 25% --epochs 1 -o held
tells 'validation: 36 images'
run 0 eval --checkpoint held -q
equal 'the run knows its share' "$(sed -n 's/^top-1 \([0-9.]*\) .*/\1/p' out)" \
    "$(awk -F, '$1 == "validate" {printf "%.3f", $11}' held/metrics.csv)"
run 0 data pack tree/train parts --train-split '' --val-split 25%
says 'parts/train-*.tar'
says 'parts/val-*.tar'
run 0 train "${tiny[@]}" --data-dir parts --epochs 1 -o packed
same_weights held packed 'a share held back'
run 0 data check tree/train --train-split '' --val-split 25%
says '25%: '
run 3 train "${tiny[@]}" --data-dir tree/train --epochs 1 -o x
tells "--train-split '' --val-split 10%"

# ---- archives as ImageNet has them: a tar of tars, and a flat one with the development kit's numbers (docs/cli.md) ----
mkdir classes flat
for c in 0 1 2 3 4 5 6 7 8 9; do tar -cf "classes/n0000000$c.tar" -C "tree/train/$c" .; done
tar -cf ILSVRC2012_img_train.tar -C classes $(ls classes)
number=0
for c in 3 1 4 1 5 9 2 6 5 3; do # the kit counts classes from 1 in an order of its own: here downwards
    number=$((number + 1))
    cp "$(ls tree/val/$c/* | sed -n ${number}p)" "flat/ILSVRC2012_val_$(printf %08d $number).JPEG"
    echo $((10 - c)) >>ILSVRC2012_validation_ground_truth.txt
    echo "$c" >>want
done
tar -cf ILSVRC2012_img_val.tar -C flat $(ls flat)
for c in 0 1 2 3 4 5 6 7 8 9; do echo "n0000000$c $((10 - c)) name_$c"; done >map_clsloc.txt
awk 'NR == FNR {wnid[$2] = $1; next} {printf "ILSVRC2012_val_%08d %s\n", FNR, wnid[$1]}' \
    map_clsloc.txt ILSVRC2012_validation_ground_truth.txt >val.txt
both=(--data-dir ILSVRC2012_img_train.tar,ILSVRC2012_img_val.tar)
run 3 train "${tiny[@]}" "${both[@]}" --val-labels ILSVRC2012_validation_ground_truth.txt -o x
tells 'not the order of the wnid folders'
run 0 train "${tiny[@]}" "${both[@]}" --val-labels val.txt --epochs 1 -o net
tells '120 training images, 10 classes'
run 0 eval --checkpoint net -q --results-file net.csv
equal 'labels' "$(awk -F, 'NR > 1 {print $2, $3}' net.csv | sort | awk '{print $2}' | tr '\n' ' ')" "$(tr '\n' ' ' <want)"

# ---- what cannot be done leaves nothing behind ----
run 2 data pack tree shards
tells 'shards is not empty'
run 2 data pack tree
run 2 data pack tree/train tree/train/out/
tells 'tree/train/out lies inside tree/train'
run 4 data pack nowhere x
tells 'nowhere'
printf 'no picture' | tee tree/val/3/torn.png >tree/val/3/worn.png
run 3 data pack tree x
tells 'torn.png'
tells '2 of 122'
run 3 data pack tree x --on-corrupt fail
run 0 data pack tree lenient --max-corrupt 0.5
says '2 left out'
if [ "$(id -u)" -ne 0 ]; then
    mkdir shut && chmod a-w shut
    run 4 data pack tree shut/x
    tells 'shut/x'
fi
command_line='ttv data pack (no file above 20 KB)'
(ulimit -f 20; "$TTV" data pack lenient x >out 2>err)
got=$? out=$(cat out) err=$(cat err)
equal 'exit code on a full disk' "$got" 4
tells 'train-000000.tar'
checks=$((checks + 1))
[ -z "$(ls -d x* 2>/dev/null)" ] || fail "left behind: $(ls -d x*)"
# ---- stopped half-way: no shard, no folder ----
command_line='ttv data pack, interrupted'
got=0
: >err
for ((i = 1; i <= 100; i++)); do
    grep -q 'nothing is left of it' err && break
    rm -rf x
    "$TTV" data pack shards x --shard-images 1 >/dev/null 2>err &
    last=$!
    sleep 0.0$((i % 10))
    kill -TERM $last 2>/dev/null
    wait $last
    got=$?
done
err=$(cat err)
tells 'nothing is left of it'
equal 'exit code' "$got" 143
checks=$((checks + 1))
[ -z "$(ls -d x* 2>/dev/null)" ] || fail "left behind: $(ls -d x*)"
finish
