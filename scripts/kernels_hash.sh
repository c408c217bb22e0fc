#!/bin/sh
# SHA-256 over names and contents of all files in kernels/: what a run on a card has to do with.
# Argument: the source folder; this one when none is given.
set -eu
cd "${1:-$(dirname "$0")/..}"
find kernels -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d ' ' -f 1
