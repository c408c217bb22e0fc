#!/bin/bash
# scripts/demo_nvs.sh: views between the committed pair with the shipped weights, in seconds.
. "$(dirname "$0")/lib.sh"

weights=$SOURCE/data/nvs_demo.safetensors
if [ ! -f "$weights" ]; then
    skip 'data/nvs_demo.safetensors is not there'
    finish
    exit $?
fi
run 0 inspect "$weights"
says 'parameters'
checks=$((checks + 1))
[ "$(wc -c <"$weights")" -lt 4300000 ] || fail 'the weights take more than 4.1 MB'
run 0 nvs render --checkpoint "$weights" --data-dir "$SOURCE/data/motorcycle.tar" --input-views 0,1 --frames 24 -o views
says '24 views of scene 6d6f746f72637963'
equal 'frames' "$(ls views/frame-*.png | wc -l)" 24
# the ends of the path are the inputs: the model must at least give those back, better than the other input would
run 0 nvs render --checkpoint "$weights" --data-dir "$SOURCE/data/motorcycle.tar" --input-views 0,1 --targets 0,1 -o ends --json
if command -v python3 >/dev/null; then
    equal 'PSNR of the inputs themselves' "$(json_get out 'd["psnr"] > 18')" True
fi
finish
