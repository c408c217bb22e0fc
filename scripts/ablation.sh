#!/bin/bash
# Trains one small classifier with every token mixer and several seeds on equal terms and prints a Markdown table: top-1 of the last raw
# weights on all held-back images, mean and spread. Runs that OUT/results.csv already has are skipped, so that a stopped
# series goes on where it was; remove OUT to begin anew.
#
#   scripts/ablation.sh -d DATA [-o OUT] [-t TTV] [-D DEVICE] [-m 'MIXER ...'] [-s 'SEED ...'] [-j LANES] [-T SECONDS] [-c CONFIG]
#                       [-- MORE FLAGS OF ttv train]
#
#   -d  image folder or tar files, as --data-dir        -o  runs/ablation       -t  build/bin/ttv       -D  cpu
#   -m  the mixers (default: base v1_only_w1 v3_linear_paper v6_linattn_both ga_both q_is_k lact ttt_linear graph:swiglu)
#   -s  1 2 3    -j  runs at the same time: 1    -T  no run is started that would not end within SECONDS: 0, no limit
#   -c  configs/ablation.ini
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
data='' out=runs/ablation ttv=$here/build/bin/ttv device=cpu lanes=1 limit=0 config=$here/configs/ablation.ini
mixers='base v1_only_w1 v3_linear_paper v6_linattn_both ga_both q_is_k lact ttt_linear graph:swiglu' seeds='1 2 3'
usage() {
    sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0"
    exit "$1"
}
while getopts 'd:o:t:D:m:s:j:T:c:h' flag; do
    case $flag in
    d) data=$OPTARG ;;
    o) out=$OPTARG ;;
    t) ttv=$OPTARG ;;
    D) device=$OPTARG ;;
    m) mixers=$OPTARG ;;
    s) seeds=$OPTARG ;;
    j) lanes=$OPTARG ;;
    T) limit=$OPTARG ;;
    c) config=$OPTARG ;;
    h) usage 0 ;;
    *) usage 2 >&2 ;;
    esac
done
shift $((OPTIND - 1))
[ -n "$data" ] || usage 2 >&2
[ -x "$ttv" ] || {
    echo "$ttv is no program: build first, or name it with -t" >&2
    exit 2
}

mkdir -p "$out"
results=$out/results.csv
head='mixer,seed,parameters,epochs,top1,top5,loss,train_loss,images_per_s,seconds'
[ -s "$results" ] || echo "$head" >"$results"
[ "$(head -n 1 "$results")" = "$head" ] || {
    echo "$results is of another series: choose another -o" >&2
    exit 2
}

# the value of a key of one flat JSON object
value() { grep -o "\"$1\":\"\{0,1\}[^,\"}]*" | head -n 1 | sed 's/^[^:]*://; s/^"//'; }
longest() { # MIXER: seconds of its longest run so far, 0 where there is none
    awk -F, -v m="$1" '$1 == m && $10 > most {most = $10} END {print int(most + 1) * (most > 0)}' "$results"
}

# One run; its row is written when it has been scored. A run that fails leaves its log and no row.
one() { # MIXER SEED FLAGS...
    local mixer=$1 seed=$2 begun run log json parameters row
    shift 2
    run=$out/$(echo "$mixer" | tr -c 'a-zA-Z0-9_\n' '_')-$seed log=$run.log
    grep -qF "$mixer,$seed," "$results" && return 0
    if [ "$limit" -gt 0 ] && [ $((SECONDS + $(longest "$mixer"))) -ge "$limit" ]; then
        echo "left out, no time: $mixer, seed $seed" >&2
        return 0
    fi
    rm -rf "$run"
    begun=$(date +%s.%N)
    "$ttv" train -c "$config" --device "$device" --mixer "$mixer" --seed "$seed" --data-dir "$data" --no-progress -o "$run" "$@" \
        >"$log" 2>&1 || {
        echo "FAILED: $mixer, seed $seed: $(tail -n 1 "$log")" >&2
        return 1
    }
    json=$("$ttv" eval --checkpoint "$run" --weights raw --device "$device" --json 2>>"$log") || {
        echo "FAILED: $mixer, seed $seed: not scored, see $log" >&2
        return 1
    }
    parameters=$(grep -o '[0-9]* parameters' "$log" | head -n 1 | cut -d' ' -f1)
    row=$(grep '"kind":"train"' "$run/metrics.jsonl" | tail -n 1)
    printf '%s,%s,%s,%s,%s,%s,%s,%s,%.0f,%.1f\n' "$mixer" "$seed" "$parameters" \
        "$(sed -n 's/^plan: \([0-9]*\) epochs.*/\1/p' "$log" | head -n 1)" "$(value top1 <<<"$json")" "$(value top5 <<<"$json")" \
        "$(value loss <<<"$json")" "$(value loss <<<"$row")" "$(value samples_per_s <<<"$row")" \
        "$(echo "$(date +%s.%N) $begun" | awk '{print $1 - $2}')" >>"$results"
    rm -rf "$run"
}

# Lanes take the next run when theirs is done; all mixers of one seed come before the next seed.
failed=0
for seed in $seeds; do
    for mixer in $mixers; do
        while [ "$(jobs -rp | wc -l)" -ge "$lanes" ]; do wait -n || failed=1; done
        one "$mixer" "$seed" "$@" &
    done
done
while [ -n "$(jobs -rp)" ]; do wait -n || failed=1; done

awk -F, '
NR == 1 || $5 == "" {next}
!($1 in n) {order[++mixers] = $1; low[$1] = high[$1] = $5}
{n[$1]++; sum[$1] += $5; squares[$1] += $5 * $5; parameters[$1] = $3; speed[$1] += $9; seconds[$1] += $10; loss[$1] += $8
 seeds[$1] = seeds[$1] sprintf(" %.2f", $5); epochs = $4}
END {
    print "| mixer | parameters | top-1, seed by seed | mean | spread (standard deviation) | training loss | images/s | s a run |"
    print "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for (i = 1; i <= mixers; i++) {
        m = order[i]; mean = sum[m] / n[m]
        v = n[m] > 1 ? (squares[m] - n[m] * mean * mean) / (n[m] - 1) : 0
        printf "| `%s` | %d |%s | %.2f | %s | %.3f | %.0f | %.1f |\n", m, parameters[m], seeds[m], mean,
            (n[m] > 1 ? sprintf("%.2f", sqrt(v > 0 ? v : 0)) : "-"), loss[m] / n[m], speed[m] / n[m], seconds[m] / n[m]
    }
    printf "\n%d epochs each; top-1 in %% of the held-back images, last raw weights\n", epochs
}' "$results"
exit $failed
