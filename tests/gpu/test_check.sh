#!/bin/bash
# check.sh, shards.sh and queues of ops_test, without a card:  tests/gpu/test_check.sh BUILD
# Sums and exit codes of shards; that a queue's cases run once each; a run of check.sh on the CPU that is stopped leaves the entries of what had ended and
# of what it cut, and no process.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/ttv-check.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
expect() { # WHAT GOT WANT
    [ "$2" = "$3" ] && return
    echo "FAIL $1: '$2', expected '$3'"
    failed=1
}

# ---- shards.sh ----

shards() { # VALUES SCRIPT: its last line, then its code
    "$here/shards.sh" --jobs 2 --values "$1" --sum 'cases|SUMMARY' bash -c "$2" >"$work/out"
    local code=$?
    echo "$(tail -n 1 "$work/out") -> $code"
}
expect "sums" "$(shards "1 2 3" 'echo "@ cases, 10 runs, 0 failed on H200 no. 7"; echo "== SUMMARY: @ errors"')" \
    "total: 6 cases, 30 runs, 0 failed on H200 no. 7; == SUMMARY: 6 errors -> 0"
expect "a failure" "$(shards "0 77 9 124" 'exit @')" "total: no counts -> 9"
expect "one unfinished" "$(shards "0 77 124" 'exit @')" "total: no counts -> 124"
expect "all skipped" "$(shards "77 77" 'exit @')" "total: no counts -> 77"
expect "some skipped" "$(shards "77 0" 'exit @')" "total: no counts -> 0"
expect "no command" "$("$here/shards.sh" --jobs 2 >"$work/out" 2>&1; echo $?)" 2

# ---- a queue of cases ----

ops() { OMP_NUM_THREADS=1 "$build/tests/ops/ops_test" --once "$@" zero fill copy add mul layernorm; }
ops >"$work/alone"
for ((i = 0; i < 3; i++)); do
    ops --queue "$work/queue" >"$work/shared.$i" &
done
wait
counts() { cat "$@" | awk '/ failed on /{c += $1; r += $3; f += $5} END {print c, r, f}'; }
expect "cases of a queue" "$(counts "$work"/shared.*)" "$(counts "$work/alone")"
expect "an empty queue" "$(ops --queue "$work/queue" | counts -)" "0 0 0"
expect "no queue" "$(ops --queue "$work/none/queue" >"$work/out"; echo $?)" 1

# ---- check.sh, stopped while the stand-in for compute-sanitizer takes its time ----

mkdir "$work/bin"
cat >"$work/bin/compute-sanitizer" <<END
#!/bin/bash
echo "PASS one thing"
touch "$work/started"
exec sleep 600.25
END
chmod +x "$work/bin/compute-sanitizer"
PATH=$work/bin:$PATH "$here/check.sh" --device cpu --parallel 2 --only gradient,memcheck \
    --output "$work/run.json" --logs "$work/logs" "$build" >"$work/out" &
check=$!
for ((i = 0; i < 600; i++)); do
    grep -q '^"gradient"' "$work/run.json" 2>/dev/null && [ -e "$work/started" ] && break
    sleep 0.1
done
kill $check
wait $check
expect "exit code when stopped" $? 1
result() { sed -nE "s/^\"$1\": \{\"result\": \"([a-z]*)\".*/\1/p" "$work/run.json"; }
expect "what had ended" "$(result gradient)" pass
expect "what was cut" "$(result memcheck)" cut
grep -q 'not finished: [12] checks passed before that' "$work/run.json" || expect "the cut entry" "$(cat "$work/run.json")" ""
expect "processes left" "$(pgrep -cfx 'sleep 600.25')" 0

[ $failed -eq 0 ] && echo "PASS"
exit $failed
