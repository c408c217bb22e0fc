#!/bin/sh
# Installs what is missing, builds, and passes all tests. Arguments go to ctest, e.g. -L unit.
set -eu
cd "$(dirname "$0")/.."
scripts/install_packages.sh
cmake -S . -B build -G Ninja -DTTV_TESTS=ON ${TTV_CMAKE_FLAGS:-}
cmake --build build
ctest --test-dir build --output-on-failure -j "$(nproc)" "$@"
