#!/bin/bash
# Devices that are not there: a plain message and exit code 5, whatever this build and machine have.
. "$(dirname "$0")/train_lib.sh"

none() {
    checks=$((checks + 1))
    [ ! -e runs/x ] || fail 'a run folder was left behind'
}

# no build and no machine has a thousand cards
run 5 train "${tiny[@]}" "${small_data[@]}" --device cuda:999 -o runs/x
tells 'CUDA'
quiet_out
equal 'lines of the message' "$(grep -c 'ttv: error:' err)" 1
none
run 5 bench step --model custom --img-size 16 --patch-size 4 --width 32 --depth 1 --heads 2 --device cuda:999
tells 'CUDA'
run 0 train "${tiny[@]}" "${small_data[@]}" --max-steps 1 -o made
run 5 eval --checkpoint made --device cuda:999
tells 'CUDA'
digits_folder set 1
run 5 classify --checkpoint made --device cuda:999 set/val/3
tells 'CUDA'

# names that are no devices
for device in cuda: cuda:x cuda:-1 cuda:1x gpu '' CUDA; do
    run 2 train "${tiny[@]}" "${small_data[@]}" --device "$device" -o runs/x
    tells 'cuda or cuda:<number>'
done
none

# a build without CUDA says how to get one, a build without a card that there is none
"$TTV" train "${tiny[@]}" "${small_data[@]}" --device cuda --dry-run >out 2>err
code=$?
checks=$((checks + 1))
case $code in
0) ;; # there is a card
5) grep -q -e 'TTV_CUDA=ON' -e 'no NVIDIA card or driver was found' -e 'install a newer driver' -e 'no code for cuda' err ||
    fail 'the message gives no reason' ;;
*) fail "exit code $code instead of 0 or 5" ;;
esac

# an old driver: a library in its place that says so. A card of another architecture cannot be feigned as easily.
if "$TTV" version | grep -q '^cuda: yes' && command -v cc >/dev/null; then
    mkdir old
    printf '%s\n' 'int cuInit(unsigned flags) { (void)flags; return 0; }' \
        'int cuDriverGetVersion(int *version) { *version = 11040; return 0; }' >old.c
    cc -shared -fPIC -o old/libcuda.so.1 old.c || fail 'no library in the place of the driver'
    LD_LIBRARY_PATH=$PWD/old${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} run 5 eval --checkpoint made --device cuda
    tells 'the NVIDIA driver supports CUDA 11.4, this build needs '
    tells 'install a newer driver'
else
    skip 'an old driver: this build has no CUDA, or there is no C compiler'
fi

# ---- doctor: the same in one report ----
run 0 doctor
quiet_err
says 'ok       processor'
says 'ok       folder'
run 0 doctor --json
json_ok out
run 1 doctor --device cuda:999
says 'fault    card'
run 1 doctor --output nowhere
says 'fault    folder'
says 'nowhere'
run 2 doctor surplus
checks=$((checks + 1))
(ulimit -f 100 && "$TTV" doctor >out 2>err)
[ $? -eq 1 ] && grep -q '^fault    file size' out || fail 'a limit on the size of files is not told'

finish
