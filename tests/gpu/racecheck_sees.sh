#!/bin/bash
# What racecheck says of barriers that it has to understand:  tests/gpu/racecheck_sees.sh SANITIZER NAMED_BARRIERS
#
# The four forms of named_barriers.cu that lack a barrier must be reported, or a clean racecheck means nothing; the nine
# whose threads pass equally many barriers must not be. Four more are right, too, but beyond the tool: the last line
# tells how many of them it reports, for the day when it is none.
# Exit: 0, 1 otherwise, 77 without a card.
set -u
[ $# -eq 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$("$1" --tool racecheck "$2" 2>&1)
code=$?
printf '%s\n' "$out" | grep -v '^=\{4,\}  *and '
[ $code -eq 0 ] || exit "$code"

reported() { # FORM...: how many of them have a report
    local form count=0
    for form in "$@"; do
        ! grep -qF "Race reported between" <(grep -F " void ${form%%<*}<(int)${form#*<}" <<<"$out") || count=$((count + 1))
    done
    echo $count
}
missing=$(reported 'handoff<0, (int)0>' 'handoff<1, (int)0>' 'rows<0, (bool)0>' 'rows<1, (bool)0>')
equal=$(reported 'handoff<0, (int)1>' 'handoff<0, (int)2>' 'handoff<0, (int)3>' 'handoff<0, (int)4>' \
    'handoff<1, (int)3>' 'handoff<2, (int)1>' 'handoff<3, (int)1>' 'rows<0, (bool)1>' 'rows<2, (bool)1>')
beyond=$(reported 'handoff<1, (int)1>' 'handoff<1, (int)2>' 'handoff<1, (int)4>' 'rows<1, (bool)1>')
echo "$missing of 4 missing barriers seen, $equal of 9 guarded forms reported, $beyond of 4 that are beyond the tool"
[ "$missing$equal" = 40 ]
