#!/bin/bash
# Cases of the op table that began under a tool and did not end:  tests/gpu/tool_lost.sh LOG
#
# LOG: what processes of `ops_test --verbose` wrote. A process that a signal ends takes along its counts, and the sums of
# the others look like a complete run. Exit 0: none; 1: some, each printed.
set -u
export LC_ALL=C
[ $# -eq 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
lost=$(comm -23 <(sed -n 's/^begun //p' "$1" | sort) <(sed -n 's/^ran \(.*\): [0-9]* ms$/\1/p' "$1" | sort))
[ -z "$lost" ] || { printf '%s\n' "$lost" | sed 's/^/FAIL lost: /'; exit 1; }
