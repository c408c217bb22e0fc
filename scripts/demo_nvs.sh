#!/bin/sh
# New views between two photographs: builds if needed, then renders a path between the cameras of the committed stereo pair with
# the shipped weights (data/README.md says on what they were trained). A few seconds on two cores.
#
#   scripts/demo_nvs.sh [BUILD-FOLDER] [OUTPUT-FOLDER]     default: build runs/motorcycle
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
out=${2:-runs/motorcycle}
ttv=$build/bin/ttv

if [ ! -x "$ttv" ]; then
    scripts/install_packages.sh --build-only
    cmake -S . -B "$build" -G Ninja -DTTV_TESTS=OFF
    cmake --build "$build" --target ttv_program
fi
mkdir -p "$(dirname "$out")"
"$ttv" nvs render --checkpoint data/nvs_demo.safetensors --data-dir data/motorcycle.tar --input-views 0,1 --frames 24 --fps 12 \
    -o "$out" --overwrite
echo "== the views: $out/sheet.png, moving: $out/render.apng"
