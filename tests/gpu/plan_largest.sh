#!/bin/bash
# The memory plan against the device:  tests/gpu/plan_largest.sh [--device D] [--img-size N] BUILD
#
# Asks `ttv train --dry-run` for the largest batch of ViTTT-T that fits, trains one step with exactly that batch, and
# checks that the next power of two is refused: exit code 5, a message with need, free and largest batch. Pictures are
# large (672) so that a few hundred of the committed digits fill a card. Exit 0, 1, 2 usage, 77 no such device.
set -u
here=$(cd "$(dirname "$0")" && pwd)
device=cuda size=672 build=
while [ $# -gt 0 ]; do
    case $1 in
    --device) device=${2-} && shift ;;
    --img-size) size=${2-} && shift ;;
    *) build=$1 ;;
    esac
    shift
done
ttv=$build/bin/ttv
[ -x "$ttv" ] || { echo "usage: plan_largest.sh [--device D] [--img-size N] BUILD" >&2; exit 2; }
work=$(mktemp -d "${TMPDIR:-/tmp}/ttv-plan.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT

train() { # FOLDER BATCH FLAG...: its output in $work/log
    local folder=$work/$1 batch=$2
    shift 2
    "$ttv" train --model vittt_tiny --img-size "$size" --data-dir "$here/../../data/digits.tar" --val-split none \
        --no-aug --epochs 1 --warmup-epochs 0 --batch-size "$batch" --device "$device" --precision bf16 \
        --output "$folder" "$@" >"$work/log" 2>&1
}
fail() {
    echo "FAIL $1"
    sed 's/^/     | /' "$work/log" | tail -n 8
    exit 1
}
named() { sed -nE 's/.*the largest batch that fits is ([0-9]+).*/\1/p' "$work/log" | tail -n 1; }

train plan 1 --dry-run
case $? in
0) ;;
5) cat "$work/log"; exit 77 ;;
*) fail "the plan exits with an error" ;;
esac
largest=$(named)
images=$(sed -nE 's/.*: ([0-9]+) training images.*/\1/p' "$work/log")
[ -n "$largest" ] && [ -n "$images" ] || fail "the plan names no largest batch"
[ "$largest" -ge 1 ] && [ "$largest" -le "$images" ] ||
    fail "the largest batch is $largest, but there are $images images: choose a larger --img-size"

next=1
# the plan leaves a margin: what is little larger may run, too
while [ $((10 * next)) -le $((11 * largest)) ]; do next=$((2 * next)); done
if [ $next -le "$images" ]; then
    train refused $next --max-steps 1
    code=$?
    [ $code -eq 5 ] || fail "batch $next: exit code $code, expected 5"
    for part in "a step needs [0-9.]+ MB" "[0-9.]+ MB are free" "the largest batch that fits is [0-9]+"; do
        grep -qE "$part" "$work/log" || fail "batch $next: the refusal does not say '$part'"
    done
    again=$(named)
    # others may use the device, too
    [ $((20 * again)) -ge $((19 * largest)) ] && [ $((20 * again)) -le $((21 * largest)) ] ||
        fail "batch $next: the refusal names $again, the plan named $largest"
    refused="$next refused"
else
    refused="$next not tried, there are $images images"
fi

train step "$largest" --max-steps 1 || fail "batch $largest, which the plan names, does not run: exit code $?"
grep -q '^train,1,' "$work/step/metrics.csv" || fail "batch $largest: no row of step 1 in metrics.csv"
echo "$largest images of $size x $size ran as planned, $refused"
