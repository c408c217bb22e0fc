#!/bin/bash
# Ranks that are lost, halted or asked to stop: nobody waits for ever, and what was learnt is kept.
. "$(dirname "$0")/ranks_lib.sh"

started() { # FOLDER: waits for its first rows
    for _ in $(seq 400); do
        [ -f "$1/metrics.csv" ] && [ "$(wc -l <"$1/metrics.csv")" -gt 4 ] && return
        sleep 0.05
    done
}

long() { # FOLDER FLAGS...: starts a long run of three ranks; $pid is the launcher, $ranks its children
    local folder=$1
    shift
    setsid "$TTV" train "${mine[@]}" --epochs 100000 --ranks 3 -o "$folder" "$@" >out 2>err & # its own process group
    pid=$!
    started "$folder"
    mapfile -t ranks < <(cut -d' ' -f1-5 /proc/[0-9]*/stat 2>/dev/null | awk -v p=$pid '$4 == p {print $1}' | sort -n)
    equal "children of $folder" ${#ranks[@]} 3
}

ended() { # CODE SECONDS: the launcher ends so, in time, and leaves nobody
    local start=$SECONDS got left
    wait $pid
    got=$?
    err=$(cat err)
    command_line="ttv train ... ($folder_name)"
    equal 'exit code' $got "$1"
    checks=$((checks + 1))
    [ $((SECONDS - start)) -le "$2" ] || fail "took $((SECONDS - start)) s"
    left=0
    for r in "${ranks[@]}"; do kill -0 "$r" 2>/dev/null && left=$((left + 1)); done
    equal 'ranks left behind' $left 0
}

mkdir aside
( # takes ten seconds, in which the others run
    cd aside && trap - EXIT || exit 1
    folder_name=halted
    long halted --dist-timeout 2
    kill -STOP "${ranks[1]}"
    ended 75 20
    tells 'lost rank 1'
    tells "warning: rank 1 (pid ${ranks[1]} on $(uname -n)) has not come for 1 s: the others wait, up to 2 s"
    exit $failures
) >aside.log &
aside=$!
for victim in 0 2; do
    folder_name=killed$victim
    long $folder_name
    kill -KILL "${ranks[$victim]}"
    ended 75 8
    tells "lost rank $victim"
done
folder_name=paused
long paused --dist-timeout 2 # a job that is suspended as a whole goes on afterwards
kill -STOP -- -$pid
sleep 4
kill -CONT -- -$pid
before=$(wc -l <paused/metrics.csv)
for _ in $(seq 100); do
    [ "$(wc -l <paused/metrics.csv)" -gt $((before + 5)) ] && break
    sleep 0.05
done
kill -TERM $pid
ended 143 10
tells 'stopped and saved at step'
folder_name=stopped
long stopped
kill -TERM $pid
ended 143 10
tells 'stopped and saved at step'
for name in INT TERM; do # to the whole group, as a terminal, timeout(1) or scancel do
    folder_name=group_$name
    long $folder_name
    kill -$name -- -$pid
    [ $name = INT ] && ended 130 10 || ended 143 10
    tells 'stopped and saved at step'
    equal "errors after SIG$name" "$(grep -c error err)" 0
done
folder_name=twice
long twice
kill -STOP "${ranks[1]}" # nobody can stop at a step edge
kill -INT -- -$pid
sleep 0.3
kill -INT -- -$pid
ended 130 4
folder_name=one
long one
kill -USR1 "${ranks[2]}"
ended 75 10
tells 'stopped and saved at step'
step=$(sed -n 's/.*"step": *\([0-9]*\).*/\1/p' stopped/last.json | head -n 1)
run 0 train --resume stopped --ranks 3 --max-steps $((step + 5)) --no-progress
run 0 train "${mine[@]}" --epochs 100000 --ranks 3 --max-steps $((step + 5)) -o unstopped
same_file 'continued after SIGTERM' stopped/last.safetensors unstopped/last.safetensors
folder_name=orphans
long orphans
kill -KILL $pid
wait $pid 2>/dev/null
for _ in $(seq 200); do
    left=0
    for r in "${ranks[@]}"; do kill -0 "$r" 2>/dev/null && left=$((left + 1)); done
    [ $left -eq 0 ] && break
    sleep 0.05
done
equal 'ranks that outlive their launcher' $left 0

# timeout(1) sends it to its child and once more to the group
for ranks in 1 2; do
    timeout --preserve-status -s INT 1.5 "$TTV" train "${mine[@]}" --epochs 100000 --ranks $ranks -o timeout$ranks >out 2>err
    got=$?
    err=$(cat err)
    command_line="timeout -s INT 1.5 ttv train --ranks $ranks"
    equal 'exit code' $got 130
    tells 'stopped and saved at step'
done

# a true Ctrl-C at a terminal
if command -v python3 >/dev/null; then
    command_line='ttv train --ranks 2 at a terminal, then Ctrl-C'
    checks=$((checks + 1))
    python3 - "$TTV" train "${mine[@]}" --epochs 100000 --ranks 2 -o terminal >out 2>err <<'PY' || fail "$(cat err)"
import os, pty, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
for _ in range(400):
    if os.path.exists("terminal/metrics.csv") and sum(1 for _ in open("terminal/metrics.csv")) > 4:
        break
    time.sleep(0.05)
os.write(fd, b"\x03")
try:
    while os.read(fd, 4096):
        pass
except OSError:
    pass
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
if code != 130 or not os.path.exists("terminal/last.json"):
    sys.exit(f"exit code {code}, saved: {os.path.exists('terminal/last.json')}")
PY
else
    skip 'Ctrl-C at a terminal: no python3'
fi
checks=$((checks + 1))
wait $aside || fail "a halted rank: $(cat aside.log)"
finish
