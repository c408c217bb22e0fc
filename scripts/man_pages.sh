#!/bin/sh
# The manual pages of section 5 that are parts of docs/: scripts/man_pages.sh VERSION FOLDER
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
page() { # NAME ABOUT SECTIONS FILE
    awk -v name="$1" -v version="$version" -v about="$2" -v sections="$3" -f "$source/scripts/man_page.awk" "$source/docs/$4" >"$out/$1.5"
}
version=$1 out=$2
page ttv-data 'data sets of labelled pictures' 'Data sets' cli.md
page ttv-scenes 'posed scenes: layouts, camera files, evaluation indices' '' scenes.md
page ttv-checkpoint 'run folders and checkpoints' 'A run folder|Checkpoints' cli.md
