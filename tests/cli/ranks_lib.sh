# Shared by the tests of several ranks that train on the digits.
. "$(dirname "${BASH_SOURCE[0]}")/train_lib.sh"

# A port that nobody is likely to have, with a hundred behind it: below those that the system hands out by itself (32768).
port_is_taken() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
PORT=$((10000 + RANDOM % 22600))
while port_is_taken $PORT || port_is_taken $((PORT + 10)) || port_is_taken $((PORT + 40)); do PORT=$((10000 + RANDOM % 22600)); done
mine=("${tiny[@]}" --data-dir "$DIGITS" --set data.train_limit=330 --set data.val_limit=101 --epochs 2
    --batch-size 24 --grad-accum-steps 2)
drawn=(--drop-path 0.2 --reprob 0.3 --mixup 0.8 --cutmix 1 --model-ema --val-interval 1)

same_file() { # WHAT A B
    checks=$((checks + 1))
    cmp -s "$2" "$3" || fail "$1: $2 and $3 differ"
}
