#!/bin/bash
# What racecheck reported, told apart by the names of kernels:  tests/gpu/tool_reports.sh LOG FOREIGN
#
# FOREIGN: a regular expression for the names of kernels that are not of this project. Only a report whose accesses are
# all in such kernels is left out; their names are functions of C, without types or arguments, as no kernel here has. A
# line of the tool that is unknown, or a report that it counted and did not print, is not left out either.
#
# Prints "FAIL report: ..." for each that counts, then "left out: 3 reports in 2 kernels: NAME NAME". Exit 0: none counts;
# 1: some; 2: usage.
set -u
export LC_ALL=C
[ $# -eq 2 ] && [ -r "$1" ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
grep '^=\{9\}' "$1" | awk -v foreign="$2" '
    function end_report() {
        if (begun == "") return
        if (own) {
            print "FAIL report: " begun
            failed = 1
        } else {
            left++
            for (i = 1; i <= accesses; i++)
                if (!(name[i] in seen)) { seen[name[i]] = 1; kernels++; names = names " " name[i] }
        }
        begun = ""
    }
    function access(line) { # one access of the report at hand
        sub(/.* access at /, "", line)
        sub(/ \[[0-9]+ hazards?\]$/, "", line)
        if (line !~ foreign || line !~ /^[A-Za-z0-9_]+\+0x[0-9a-f]+$/) { own = 1; return }
        sub(/\+0x[0-9a-f]+$/, "", line)
        name[++accesses] = line
    }
    { sub(/^=+ ?/, "") }
    /^(Error|Warning): Race reported between (Read|Write) access at / {
        end_report()
        begun = $0; own = accesses = 0; reports++
        access($0)
        next
    }
    /^ +and (Read|Write) access at / && begun != "" { access($0); next }
    { end_report() }
    /^ *$/ || /^COMPUTE-SANITIZER$/ { next }
    /^RACECHECK SUMMARY: [0-9]+ hazards? displayed \([0-9]+ errors?, [0-9]+ warnings?\)$/ {
        shown = $3; split($0, part, /[(,]/)
        counted += part[2] + part[3]
        displayed += shown
        next
    }
    { print "FAIL report: " $0; failed = 1 }
    END {
        end_report()
        if (reports != displayed || reports != counted) {
            print "FAIL report: " counted + 0 " counted, " displayed + 0 " displayed, " reports + 0 " read"
            failed = 1
        }
        print "left out: " left + 0 " reports in " kernels + 0 " kernels:" names
        exit failed
    }'
