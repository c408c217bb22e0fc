#!/bin/bash
# Collects what tests/gpu/check.sh needs on a machine that has a card but neither compiler nor network:
#
#   tests/gpu/pack.sh [--build DIR] [--no-build] [OUT]     (build-gpu, .gpu; both ignored by git)
#
# There:  cd OUT && tar xJf programs.txz && LD_LIBRARY_PATH=lib tests/gpu/check.sh build
#
# Programs are built for x86-64-v3 and compute capability 9.0a (TTV_GPU_ARCH: another one) and stripped; lib/ has
# libttv, once for all of them, and the libraries that a bare Ubuntu lacks. The CUDA toolkit's own libraries must be there already.
set -euo pipefail
cd "$(dirname "$0")/../.."
build="build-gpu"
out=""
make=yes
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2 && shift ;;
    --no-build) make=no ;;
    -*)
        sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "$0" >&2
        exit 2
        ;;
    *) out=$1 ;;
    esac
    shift
done
out=${out:-.gpu}
programs=(bin/ttv tests/ops/ops_test tests/ops/ops_gradient tests/golden/golden_check tests/gpu/model_parity tests/gpu/scores_parity tests/gpu/named_barriers
    tests/test_nn_graphs tests/test_nn_plan tests/test_lact_span tests/test_token_basis)

if [ $make = yes ]; then
    cmake -S . -B "$build" -G Ninja -DTTV_CPU_ARCH=x86-64-v3 -DTTV_CUDA=ON -DBUILD_SHARED_LIBS=ON \
        "-DTTV_CUDA_ARCHITECTURES=${TTV_GPU_ARCH:-90a}" >/dev/null
    # Targets are called as their files, but for the program itself.
    mapfile -t targets < <(printf "%s\n" "${programs[@]:1}" | sed "s|.*/||")
    ninja -C "$build" "-j${JOBS:-2}" ttv_program "${targets[@]}"
fi

# Only what this script puts there is replaced.
rm -rf "${out:?}"/{build,lib,tests,scripts,configs,data,kernels,nn,COMMIT}
mkdir -p "$out"/{build,lib,scripts,nn}
for program in "${programs[@]}"; do
    mkdir -p "$out/build/$(dirname "$program")"
    strip -o "$out/build/$program" "$build/$program"
done

# Of glibc and of the toolkit there is one on every machine; anything else comes along.
for program in "${programs[@]}"; do ldd "$build/$program"; done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
    sort -u | grep -vE '/(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|cublasLt|cublas|cudart|cudnn[a-z_]*))\.so' |
    while read -r library; do cp -L "$library" "$out/lib/"; done
find "$out/lib" -name '*.so*' -exec strip --strip-unneeded {} + 2>/dev/null || true

cp scripts/kernels_hash.sh "$out/scripts/"
cp nn/ops.h "$out/nn/"
cp -r kernels configs "$out/"
mkdir -p "$out/tests/gpu" "$out/tests/data" "$out/data"
cp tests/gpu/*.sh "$out/tests/gpu/"
[ ! -f tests/gpu/last_run.json ] || cp tests/gpu/last_run.json "$out/tests/gpu/"
cp -r tests/data/golden "$out/tests/data/"
cp data/digits.tar "$out/data/"
git describe --always --dirty --abbrev=12 >"$out/COMMIT"

# A machine is lent with 64 MiB for the working tree and this folder together: build/ and lib/ travel compressed.
tar c -C "$out" build lib | xz -2 -T2 >"$out/programs.txz"
rm -rf "${out:?}"/{build,lib}
size=$(du -sm "$out" | cut -f 1)
echo "$out: $size MiB, commit $(cat "$out/COMMIT")"
[ "$size" -lt 48 ] || { echo "$out is too large to be carried along" >&2; exit 1; }
