#!/bin/bash
# One command several times side by side, with sums of what it counts:
#
#   tests/gpu/shards.sh [--jobs N] --sum REGEX [--values "A B ..."] COMMAND...
#
# Every @ in COMMAND becomes a value: those given, or 0/N 1/N ... At the end comes all output in the order of the
# values, then one line "total: ..." for the lines that match REGEX: of lines that differ in their counts only, one
# with the sums. A count is a number in front of a word that begins with a small letter.
# Exit: 0; 77 when every one did; 124 when one did not finish; the code of the first failure otherwise. A TERM
# passes on to all of them, and what they wrote so far is summed.
set -u
jobs=1 pattern='' values=''
while [ $# -gt 0 ]; do
    case $1 in
    --jobs) jobs=$2 ;;
    --sum) pattern=$2 ;;
    --values) values=$2 ;;
    *) break ;;
    esac
    shift 2
done
[ $# -gt 0 ] && [ -n "$pattern" ] && [ "$jobs" -ge 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ -n "$values" ] || values=$(for ((i = 0; i < jobs; i++)); do echo "$i/$jobs"; done)

work=$(mktemp -d "${TMPDIR:-/tmp}/ttv-shards.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
stopped=
trap 'stopped=yes; kill $(jobs -rp) 2>/dev/null' INT TERM

index=0
for value in $values; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ] && [ -z "$stopped" ]; do wait -n; done
    [ -z "$stopped" ] || break
    index=$((index + 1))
    {
        trap - INT TERM
        "${@//@/$value}" >"$work/$index.log" 2>&1 &
        trap 'kill $! 2>/dev/null' TERM
        wait $!
        echo $? >"$work/$index.code"
    } &
done
while [ -n "$(jobs -rp)" ]; do wait; done

for ((i = 1; i <= index; i++)); do cat "$work/$i.log"; done
total=$(for ((i = 1; i <= index; i++)); do cat "$work/$i.log"; done | grep -E "$pattern" | awk '
    {
        shape = ""
        count = 0
        rest = $0
        while (match(rest, /[0-9]+ [a-z]/)) {
            before = RSTART == 1 ? " " : substr(rest, RSTART - 1, 1)
            number = substr(rest, RSTART, RLENGTH - 2)
            shape = shape substr(rest, 1, RSTART - 1)
            rest = substr(rest, RSTART + RLENGTH - 2)
            if (before ~ /[A-Za-z0-9._-]/) { shape = shape number; continue }
            shape = shape "\001"
            found[++count] = number
        }
        shape = shape rest
        if (!(shape in seen)) { seen[shape] = 1; order[++shapes] = shape }
        for (i = 1; i <= count; i++) sum[shape, i] += found[i]
    }
    END {
        for (s = 1; s <= shapes; s++) {
            n = split(order[s], piece, "\001")
            line = piece[1]
            for (i = 2; i <= n; i++) line = line sum[order[s], i - 1] piece[i]
            printf "%s%s", (s > 1 ? "; " : ""), line
        }
    }')
echo "total: ${total:-no counts}"

finished=0 skipped=0 unfinished=$([ -z "$stopped" ] || echo yes)
for ((i = 1; i <= index; i++)); do
    code=$(cat "$work/$i.code" 2>/dev/null || echo 124)
    case $code in
    0) finished=$((finished + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    124 | 143) unfinished=yes ;;
    *) exit "$code" ;;
    esac
done
[ -z "$unfinished" ] || exit 124
[ $finished -gt 0 ] || [ $skipped -eq 0 ] || exit 77
