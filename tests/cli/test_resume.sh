#!/bin/bash
# Stopping and continuing: bit-exact resume, signals, locks.
. "$(dirname "$0")/train_lib.sh"

# ---- straight, against a stop in the middle of an epoch and another number of workers ----
# with every random stream in use: stochastic depth, mixing, erasing, flips, a policy
random=(--drop-path 0.2 --mixup 0.8 --cutmix 1 --mixup-prob 0.8 --mixup-switch-prob 0.4 --reprob 0.5 --hflip 0.5
    --aa rand-m9-mstd0.5-inc1)
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 "${random[@]}" -o straight
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 "${random[@]}" --max-steps 7 -o parts
run 0 train --resume parts --workers 1 --max-steps 13 --no-progress
tells 'step 7'
tells 'changed since the run began: loader.workers was 2, is now 1'
run 0 train --resume last -o parts --workers 3 --no-progress
same_weights straight parts 'stopped at 7 and 13 of 20'
equal 'train rows of the resumed run' "$(grep '^train,' parts/metrics.csv | cut -d, -f2 | sort -n | uniq | wc -l)" 20
equal 'doubled rows' "$(grep '^train,' parts/metrics.csv | cut -d, -f2 | sort -n | uniq -d | wc -l)" 0
json_ok parts/metrics.jsonl lines
losses() { awk -F, '$1 == "train" {print $2 "," $4}' "$1/metrics.csv"; }
equal 'last loss' "$(losses parts | tail -n 1)" "$(losses straight | tail -n 1)"

# rows beyond the checkpoint are dropped: a kill between a row and a save must not double it
echo 'train,99999,9,1,1,1,1,0,1,,,,1' >>parts/metrics.csv
echo '{"kind":"train","step":99999}' >>parts/metrics.jsonl
printf '{"torn' >>parts/metrics.jsonl
run 0 train --resume parts --no-progress
equal 'rows from the future' "$(cat parts/metrics.csv parts/metrics.jsonl | grep -c -e '^train,99999,' -e '"step":99999' -e torn)" 0
json_ok parts/metrics.jsonl lines

# ---- bf16 and accumulation resume to the same bits too ----
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 1 --precision bf16 --batch-size 16 --grad-accum-steps 2 \
    "${random[@]}" -o straight16
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 1 --precision bf16 --batch-size 16 --grad-accum-steps 2 \
    "${random[@]}" --max-steps 4 -o parts16
run 0 train --resume parts16 --no-progress
same_weights straight16 parts16 'bf16 with accumulation'

# ---- Muon: other weights than AdamW's, and resumed to the same bits ----
for kind in straight parts; do
    stop=()
    [ $kind = straight ] || stop=(--max-steps 4)
    run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 1 --precision bf16 --matrices muon "${stop[@]}" -o "muon-$kind"
done
run 0 train --resume muon-parts --no-progress
same_weights muon-straight muon-parts 'Muon'
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 1 --precision bf16 -o adamw
checks=$((checks + 1))
cmp -s adamw/last.safetensors muon-straight/last.safetensors && fail '--matrices muon changes nothing'

# ---- auto: starts, then continues ----
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 1 --max-steps 3 --resume auto -o auto
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 1 --resume auto -o auto
tells 'continuing auto at step 3'
checks=$((checks + 1))
[ ! -e auto-2 ] || fail '--resume auto began another folder'

# ---- auto, where last.json is lost: on from the best checkpoint, never silently from the beginning ----
kept=(train "${tiny[@]}" "${small_data[@]}" --epochs 1 --save-every 1 --resume auto -o kept)
run 0 "${kept[@]}" --max-steps 3
rm kept/last.json
run 3 "${kept[@]}" --mixer mse
checks=$((checks + 1))
[ ! -e kept/last.json ] || fail 'a refused call writes last.json'
run 0 "${kept[@]}" --max-steps 5
tells 'kept has no last.json (any more): going on from its best checkpoint'
tells 'continuing kept at step 3'
rm kept/last.json kept/best.json
cp kept/metrics.csv as_it_was.csv
run 3 "${kept[@]}"
tells 'kept holds checkpoints, but neither last.json nor best.json says which are whole'
checks=$((checks + 1))
cmp -s kept/metrics.csv as_it_was.csv || fail 'a refused call changes metrics.csv'
rm kept/checkpoints/step-0000000[2-9]* # as a first save leaves it that was killed
run 0 "${kept[@]}" --max-steps 2
says 'trained to step 2'

# ---- what cannot be continued ----
run 2 train --resume nowhere
tells 'no checkpoint'
run 2 train --resume auto -o auto --seed 9 --epochs 3 --no-progress
tells 'seed'
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 2 --max-steps 3 -o odd
run 2 train --resume odd --batch-size 64 --no-progress
tells 'batch'
run 3 train --resume odd --width 64 --no-progress
cp odd/config.ini as_it_was.ini
run 3 train --resume odd --mixer v3_linear_fork --no-progress # its tensors have the same shapes
tells 'odd was trained with model.mixer = base, it cannot go on as v3_linear_fork'
run 3 train --resume odd --mixer-steps 2 --no-progress
run 4 train --resume odd --data-dir gone --no-progress
tells "error: cannot open 'gone'"
cp -r odd odd_moved
sed -i 's/^root = .*/root = gone.tar/' odd_moved/config.ini
run 4 train --resume odd_moved --no-progress
tells "the data of the training run (--data-dir names others): cannot open 'gone.tar'"
run 2 train --resume odd --batch-size 30 --no-progress
tells 'the run stopped after 96 samples, which is no multiple of --batch-size 30'
checks=$((checks + 1))
cmp -s odd/config.ini as_it_was.ini || fail 'a refused resume changes config.ini'
printf 'x' | dd of=odd/checkpoints/"$(ls odd/checkpoints | grep state)" bs=1 seek=3000 conv=notrunc 2>/dev/null
run 3 train --resume odd --no-progress
tells 'odd'

# ---- signals: saved, the right exit code, and the run goes on from there to the same bits ----
stop_with() { # SIGNAL CODE FOLDER
    command_line="ttv train ... then SIG$1"
    checks=$((checks + 1))
    "$TTV" train "${tiny[@]}" "${small_data[@]}" --epochs 400 -o "$3" >out 2>err &
    local pid=$!
    for _ in $(seq 300); do
        grep -qs '^train,3,' "$3/metrics.csv" && break
        sleep 0.05
    done
    kill -"$1" $pid
    wait $pid
    local got=$?
    out=$(cat out) err=$(cat err)
    [ "$got" -eq "$2" ] || fail "exit code $got instead of $2"
    tells 'continue with: ttv train --resume'
    checks=$((checks + 1))
    [ -f "$3/last.json" ] || fail 'nothing was saved'
}
stop_with TERM 143 stopped
stop_with USR1 75 stopped75
# an interactive shell's Ctrl-C: background jobs of a script ignore SIGINT, so python or env resets it
if command -v python3 >/dev/null; then
    command_line='ttv train ... then SIGINT'
    checks=$((checks + 1))
    python3 - "$TTV" "${tiny[@]}" "${small_data[@]}" <<'PY' 2>err
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
p = subprocess.Popen([sys.argv[1], "train", *sys.argv[2:], "--epochs", "400", "-o", "ctrlc"],
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
for _ in range(300):
    if os.path.exists("ctrlc/metrics.csv") and "\ntrain,3," in open("ctrlc/metrics.csv").read():
        break
    time.sleep(0.05)
p.send_signal(signal.SIGINT)
sys.exit(0 if p.wait() == 130 and os.path.exists("ctrlc/last.json") else 1)
PY
    [ $? -eq 0 ] || fail 'SIGINT: not saved, or another exit code than 130'
fi
step=$(sed -n 's/.*"step": *\([0-9]*\).*/\1/p' stopped/last.json | head -n 1)
run 0 train --resume stopped --max-steps $((step + 5)) --no-progress
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 400 --max-steps $((step + 5)) -o unstopped
same_weights stopped unstopped 'continued after SIGTERM'

# ---- two processes on one folder ----
"$TTV" train "${tiny[@]}" "${small_data[@]}" --epochs 100000 -o locked >/dev/null 2>&1 &
pid=$!
for _ in $(seq 300); do
    [ -f locked/last.json ] && break
    sleep 0.05
done
run 4 train --resume locked --no-progress
tells "pid $pid on "
kill -KILL $pid
wait $pid 2>/dev/null
run 0 train --resume locked --max-steps 1 --no-progress # the lock of a dead process is none
if command -v flock >/dev/null; then # of one that takes a moment to die
    flock locked/lock sleep 0.7 &
    sleep 0.1
    run 0 train --resume locked --max-steps 1 --no-progress
    wait
else
    skip 'a process that takes a moment to die: no flock'
fi

finish
