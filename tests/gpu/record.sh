#!/bin/bash
# shellcheck disable=SC2154 # variables of check.sh
# Part of check.sh: runs its checks, several at a time, and keeps what they said. Uses its variables logs, work, output,
# here, kernels, card, driver, commit, root, parallel, stretch.
#
# Each check leaves $work/checks/NAME, one line of JSON, when it ends: whatever happens afterwards, it is known.
mkdir -p "$work/checks"
touch "$work/model" "$work/bench"

text() { # a JSON string
    printf '"%s"' "$(printf '%s' "$1" | tr -d '\000-\010\013-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g' |
        sed ':a;N;$!ba;s/\n/\\n/g')"
}
stamp() { printf '"date": "%s", "commit": %s' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$(text "${commit:-unknown}")"; }

record() { # NAME RESULT SECONDS SUMMARY
    printf '"%s": {"result": "%s", "seconds": %s, %s, "summary": %s}\n' "$1" "$2" "$3" "$(stamp)" "$(text "$4")" \
        >"$work/checks/.$1" && mv "$work/checks/.$1" "$work/checks/$1"
}

seconds_since() { # NANOSECONDS: one decimal
    local tenths=$((($(date +%s%N) - $1) / 100000000))
    printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

results() { # RESULT: how many checks have it
    cat "$work"/checks/* 2>/dev/null | grep -c "\"result\": \"$1\""
}
passed() { grep -q '"result": "pass"' "$work/checks/$1" 2>/dev/null; }

# ---- one check ----

# Runs a program within the check's limit; its group is killed 5 s after that.
limited() {
    timeout -k 5 $((limit * stretch)) "$@" &
    child=$!
    wait "$child"
}

# check NAME SECONDS PATTERN COMMAND...: starts COMMAND, a function that calls `limited` or that itself with a program.
# The summary is the last line of its output that matches PATTERN. On a failure the first lines that tell of one are
# shown. Side by side with others, but for --parallel 1.
check() {
    check_inside "$@" &
    if [ "$parallel" -eq 1 ] || [ -n "${single-}" ]; then
        wait $!
        write_run
    fi
}

# The same with no other check beside it.
alone() {
    finish_all
    local single=yes
    "$@"
}

check_inside() {
    local name=$1 limit=$2 pattern=$3 log=$logs/$1.log start code seconds summary result seen child='' stopped=''
    shift 3
    trap 'stopped=yes; kill $child 2>/dev/null' INT TERM
    trap - EXIT
    start=$(date +%s%N)
    "$@" >"$log" 2>&1
    code=$?
    while [ -n "$stopped" ] && kill -0 "$child" 2>/dev/null; do wait "$child"; done
    seconds=$(seconds_since "$start")
    summary=$(grep -E "$pattern" "$log" | tail -n 1 | sed 's/^total: //; s/=\{4,\} *//g')
    summary=${summary:-$(tail -n 1 "$log")}
    summary=${summary//"$root/"/}
    case $code in
    0) result=pass ;;
    77) result=skip ;;
    124 | 137) result="cut" ;;
    *) result=fail ;;
    esac
    [ -z "$stopped" ] || result="cut"
    case $result in
    fail) summary="exit $code: $summary" ;;
    cut)
        seen=$(grep -c '^PASS ' "$log")
        [ "$seen" -eq 0 ] || summary="$seen checks passed before that; $summary"
        summary="not finished: ${summary#not finished: }"
        ;;
    esac
    record "$name" $result "$seconds" "$summary"
    report=$(
        printf '%-4s %-16s %6s s  %s\n' "${result^^}" "$name" "$seconds" "$summary"
        [ $result = pass ] || [ $result = skip ] ||
            grep -E 'FAIL|ERROR|Error|ABOVE|above|Invalid|error:' "$log" | head -n 12 | sed 's/^/     | /'
        ! declare -F "after_$name" >/dev/null || "after_$name"
    )
    printf '%s\n' "$report"
}

finish_all() {
    while [ -n "$(jobs -rp)" ]; do
        wait -n
        write_run
    done
}

# Before the program ends early: those that run leave an entry, too.
stop_all() {
    local running
    running=$(jobs -rp)
    [ -z "$running" ] || kill $running 2>/dev/null
    wait
}

# ---- tests/gpu/last_run.json ----

keep() { # SECTION: its lines of the last run that this one did not make anew, one per line of stdin
    local line name last=$output fresh
    fresh=$(cat)
    [ -z "$fresh" ] || printf '%s\n' "$fresh"
    [ -f "$last" ] || last=$here/last_run.json
    [ -f "$last" ] && grep -qF "\"kernels_sha256\": \"$kernels\"" "$last" &&
        grep -qF "\"card\": $(text "$card")" "$last" || return
    sed -n "/^\"$1\": {\$/,/^}/p" "$last" | sed '1d;$d;s/,$//' | while IFS= read -r line; do
        name=${line%%: *}
        grep -qF "$name: " <<<"$fresh" || printf '%s\n' "$line"
    done
}
section() { # NAME; its lines on stdin
    printf '"%s": {\n' "$1"
    keep "$1" | sort | sed '$!s/$/,/'
    printf '}'
}
write_run() {
    [ -n "$(ls "$work/checks")" ] || return 0
    {
        printf '{\n"date": "%s",\n"card": %s,\n"driver": %s,\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$(text "$card")" \
            "$(text "${driver:-unknown}")"
        printf '"commit": %s,\n"kernels_sha256": "%s",\n' "$(text "${commit:-unknown}")" "$kernels"
        cat "$work"/checks/* | section checks
        printf ',\n'
        section model <"$work/model"
        printf ',\n'
        section bench <"$work/bench"
        printf '\n}\n'
    } >"$work/run.json"
    cp "$work/run.json" "$output"
}
