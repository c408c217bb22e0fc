# Shared by the tests of ttv nvs: procedural scenes, and flags of a model that trains in a second.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export OMP_NUM_THREADS=1 # threads that spin on a busy machine make tiny steps slow

# 4 scenes to train on, 2 to test, 12 frames each
run 0 data synth-scenes rooms --scenes 4 --frames 12 --size 48x32 --seed 4 --samples 1
run 0 data synth-scenes rooms --split test --scenes 2 --frames 12 --size 48x32 --seed 5 --samples 1 --overwrite

# views of 32x32 pixels, 16 tokens each, two narrow blocks
tiny=(--nvs-model custom --view-height 32 --view-width 32 --set nvs_model.width=32 --set nvs_model.layers=2
    --set nvs_model.head_width=16 --data-dir rooms --gap-min 4 --gap-max 11 --targets 3 --batch-size 4
    --warmup-steps 5 --lr 3e-3 --log-interval 1 --val-interval 20 --workers 2 --no-progress)
