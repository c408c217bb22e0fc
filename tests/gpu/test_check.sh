#!/bin/bash
# check.sh, shards.sh and queues of ops_test, without a card:  tests/gpu/test_check.sh BUILD
# Sums and exit codes of shards; that a queue's cases run once each, also in parts; what a tool's process that died leaves;
# parts for which there was no time; which kernels racecheck leaves out; a run of check.sh on the CPU that is stopped leaves the entries of what had ended and of what it
# cut, and no process.
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

# ---- parts of the table, one process after the other ----

slots='zero fill copy add mul layernorm'
parts() { # LANES PARTS SECONDS SCRIPT: like `shards`, each lane going through the parts
    rm -f "$work"/parts.*
    "$here/shards.sh" --jobs "$1" --values "$(seq -s ' ' "$1")" --sum ' failed on |^not finished' \
        "$here/tool_parts.sh" "$2" "$3" "$work/parts" bash -c "$4" lane@ >"$work/out"
    local code=$?
    echo "$(tail -n 1 "$work/out") -> $code"
}
expect "cases in parts" "$(parts 3 4 60 "OMP_NUM_THREADS=1 '$build/tests/ops/ops_test' --once --verbose \$* $slots")" \
    "total: $(grep ' failed on ' "$work/alone") -> 0"
expect "processes" "$(grep -c '^[0-9]* cases' "$work/out")" 12
expect "cases that ran twice" "$(grep '^begun' "$work/out" | sort | uniq -d)" ""
late='not finished: 3 parts of the op table not begun'
expect "no time" "$(parts 2 3 0 'echo begun')" "total: $late -> 124"
expect "none begun" "$(grep -c '^begun' "$work/out")" 0
expect "time for one part" "$(parts 2 4 2 'echo "run $2"; sleep 2.5')" "total: $late -> 124"
expect "its number" "$(grep '^run' "$work/out" | sort | uniq -c | tr -s ' ')" " 2 run 0/4"
expect "what is left" "$(parts 1 3 60 'echo "left $6"; sleep 1.1')" "total: no counts -> 0"
expect "less from part to part" "$(awk '/^left/ && n++ && $2 >= was {bad = 1} {was = $2} END {print n + bad}' "$work/out")" 3
expect "a part that was begun" "$(parts 2 2 60 'case $0$2 in lane10*) echo "not finished: 3 of 5 cases"; exit 124 ;; esac')" \
    "total: not finished: 3 of 5 cases -> 124"
expect "a part that dies" "$(parts 2 3 60 'echo "run $2"; case $2 in 1*) exit 9 ;; 2*) exit 124 ;; esac')" "total: no counts -> 9"
expect "what follows it" "$(grep -c '^run' "$work/out")" 6
expect "all parts skipped" "$(parts 2 2 60 'exit 77')" "total: no counts -> 77"
expect "some parts skipped" "$(parts 2 2 60 'case $2 in 0*) exit 77 ;; esac')" "total: no counts -> 0"
rm -f "$work"/parts.*
"$here/tool_parts.sh" 3 60 "$work/parts" bash -c 'echo "run $2"; exec sleep 9.75' lane >"$work/out" &
for ((i = 0; i < 100; i++)); do pgrep -fx 'sleep 9.75' >/dev/null && break; sleep 0.1; done
kill $!
wait $!
expect "parts stopped" $? 124
sleep 0.2
expect "parts begun before and after that" "$(cat "$work/out"; pgrep -cfx 'sleep 9.75')" "run 0/3
0"

# ---- racecheck, with stand-ins for compute-sanitizer ----

racecheck() { # LINE...: the first process of each of two lanes writes these and ends with 0; the check's entry
    {
        echo 'case " $* " in *" --part 0/"*) ;; *) exit 0 ;; esac'
        printf 'printf "%%s\\n" "%s"\n' "$@"
    } | racecheck_by
}
racecheck_by() { # the same with a script for the tool
    mkdir -p "$work/tool"
    { echo '#!/bin/bash'; cat; } >"$work/tool/compute-sanitizer"
    chmod +x "$work/tool/compute-sanitizer"
    PATH=$work/tool:$PATH "$here/check.sh" --device cpu --parallel 2 --only racecheck --output "$work/race.json" \
        "$build" >"$work/out"
    sed -nE 's/^"racecheck": \{"result": "([a-z]*)".*"summary": "(.*)"\},?$/\1: \2/p' "$work/race.json"
    rm "$work/race.json"
}
foreign=$(sed -n "s/^foreign='\(.*\)'\$/\1/p" "$here/check.sh")
counts='1 cases, 2 runs, 0 failed on CPU'
expect "racecheck" "$(racecheck 'begun a F32 (1)' 'ran a F32 (1): 5 ms' "$counts")" \
    "pass: 2 cases, 4 runs, 0 failed on CPU; left out: 0 reports in 0 kernels of cuBLASLt"
expect "a lost case" "$(racecheck 'begun a F32 (1)' 'ran a F32 (1): 5 ms' 'begun b F32 (2)' "$counts")" \
    "fail: exit 1: 2 cases, 4 runs, 0 failed on CPU; left out: 0 reports in 0 kernels of cuBLASLt"
expect "its name" "$(grep -c 'FAIL lost: b F32 (2)' "$work/out")" 2

# The table through the tool: its processes run cases, several one after the other in each lane, and one of them dies.
through_tool='while [ "${1##*/}" != ops_test ]; do shift; done; "$@" '$slots
expect "the table" "$(racecheck_by <<<"$through_tool")" \
    "pass: $(ops --first-mode | tail -n 1); left out: 0 reports in 0 kernels of cuBLASLt"
killed='case " $* " in *" --part 2/"*) mkdir "'$work'/once" 2>/dev/null && { echo "begun c F32 (3)"; exit 9; } ;; esac'
expect "a process that was killed" "$(racecheck_by <<<"$killed
$through_tool")" "fail: exit 9: $(ops --first-mode | tail -n 1); left out: 0 reports in 0 kernels of cuBLASLt"
expect "its case" "$(grep -c 'FAIL lost: c F32 (3)' "$work/out")" 1
echo 'echo "$@" >>"'$work'/lines"' | racecheck_by >/dev/null
expect "processes of racecheck" "$(grep -o -- '--part.*--queue' "$work/lines" | sort | uniq -c | tr -s ' ')" \
    "$(for i in 0 1 2 3; do echo " 2 --part $i/4 --queue"; done)"

# Reports as the tool writes them; only those of cuBLASLt's kernels alone are left out.
report() { # KERNEL KERNEL
    printf '========= %s\n' "Error: Race reported between Read access at $1+0xa50" \
        "    and Write access at $2+0x72f0 [472 hazards]" ""
}
summary() { echo "========= RACECHECK SUMMARY: $1 hazards displayed ($2 errors, 0 warnings)"; }
reports() { # LOG...: what counts of it, and what is left out
    printf '%s\n' '========= COMPUTE-SANITIZER' "$@" >"$work/reports"
    "$here/tool_reports.sh" "$work/reports" "$foreign" | sed -E 's/^FAIL report: .* at /counts: /; s/^FAIL report: /counts: /'
}
jet=nvjet_sm90_tst_128x136_64x6_2x1_v_bx_bias_TNT
none='left out: 0 reports in 0 kernels:'
expect "cuBLASLt's" "$(reports "$(report $jet $jet)" "$counts" "$(report ${jet}T ${jet}T)" "$(report $jet $jet)" "$(summary 3 3)")" \
    "left out: 3 reports in 2 kernels: $jet ${jet}T"
for name in 'pair_kernel(PairArgs)' 'void nvjet_sm90_ours<float>(T1 *)' 'nvjet_sm90_ours(float *)' 'ours::nvjet_sm90_x(int)' \
    'few_nvjet_sm90_x'; do
    expect "ours" "$(reports "$(report "$name" "$name")" "$(summary 1 1)")" "counts: $name+0xa50
$none"
    expect "ours and cuBLASLt's" "$(reports "$(report $jet "$name")" "$(summary 1 1)")" "counts: $jet+0xa50
$none"
done
expect "not printed" "$(reports "$(report $jet $jet)" "$(summary 1 2)")" "counts: 2 counted, 1 displayed, 1 read
left out: 1 reports in 1 kernels: $jet"
expect "what is unknown" "$(reports '========= Error: something else' "$(summary 0 0)")" "counts: Error: something else
$none"
expect "a report fails the check" "$(racecheck "$(report 'pair_kernel(PairArgs)' 'pair_kernel(PairArgs)')" "$(summary 1 1)" "$counts")" \
    "fail: exit 1: RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings); 2 cases, 4 runs, 0 failed on CPU; left out: 0 reports in 0 kernels of cuBLASLt"
expect "cuBLASLt's do not" "$(racecheck "$(report $jet $jet)" "$(summary 1 1)" "$counts")" \
    "pass: RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings); 2 cases, 4 runs, 0 failed on CPU; left out: 2 reports in 1 kernels of cuBLASLt"
expect "but are named" "$(grep -c "left out, kernels of cuBLASLt: $jet\$" "$work/out")" 1
expect "kernels with names of C" "$(grep -rlE 'nvjet|extern "C".*__global__' "$here/../../kernels" | head -n 1)" ""

# ---- check.sh, stopped while the stand-in for compute-sanitizer takes its time ----

mkdir "$work/bin"
cat >"$work/bin/compute-sanitizer" <<END
#!/bin/bash
echo "PASS one thing"
touch "$work/started"
setsid sleep 600.5 &
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
expect "processes left" "$(pgrep -cfx 'sleep 600.(25|5)')" 0

[ $failed -eq 0 ] && echo "PASS"
exit $failed
