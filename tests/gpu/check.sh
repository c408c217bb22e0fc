#!/bin/bash
# Everything that needs a card, in one command:  tests/gpu/check.sh [flags] [BUILD]
#
#   ops        the op table on the card against the CPU and the naive version
#   gradient   every op's gradient on the card against finite differences
#   golden     golden vectors on the card: fp32, tf32, bf16
#   graphs     recorded steps change no bit; memory plans
#   memory     the largest batch that the plan names runs, the next power of two is refused
#   model      whole models, card against CPU; same bits twice; resume (model_parity.c)
#   sanitizer  compute-sanitizer over the op table: memcheck, then racecheck
#   bench      ttv bench step and ops of ViTTT-T, S, B in bf16
#
#   --only LIST     these parts, separated by commas
#   --device D      cuda (the default) or cuda:N; cpu tries this script out
#   --batch N       images of a bench pass (256)
#   --models LIST   of the bench: vittt_tiny,vittt_small,vittt_base
#   --output FILE   instead of tests/gpu/last_run.json
#   --logs DIR      keep the programs' output there
#
# BUILD: the build folder (build). Needs its programs and this source folder, neither compiler nor
# network. Prints one line per check and what is wrong where one fails. What was not run again keeps
# its entry in the JSON file as long as kernels/ and card are the same.
# Exit 0: no failure; 1: some; 2: usage; 77: no card.
set -u
export LC_ALL=C OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

parts=ops,gradient,golden,graphs,memory,model,sanitizer,bench
only=$parts
device=cuda
batch=256
models=vittt_tiny,vittt_small,vittt_base
output=$here/last_run.json
logs=
build=
racecheck_seconds=${RACECHECK_SECONDS:-180}

usage() {
    sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
    --only | --device | --batch | --models | --output | --logs)
        [ $# -ge 2 ] || usage
        case $1 in
        --only) only=$2 ;;
        --device) device=$2 ;;
        --batch) batch=$2 ;;
        --models) models=$2 ;;
        --output) output=$2 ;;
        --logs) logs=$2 ;;
        esac
        shift 2
        ;;
    -*) usage ;;
    *)
        [ -z "$build" ] || usage
        build=$1
        shift
        ;;
    esac
done
for part in ${only//,/ }; do
    case ,$parts, in *",$part,"*) ;; *) usage ;; esac
done
build=${build:-$root/build}
[ -d "$build" ] || build=$root/$build
if ! [ -x "$build/tests/ops/ops_test" ]; then
    echo "FAIL no $build/tests/ops/ops_test: build first, or name the build folder" >&2
    exit 2
fi

# The toolkit's libraries where the build's own path to them does not exist; those of a packed folder.
for folder in "$root/lib" /usr/local/cuda/lib64; do
    [ ! -d "$folder" ] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
export LD_LIBRARY_PATH

work=$(mktemp -d "${TMPDIR:-/tmp}/ttv-gpu.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
logs=${logs:-$work/logs}
mkdir -p "$logs" || exit 1

# ---- the card ----

"$build/tests/ops/ops_test" --device "$device" zero >"$work/probe" 2>&1
case $? in
77)
    cat "$work/probe"
    exit 77
    ;;
0 | 1) ;;
*)
    echo "FAIL the device does not open:"
    cat "$work/probe"
    exit 1
    ;;
esac
ask() { # FIELD of nvidia-smi
    local index=0
    case $device in cuda:*) index=${device#cuda:} ;; esac
    nvidia-smi --query-gpu="$1" --format=csv,noheader -i "$index" 2>/dev/null | head -n 1
}
card=$(ask name)
driver=$(ask driver_version)
card=${card:-$(sed -n 's/.* failed on //p' "$work/probe")}
commit=$(cat "$root/COMMIT" 2>/dev/null || git -C "$root" describe --always --dirty --abbrev=12 2>/dev/null)
kernels=$("$root/scripts/kernels_hash.sh" "$root")
echo "$card, driver ${driver:-unknown}; commit ${commit:-unknown}, kernels ${kernels:0:12}"

# ---- records: one line of JSON each, so that a later run can keep those it does not make anew ----

failed=0
text() { # a JSON string
    printf '"%s"' "$(printf '%s' "$1" | tr -d '\000-\010\013-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g' |
        sed ':a;N;$!ba;s/\n/\\n/g')"
}
stamp() { printf '"date": "%s", "commit": %s' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$(text "${commit:-unknown}")"; }

record() { # NAME RESULT SECONDS SUMMARY
    printf '"%s": {"result": "%s", "seconds": %s, %s, "summary": %s}\n' "$1" "$2" "$3" "$(stamp)" "$(text "$4")" \
        >>"$work/checks"
}

# check NAME PATTERN COMMAND...: runs it; the summary is the last line of its output that matches PATTERN. On a
# failure the first lines that tell of one are shown.
check() {
    local name=$1 pattern=$2 log=$logs/$1.log start code seconds summary result
    shift 2
    start=$(date +%s%N)
    "$@" >"$log" 2>&1
    code=$?
    seconds=$(seconds_since "$start")
    summary=$(grep -E "$pattern" "$log" | tail -n 1)
    case $code in
    0) result=pass ;;
    77) result=skip ;;
    *)
        result=fail
        failed=$((failed + 1))
        ;;
    esac
    summary=${summary:-$(tail -n 1 "$log")}
    summary=${summary//"$root/"/}
    [ $result != fail ] || summary="exit $code: $summary"
    printf '%-4s %-12s %6s s  %s\n' "${result^^}" "$name" "$seconds" "$summary"
    [ $result != fail ] || grep -E 'FAIL|ERROR|Error|ABOVE|above|Invalid|error:' "$log" | head -n 12 | sed 's/^/     | /'
    record "$name" $result "$seconds" "$summary"
}

seconds_since() { # NANOSECONDS: one decimal
    local tenths=$((($(date +%s%N) - $1) / 100000000))
    printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

# ---- parts ----

part_ops() { check ops ' failed on ' "$build/tests/ops/ops_test" --device "$device"; }

part_gradient() {
    check gradient ' failures$' "$build/tests/ops/ops_gradient" --device "$device" --source "$root"
}

part_golden() {
    local precision golden=$root/tests/data/golden
    for precision in fp32 tf32 bf16; do
        check "golden_$precision" ' checks, ' "$build/tests/golden/golden_check" --device "$device" \
            --precision $precision "$golden/models/vittt.safetensors"
        check "golden_lact_$precision" ' checks, ' "$build/tests/golden/golden_check" --device "$device" \
            --precision $precision "$golden"/models/lact_*.safetensors
    done
    # The fast-weight library computes in F32 whatever the activations are.
    for precision in fp32 tf32; do
        check "golden_fast_$precision" ' checks, ' "$build/tests/golden/golden_check" --device "$device" \
            --precision $precision "$golden"/fastweight/*.safetensors
    done
}

part_graphs() {
    check graphs '\[  (PASSED|FAILED)|^Total' "$build/tests/test_nn_graphs"
    ! [ -x "$build/tests/test_nn_plan" ] || check plan '\[  (PASSED|FAILED)|^Total' "$build/tests/test_nn_plan"
}

part_memory() {
    check memory 'as planned|^FAIL|not' "$here/plan_largest.sh" --device "$device" "$build"
}

part_model() {
    check model ' checks, ' "$build/tests/gpu/model_parity" --device "$device"
    grep -E '^(PASS|FAIL|    ) ' "$logs/model.log" | sed 's/^/     /'
    sed -nE 's/^(PASS|FAIL) ([a-z]+) +([a-z0-9]+ .*[^ ])  +(.*)$/"\2 \3": "\1 \4"/p' "$logs/model.log" \
        >>"$work/model"
}

part_sanitizer() {
    local tool=compute-sanitizer
    command -v $tool >/dev/null || tool=/usr/local/cuda/bin/compute-sanitizer
    if ! [ -x "$(command -v $tool)" ]; then
        echo "SKIP memcheck, racecheck: compute-sanitizer is not installed"
        return
    fi
    check memcheck 'ERROR SUMMARY' "$tool" --tool memcheck --error-exitcode 9 \
        "$build/tests/ops/ops_test" --device "$device" --once
    check racecheck 'RACECHECK SUMMARY|not finished' check_racecheck "$tool"
}

# Slow: only an error that shows within the time counts.
check_racecheck() {
    local code
    timeout "$racecheck_seconds" "$1" --tool racecheck --error-exitcode 9 \
        "$build/tests/ops/ops_test" --device "$device" --once
    code=$?
    [ $code -ne 124 ] || echo "no race within $racecheck_seconds s, not finished"
    [ $code -ne 124 ] || return 77
    return $code
}

# images/s of the peer (the authors' code, compiled, on one H200 at batch 256) and our goal.
goal_of() { # MODEL PASS
    case $1:$2 in
    vittt_tiny:forward) echo 18937 45000 ;;
    vittt_tiny:train) echo 5260 13000 ;;
    vittt_small:forward) echo 16919 30000 ;;
    vittt_small:train) echo 5393 9700 ;;
    vittt_base:forward) echo 7797 14000 ;;
    vittt_base:train) echo 2458 4200 ;;
    esac
}

number() { # FILE PASS KEY: the whole part
    grep -o "\"$2\": *{[^[{]*" "$1" | grep -o "\"$3\": *[0-9.e+]*" | head -n 1 | sed 's/.*: *//' |
        awk '{printf "%.0f", $1}'
}

compare_pass() { # MODEL PASS FILE
    local rate goals
    rate=$(number "$3" "$2" images_per_s)
    read -r -a goals <<<"$(goal_of "$1" "$2")"
    [ -n "$rate" ] || return
    awk -v m="$1" -v p="$2" -v r="$rate" -v peer="${goals[0]:-0}" -v goal="${goals[1]:-0}" 'BEGIN {
        printf "     %-12s %-8s %7d img/s", m, p, r
        if (peer > 0) printf ", %.2f x the compiled peer, %.0f %% of the goal", r / peer, 100 * r / goal
        print ""
    }'
}

bench_into() { # FILE MODEL step|ops SECONDS
    echo "batch $batch, bf16"
    "$build/bin/ttv" bench "$3" --model "$2" --batch-size "$batch" --precision bf16 --device "$device" \
        --seconds "$4" --json --no-progress >"$1"
}

bench() { # MODEL step|ops SECONDS
    local json=$logs/bench_$2_$1.json before=$failed
    check "bench_$2_$1" . bench_into "$json" "$1" "$2" "$3"
    [ $failed -eq "$before" ] || return
    printf '"%s %s": %s\n' "$2" "$1" "$(cat "$json")" >>"$work/bench"
    [ "$2" = step ] || return
    compare_pass "$1" forward "$json"
    compare_pass "$1" train "$json"
    compare_pass "$1" train_fed "$json"
    printf '     %-12s memory of training %s MB\n' "$1" $(($(number "$json" memory total) / 1000000))
}

part_bench() {
    local model
    for model in ${models//,/ }; do
        bench "$model" step 0.5
        bench "$model" ops 0.05
    done
}

# ---- tests/gpu/last_run.json ----

keep() { # SECTION: its lines of the last run that this one did not make anew
    local line name last=$output
    [ -f "$last" ] || last=$here/last_run.json
    [ -f "$last" ] && grep -qF "\"kernels_sha256\": \"$kernels\"" "$last" &&
        grep -qF "\"card\": $(text "$card")" "$last" || return
    sed -n "/^\"$1\": {\$/,/^}/p" "$last" | sed '1d;$d;s/,$//' | while IFS= read -r line; do
        name=${line%%: *}
        grep -qF "$name: " "$work/$1" || printf '%s\n' "$line"
    done
}
section() {
    printf '"%s": {\n' "$1"
    { keep "$1"; cat "$work/$1"; } | sort | sed '$!s/$/,/'
    printf '}'
}
write_run() {
    [ -s "$work/checks" ] || return 0
    {
        printf '{\n"date": "%s",\n"card": %s,\n"driver": %s,\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$(text "$card")" \
            "$(text "${driver:-unknown}")"
        printf '"commit": %s,\n"kernels_sha256": "%s",\n' "$(text "${commit:-unknown}")" "$kernels"
        section checks
        printf ',\n'
        section model
        printf ',\n'
        section bench
        printf '\n}\n'
    } >"$work/run.json"
    cp "$work/run.json" "$output"
}

# ---- all of it; what was done before an interruption is written down too ----

touch "$work/checks" "$work/model" "$work/bench"
trap 'write_run; rm -rf "$work"' EXIT
for part in ${parts//,/ }; do
    case ,$only, in *",$part,"*) "part_$part" ;; esac
done
if [ $failed -eq 0 ]; then echo "PASS all of $only"; else echo "FAIL $failed checks"; fi
[ $failed -eq 0 ]
