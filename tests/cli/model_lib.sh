# Shared by the tests that need a checkpoint: trains a very small model on a few digits in about a second.
# Afterwards $RUN is its run folder and $WEIGHTS the weights file of its last step.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export OMP_NUM_THREADS=1

DIGITS=$SOURCE/data/digits.tar
PHOTOS=$SOURCE/data/photos
RUN=$WORK/run
run 0 train --model custom --img-size 16 --patch-size 4 --width 32 --depth 2 --heads 2 --crop-pct 1 \
    --batch-size 32 --warmup-epochs 0 --lr 2e-3 --epochs 2 --no-progress --workers 1 \
    --data-dir "$DIGITS" --set data.train_limit=640 --set data.val_limit=100 -o "$RUN"
if [ ! -f "$RUN/last.json" ]; then
    echo 'no checkpoint to test with'
    exit 1
fi
WEIGHTS=$RUN/$(sed -n 's/.*"weights" *: *"\([^"]*\)".*/\1/p' "$RUN/last.json")
[ -f "$WEIGHTS" ] || WEIGHTS=$(find "$RUN/checkpoints" -name 'step-*.safetensors' ! -name '*.state.*' | sort | tail -n 1)

# put BYTES at OFFSET of FILE
poke() { # FILE OFFSET ESCAPED-BYTES
    printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
