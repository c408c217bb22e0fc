# Shared by the training tests: the digits, and flags of a model that trains in a second.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

DIGITS=$SOURCE/data/digits.tar
[ -f "$DIGITS" ] || DIGITS=$SHARED/data/free/digits.tar
if [ ! -f "$DIGITS" ]; then
    echo 'skipped: no digits.tar'
    exit 77
fi
export OMP_NUM_THREADS=1 # threads that spin on a busy machine make tiny steps slow

# 16x16 pixels, 8x8 tokens, two narrow blocks; 320 images in 10 steps an epoch
tiny=(--model custom --img-size 16 --patch-size 4 --width 32 --depth 2 --heads 2 --crop-pct 1
    --batch-size 32 --warmup-epochs 0 --lr 2e-3 --log-interval 1 --no-progress --workers 2)
small_data=(--data-dir "$DIGITS" --set data.train_limit=320 --set data.val_limit=100)

# Unpacks n images of each digit and split into FOLDER.
digits_folder() { # FOLDER n
    mkdir -p all.tmp "$1"
    [ -d all.tmp/train ] || tar -xf "$DIGITS" -C all.tmp
    local split class
    for split in train val; do
        for class in 0 1 2 3 4 5 6 7 8 9; do
            mkdir -p "$1/$split/$class"
            find "all.tmp/$split/$class" -name '*.png' | sort | head -n "$2" | xargs -I{} cp {} "$1/$split/$class"
        done
    done
}
