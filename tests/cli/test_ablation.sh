#!/bin/bash
# scripts/ablation.sh: a row for every run, the table, and a second call that runs only what is missing.
. "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=1

few=(--img-size 16 --width 16 --depth 1 --heads 1 --epochs 1 --warmup-epochs 0 --log-interval 1 --batch-size 32 --workers 1
    --set data.val_split=val --set data.train_limit=64 --set data.val_limit=20)
series() { # STATUS FLAGS...
    local want=$1 got=0
    shift
    "$SOURCE/scripts/ablation.sh" -t "$TTV" -d "$SOURCE/data/digits.tar" -o series "$@" >out 2>err || got=$?
    command_line="ablation.sh $*"
    out=$(cat out) err=$(cat err)
    equal 'exit code' "$got" "$want"
}

series 0 -m 'base graph:linear' -s '1' -j 2 -- "${few[@]}"
equal 'rows' "$(wc -l <series/results.csv)" 3
equal 'a table of two' "$(grep -c '^| `' out)" 2
says '| `graph:linear` |'
says '1 epochs each'
equal 'no checkpoint stays' "$(find series -name '*.safetensors' | wc -l)" 0
cp series/results.csv first.csv
series 0 -m 'base graph:linear' -s '1 2' -- "${few[@]}"
equal 'rows' "$(wc -l <series/results.csv)" 5
equal 'rows of before' "$(head -n 3 series/results.csv)" "$(cat first.csv)"
python=$(command -v python3 || true)
if [ -n "$python" ]; then
    "$python" - series/results.csv out <<'P' || fail 'mean and spread of the table differ from those of its rows'
import csv, statistics, sys
rows = [r for r in csv.DictReader(open(sys.argv[1])) if r["mixer"] == "base"]
top1 = [float(r["top1"]) for r in rows]
line = [l.split("|") for l in open(sys.argv[2]) if l.startswith("| `base`")][0]
sys.exit(not (abs(float(line[4]) - statistics.mean(top1)) < 0.006 and abs(float(line[5]) - statistics.stdev(top1)) < 0.006))
P
fi
# a limit that has passed starts nothing; a mixer that fails is named and leaves no row
series 0 -m base -s 3 -T 1 -- "${few[@]}"
tells 'left out, no time: base, seed 3'
series 1 -m nonsense -s 1 -- "${few[@]}"
tells "FAILED: nonsense, seed 1"
equal 'rows' "$(wc -l <series/results.csv)" 5
series 2 -q
finish
