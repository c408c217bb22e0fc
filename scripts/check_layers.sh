#!/bin/sh
# Checks that #include lines point down only (docs/architecture.md): each room may include itself and
# the rooms listed for it. Also: no model room includes another, no CUDA #ifdef outside kernels/.
set -eu
cd "$(dirname "$0")/.."
bad=0
allowed() { # room -> rooms it may include
    case $1 in
    core) echo "core" ;;
    kernels) echo "core kernels" ;;
    nn) echo "core kernels nn" ;;
    ttt) echo "core kernels nn ttt" ;;
    vision) echo "core kernels nn ttt vision" ;;
    nvs) echo "core kernels nn ttt nvs" ;;
    datasets) echo "core datasets" ;;
    tools) echo "core kernels nn ttt vision nvs datasets tools" ;;
    esac
}
checked=0
for room in core kernels nn ttt vision nvs datasets tools; do
    may=" $(allowed $room) "
    for file in $(find $room -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh'); do
        checked=$((checked + 1))
        for included in $(sed -n 's|^[[:space:]]*#[[:space:]]*include[[:space:]]*"\([a-z]*\)/.*|\1|p' "$file"); do
            case $may in
            *" $included "*) ;;
            *) echo "$file includes $included/: $room may use only:$may"; bad=1 ;;
            esac
        done
        case $room in
        kernels) ;;
        *) if grep -nE '#[[:space:]]*(if|ifdef|elif).*(CUDA|__NVCC__)' "$file" | grep -v TTV_BUILT_WITH_CUDA; then
               echo "$file: CUDA conditionals belong in kernels/"; bad=1
           fi ;;
        esac
    done
done
[ "$checked" -gt 20 ] || { echo "only $checked files found: wrong folder?"; exit 1; }
[ $bad -eq 0 ] && echo "layers: $checked files, all includes point down"
exit $bad
