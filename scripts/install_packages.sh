#!/bin/sh
# Installs the Debian 12 packages that ttv is built and tested with; does nothing when all are there.
# --build-only leaves out what only the tests and CI need.
set -eu
build="build-essential cmake ninja-build pkg-config git libpng-dev zlib1g-dev libjpeg62-turbo-dev libinih-dev libcjson-dev libdnnl-dev"
tests="libcmocka-dev libopenblas-dev clang-format python3"
[ "${1:-}" = "--build-only" ] && wanted="$build" || wanted="$build $tests"
missing=""
for package in $wanted; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "error: root is needed to install:$missing" >&2; exit 1; }
    sudo=sudo
else
    sudo=
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
