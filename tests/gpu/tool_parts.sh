#!/bin/bash
# The op table in parts, a process for each, one after the other:  tests/gpu/tool_parts.sh PARTS SECONDS QUEUE COMMAND...
#
# What a tool keeps of a process is given back when the process ends. COMMAND, which ends in ops_test and flags, gets
# --part K/PARTS --queue QUEUE.K --seconds S, S being what is left of SECONDS: several of these scripts side by side share
# each part's cases, and none waits for the others between parts. The time is that of all parts together. When it is up,
# one of the scripts reports each part that none has begun as not finished; a part that was begun says so itself.
#
# A process that fails does not keep the next from beginning. Exit: the code of the first failure; 124 when something was
# not finished; 77 when every process said so; 0 otherwise; 2: usage. A TERM is passed on, and no part begins after it.
set -u
[ $# -ge 4 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
parts=$1 seconds=$2 queue=$3
shift 3

failed=0 unfinished='' skipped='' finished='' child=''
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 124' INT TERM
for ((part = 0; part < parts; part++)); do
    left=$((seconds - SECONDS))
    if [ $left -le 0 ]; then
        # Only one script can make the file, and none whose part has begun.
        (set -C && : >"$queue.$part") 2>/dev/null || continue
        echo "not finished: 1 parts of the op table not begun"
        unfinished=yes
        continue
    fi
    : >>"$queue.$part"
    "$@" --part "$part/$parts" --queue "$queue.$part" --seconds "$left" &
    child=$!
    wait "$child"
    code=$?
    child=''
    case $code in
    0) finished=yes ;;
    77) skipped=yes ;;
    124 | 143) unfinished=yes ;;
    *) [ $failed -ne 0 ] || failed=$code ;;
    esac
done
[ $failed -eq 0 ] || exit $failed
[ -z "$unfinished" ] || exit 124
[ -n "$finished" ] || [ -z "$skipped" ] || exit 77
exit 0
