#!/bin/bash
# Everything that needs a card, in one command:  tests/gpu/check.sh [flags] [BUILD]
#
#   ops        the op table on the card against the CPU and the naive version
#   gradient   every op's gradient on the card against finite differences
#   golden     golden vectors on the card: fp32, tf32, bf16
#   graphs     recorded steps change no bit; memory plans; scores of many pictures (scores_parity.c)
#   memory     the largest batch that the plan names runs, the next power of two is refused
#   ranks      two cards train and score as one (ranks.sh); skipped where there is one, or no NCCL
#   model      whole models, card against CPU; same bits twice; resume (model_parity.c)
#   memcheck   compute-sanitizer over the op table
#   racecheck  likewise, each case once with all gradients written, in processes short enough for the host's memory,
#              reports of cuBLASLt's own kernels left out; and whether the tool sees a missing barrier (racecheck_sees.sh)
#   bench      ttv bench step and ops of ViTTT-T, S, B in bf16
#
# All but memory and bench, which need the card for themselves, run side by side. Each has a time limit that ends in
# an entry "cut", not finished; entries are written as parts end, so a run that is stopped leaves what it knows.
#
#   --only LIST     these parts, separated by commas
#   --device D      cuda (the default) or cuda:N; cpu tries this script out
#   --beside D      another card of the kind for memcheck and racecheck, whose many processes slow the others down; the
#                   default with --device cuda: cuda:1 where there is one
#   --batch N       images of a bench pass (256)
#   --models LIST   of the bench: vittt_tiny,vittt_small,vittt_base
#   --parallel N    processes for each of the large parts (a quarter of the processors, of few a third); 1: one after
#                   the other
#   --stretch F     factor on the time limits (1)
#   --output FILE   instead of tests/gpu/last_run.json
#   --logs DIR      keep the programs' output there
#
# BUILD: the build folder (build). Needs its programs and this source folder, neither compiler nor
# network. Prints one line per check and what is wrong where one fails. What was not run again keeps
# its entry in the JSON file as long as kernels/ and card are the same.
# Exit 0: all passed; 1: some failed or were cut; 2: usage; 77: no card.
set -u
export LC_ALL=C OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

parts=memcheck,racecheck,model,ops,golden,gradient,graphs,memory,ranks,bench
only=$parts
device=cuda
beside=
batch=256
models=vittt_tiny,vittt_small,vittt_base
output=$here/last_run.json # read in record.sh
logs=
build=
processors=$(nproc)
parallel=$(((processors + 3) / 4))
# Factor on the limits of what is long where processors are few: one H200 and 16 of them take 140 s for ops, 181 for
# model, 67 for scores; gradient (58), graphs (39) and golden (33) keep theirs (0bab8be).
few=1
[ "$processors" -ge 24 ] || { few=2 parallel=$(((processors + 2) / 3)); }
stretch=1

usage() {
    sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
    --only | --device | --beside | --batch | --models | --output | --logs | --parallel | --stretch)
        [ $# -ge 2 ] || usage
        case $1 in
        --only) only=$2 ;;
        --device) device=$2 ;;
        --beside) beside=$2 ;;
        --batch) batch=$2 ;;
        --models) models=$2 ;;
        --output) output=$2 ;;
        --logs) logs=$2 ;;
        --parallel) parallel=$2 ;;
        --stretch) stretch=$2 ;;
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
case $parallel$stretch in *[!0-9]* | 0*) usage ;; esac
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
begun=$(date +%s%N)
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
if [ -z "$beside" ] && [ "$device" = cuda ] && "$build/tests/ops/ops_test" --device cuda:1 zero >/dev/null 2>&1; then
    beside=cuda:1
fi
beside=${beside:-$device}
card=$(ask name)
driver=$(ask driver_version)
card=${card:-$(sed -n 's/.* failed on //p' "$work/probe")}
commit=$(cat "$root/COMMIT" 2>/dev/null || git -C "$root" describe --always --dirty --abbrev=12 2>/dev/null)
kernels=$("$root/scripts/kernels_hash.sh" "$root")
[ "$beside" = "$device" ] || echo "memcheck and racecheck on $beside"
echo "$card, driver ${driver:-unknown}; commit ${commit:-unknown}, kernels ${kernels:0:12}"
# shellcheck source=tests/gpu/record.sh
. "$here/record.sh"

# ---- parts ----

sharded() { # REGEX COMMAND...: with @ for its share
    local regex=$1
    shift
    OMP_NUM_THREADS=1 limited "$here/shards.sh" --jobs "$parallel" --sum "$regex" "$@"
}

# compute-sanitizer's programs outlive it when it is stopped, and would slow down what comes next.
end_stray() {
    local environ
    for environ in /proc/[0-9]*/environ; do
        ! grep -qsz "^TTV_TOOL=$work/$name\$" "$environ" || kill -9 "$(basename "${environ%/environ}")" 2>/dev/null
    done
}

# A process that dies takes along what it counted: each case that began must have ended. racecheck's reports of foreign
# kernels are left out, aloud; the exit code tells nothing of its reports then.
tool_shards() { # COMMAND...: with @ for its card
    local code left
    TTV_TOOL=$work/$name OMP_NUM_THREADS=1 limited "$here/shards.sh" --jobs "$parallel" --values "$(tool_cards)" \
        --sum 'SUMMARY| failed on |^not finished' "$@"
    code=$?
    end_stray
    "$here/tool_lost.sh" "$log" || [ $code -ne 0 ] || code=1
    if [ "$name" = racecheck ]; then
        left=$("$here/tool_reports.sh" "$log" "$foreign") || [ $code -ne 0 ] || code=1
        printf '%s\n' "$left"
        echo "$(grep '^total' "$log" | tail -n 1); $(sed -n 's/^\(left out: [^:]*\):.*/\1 of cuBLASLt/p' <<<"$left")"
    fi
    return $code
}
after_racecheck() { sed -n 's/^left out: [1-9][^:]*: /     left out, kernels of cuBLASLt: /p' "$logs/racecheck.log"; }

part_ops() { check ops $((90 * few)) '^total' sharded ' failed on ' "$build/tests/ops/ops_test" --device "$device" \
    --queue "$work/queue_ops"; }

part_gradient() {
    check gradient 90 '^total' sharded ' failures$' "$build/tests/ops/ops_gradient" --device "$device" \
        --source "$root" --part @
}

golden() { # NAME PRECISION FILE...
    local name=$1 precision=$2
    shift 2
    check "golden_$name$precision" 60 ' checks, ' limited "$build/tests/golden/golden_check" --device "$device" \
        --precision "$precision" "$@"
}
part_golden() {
    local precision golden=$root/tests/data/golden
    for precision in fp32 tf32 bf16; do
        golden "" $precision "$golden/models/vittt.safetensors"
        golden lact_ $precision "$golden"/models/lact_*.safetensors
    done
    # The fast-weight library computes in F32 whatever the activations are.
    for precision in fp32 tf32; do golden fast_ $precision "$golden"/fastweight/*.safetensors; done
}

part_graphs() {
    check graphs 60 '\[  (PASSED|FAILED)|^Total' limited "$build/tests/test_nn_graphs"
    ! [ -x "$build/tests/test_nn_plan" ] ||
        check plan 60 '\[  (PASSED|FAILED)|^Total' limited "$build/tests/test_nn_plan"
    for name in span:test_lact_span basis:test_token_basis; do
        ! [ -x "$build/tests/${name#*:}" ] ||
            check "${name%%:*}" 60 '\[  (PASSED|FAILED)|^Total' limited "$build/tests/${name#*:}"
    done
    ! [ -x "$build/tests/gpu/scores_parity" ] ||
        check scores $((60 * few)) ' checks, ' limited "$build/tests/gpu/scores_parity" --device "$device" \
            $([ "$device" = cpu ] && echo few)
}

part_memory() {
    if [ "$device" = cpu ]; then
        record memory skip 0 "the largest batch of the CPU would take all memory"
        return
    fi
    alone check memory 30 'as planned|^FAIL|not' limited "$here/plan_largest.sh" --device "$device" "$build"
}

part_ranks() {
    if [ "$device" = cpu ]; then
        record ranks skip 0 "two cards are needed"
        return
    fi
    alone check ranks 90 ' checks, |^SKIP|^FAIL' limited "$here/ranks.sh" "$build"
}

models_of_parity="base small tiny hier wide even odd"
part_model() { check model $((100 * few)) '^total' parity; }
# The CPU's side of base takes longer than all others': it has half of the processors.
parity() {
    local most=$((processors / 2)) others=$((processors / 8))
    OMP_NUM_THREADS=$((others < 1 ? 1 : others)) limited "$here/shards.sh" --sum ' checks, ' \
        --jobs "$([ "$parallel" -eq 1 ] && echo 1 || echo 6)" --values "$models_of_parity" \
        bash -c '[ "$1" != base ] || export OMP_NUM_THREADS=$2; exec "$3" --device "$4" "$1"' threads @ \
        $((most < 1 ? 1 : most)) "$build/tests/gpu/model_parity" "$device"
}
after_model() {
    grep -E '^(PASS|FAIL|    ) ' "$logs/model.log" | sed 's/^/     /'
    sed -nE 's/^(PASS|FAIL) ([a-z]+) +([a-z0-9]+ .*[^ ])  +(.*)$/"\2 \3": "\1 \4"/p' "$logs/model.log" \
        >"$work/model"
}

# One card has all the rest to do besides (0bab8be: memcheck 86 s; racecheck 179 for 87 % of its cases).
part_memcheck() { if [ "$beside" = "$device" ]; then sanitizer memcheck 180 150; else sanitizer memcheck 110 90; fi; }
part_racecheck() {
    if [ "$beside" = "$device" ]; then
        sanitizer racecheck 240 205 --first-mode
    else
        sanitizer racecheck 145 115 --first-mode
    fi
    [ "$device" = cpu ] || [ -z "$(sanitizer_program)" ] || ! [ -x "$build/tests/gpu/named_barriers" ] ||
        check racecheck_sees 60 'missing barriers' limited "$here/racecheck_sees.sh" "$(sanitizer_program)" \
            "$build/tests/gpu/named_barriers" "$foreign"
}

sanitizer_program() { # its path, or nothing
    command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer
}

# Cards of the lanes of a tool, which take cases from one queue: of two cards every fourth lane has the one
# where other checks run.
tool_cards() {
    local i
    for ((i = 1; i <= parallel; i++)); do
        if [ $((i % 4)) -eq 0 ]; then echo "$device"; else echo "$beside"; fi
    done
}

# cuBLASLt's kernels are not ours to judge: what racecheck reports of them is left out by name (tool_reports.sh; a kernel
# of this project cannot be called so). Not by the tool's own --kernel-name-exclude: with it, compute-sanitizer of CUDA
# 13.0 ends in "failed to handle a hardware exception" where few_rows.cu runs, 10 times of 10, and never without.
foreign='^nvjet_sm[0-9]+_'

# TOOL LIMIT SECONDS FLAG...: no case begins after SECONDS, so that the tool still says what it found. More than the ten
# processes that compute-sanitizer expects by itself may run at once. racecheck keeps what it knows of every case in the
# host's memory (35 GB of one process that went through a sixth of the table, and two of six were killed for it: 682f5aa),
# so each of its lanes takes the table in four parts, a process after the other (tool_parts.sh). LIMIT and SECONDS are
# those of a lane as a whole. A process takes 3 to 5 s to start there, which more parts would not leave time for.
sanitizer() {
    local tool=$1 limit=$2 seconds=$3 table_parts=1 program options=(--max-connections 100 --error-exitcode 9)
    shift 3
    [ "$tool" != racecheck ] || {
        options=(--max-connections 100 --print-limit 10000 --racecheck-num-workers 2)
        table_parts=4
    }
    program=$(sanitizer_program)
    if [ -z "$program" ]; then
        echo "SKIP $tool: compute-sanitizer is not installed"
        record "$tool" skip 0 "compute-sanitizer is not installed"
        return
    fi
    check "$tool" "$limit" '^total' tool_shards "$here/tool_parts.sh" $table_parts $((seconds * stretch)) \
        "$work/queue_$tool" "$program" --tool "$tool" "${options[@]}" "$build/tests/ops/ops_test" --device @ --once \
        --verbose "$@"
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
    limited "$build/bin/ttv" bench "$3" --model "$2" --batch-size "$batch" --precision bf16 --device "$device" \
        --seconds "$4" --json --no-progress >"$1"
}

bench() { # MODEL step|ops SECONDS
    local json=$logs/bench_$2_$1.json
    alone check "bench_$2_$1" 60 . bench_into "$json" "$1" "$2" "$3"
    passed "bench_$2_$1" || return
    printf '"%s %s": %s\n' "$2" "$1" "$(cat "$json")" >>"$work/bench"
    write_run
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

# ---- all of it ----

trap 'trap "" INT TERM; stop_all; write_run; rm -rf "$work"' EXIT
for part in ${parts//,/ }; do
    case ,$only, in *",$part,"*) "part_$part" ;; esac
done
finish_all
failed=$(results fail) cut=$(results cut)
if [ "$failed$cut" = 00 ]; then
    echo "PASS all of $only in $(seconds_since "$begun") s; $(results skip) skipped"
else
    echo "FAIL $failed checks, $cut not finished, in $(seconds_since "$begun") s"
fi
[ "$failed$cut" = 00 ]
