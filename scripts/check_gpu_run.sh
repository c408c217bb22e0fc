#!/bin/bash
# Reports whether tests/gpu/last_run.json, the last run of tests/gpu/check.sh on a card, is of the kernels/ that
# are here now. A report: exit 0 in any case.
cd "$(dirname "$0")/.." || exit 0
run=tests/gpu/last_run.json
field() { sed -n "s/^\"$1\": \"\(.*\)\",\{0,1\}\$/\1/p" $run; }

if ! [ -f $run ]; then
    echo "gpu: no $run: tests/gpu/check.sh has not run on a card yet"
    exit 0
fi
now=$(scripts/kernels_hash.sh)
results=$(sed -n '/^"checks": {$/,/^}/p' $run | grep -o '^"[a-z0-9_]*": {"result": "[a-z]*"' | sed 's/"//g; s/: {result: / /')
count() { printf '%s\n' "$results" | grep -c " $1\$"; }
echo "gpu: run of $(field date) on $(field card), driver $(field driver), commit $(field commit):" \
    "$(count pass) checks passed, $(count fail) failed, $(count cut) not finished, $(count skip) skipped"
printf '%s\n' "$results" | sed -n 's/ fail$//p' | sed 's/^/gpu: FAILED /'
printf '%s\n' "$results" | sed -n 's/ cut$//p' | sed 's/^/gpu: NOT FINISHED /'
for name in ops gradient golden_fp32 golden_tf32 golden_bf16 graphs memory model memcheck racecheck bench_step_vittt_base; do
    printf '%s\n' "$results" | grep -q "^$name " || echo "gpu: $name has not run"
done
if [ "$now" = "$(field kernels_sha256)" ]; then
    echo "gpu: FRESH, kernels/ is what ran there (${now:0:12})"
else
    echo "gpu: STALE, kernels/ is ${now:0:12} now and was $(field kernels_sha256 | cut -c 1-12) then:" \
        "run tests/gpu/check.sh on a card"
fi
exit 0
