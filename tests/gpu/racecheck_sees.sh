#!/bin/bash
# What racecheck says of barriers that it has to understand:
#
#   tests/gpu/racecheck_sees.sh SANITIZER NAMED_BARRIERS FOREIGN
#
# The forms of named_barriers.cu and cluster_barriers.cu that lack a barrier must be reported, or a clean racecheck means
# nothing; the forms that kernels use must not be. Others are right, too, but reported, and others wrong, but beyond the
# tool (st.async): the last line tells how many, for the day when it is none, or all. FOREIGN: the names of kernels whose
# reports check.sh leaves out (tool_reports.sh); of two racy kernels that must be the one with such a name, not the one
# with such a name in C++.
# Exit: 0, 1 otherwise, 77 without a card.
set -u
[ $# -eq 3 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$("$1" --max-connections 100 --print-limit 10000 --tool racecheck "$2" 2>&1)
code=$?
verdict=$("$(dirname "$0")/tool_reports.sh" <(printf '%s\n' "$out") "$3")
out=$(sed 's/(int)//g; s/(bool)//g' <<<"$out")
printf '%s\n' "$out" | grep -v '^=\{4,\}  *and '
[ $code -eq 0 ] || exit "$code"

reported() { # KERNEL...: how many of them have a report
    local kernel count=0
    for kernel in "$@"; do
        ! grep -F "Race reported between" <<<"$out" | grep -qE "access at (void )?$kernel(\(.*\))?\+0x" || count=$((count + 1))
    done
    echo $count
}
missing=('handoff<0, 0>' 'handoff<1, 0>' 'rows<0, 0>' 'rows<1, 0>' 'turns<0>' 'exchange<0, 0>' 'exchange<2, 4>' 'exchange<5, 4>')
guarded=('handoff<0, 1>' 'handoff<0, 2>' 'handoff<0, 3>' 'handoff<0, 4>' 'handoff<1, 3>' 'handoff<2, 1>' 'handoff<3, 1>'
    'rows<0, 1>' 'rows<2, 1>' 'turns<1>' 'exchange<1, 0>' 'exchange<2, 0>' 'exchange<2, 1>' 'exchange<3, 0>' 'exchange<3, 2>'
    'exchange<5, 0>' 'exchange<5, 2>')
beyond=('handoff<1, 1>' 'handoff<1, 2>' 'handoff<1, 4>' 'rows<1, 1>' 'exchange<2, 2>' 'exchange<2, 3>' 'exchange<6, 0>' 'exchange<7, 0>')
unseen=('exchange<3, 4>' 'exchange<4, 0>')
seen=$(reported "${missing[@]}") false=$(reported "${guarded[@]}")
ours=$(grep -c '^FAIL report: .* access at void nvjet_sm90_ours<float>' <<<"$verdict")
left_out=$(sed -n 's/^left out: //p' <<<"$verdict")
echo "$seen of ${#missing[@]} missing barriers seen, $false of ${#guarded[@]} guarded forms reported;" \
    "beyond the tool: $(reported "${beyond[@]}") of ${#beyond[@]} guarded ones reported," \
    "$(reported "${unseen[@]}") of ${#unseen[@]} missing ones seen; by name: left out $left_out"
[ "$seen$false$ours $left_out" = "${#missing[@]}01 1 reports in 1 kernels: nvjet_sm90_stand_in" ]
