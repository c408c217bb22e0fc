#!/bin/sh
# The main job on real images: installs what is missing, builds, trains a small ViTTT on handwritten digits (about a minute on two cores),
# scores it on the held-back digits and classifies a few of them.
#
#   scripts/demo.sh [BUILD-FOLDER] [RUN-FOLDER]     default: build runs/digits
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
run=${2:-runs/digits}
ttv=$build/bin/ttv

if [ ! -x "$ttv" ]; then
    scripts/install_packages.sh --build-only
    cmake -S . -B "$build" -G Ninja -DTTV_TESTS=OFF
    cmake --build "$build" --target ttv_program
fi
# A finished demo is not trained again over; the run gets a name of its own.
n=2
free=$run
while [ -e "$free" ]; do
    free=$run-$n
    n=$((n + 1))
done
run=$free

echo "== training (configs/digits.ini)"
"$ttv" train -c configs/digits.ini -o "$run"

echo "== scoring on the held-back digits"
"$ttv" eval --checkpoint "$run" --results-file "$run/predictions.csv"

echo "== classifying five of them"
pictures=$(mktemp -d)
trap 'rm -rf "$pictures"' EXIT
members=$(tar -tf data/digits.tar | grep '^val/[02579]/.*png$' | awk -F/ '!seen[$2]++')
tar -xf data/digits.tar -C "$pictures" $members
"$ttv" classify --checkpoint "$run" --topk 5 "$pictures"/val/*/*.png
echo "== checkpoint: $run/best.safetensors"
