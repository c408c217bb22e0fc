# Shared by tests/cli/test_*.sh. Source it first: . "$(dirname "$0")/lib.sh"
#
# Environment (set by ctest): TTV = the program. Gives every test an empty work folder as its current
# directory, removed at the end; finish() prints the verdict and sets the exit code (77: all skipped).
#
#   run CODE ARGS...       runs ttv; its exit code must be CODE; output in $out and $err (also files ./out, ./err)
#   run_in CODE FILE ARGS  the same with FILE as standard input
#   says TEXT / tells TEXT stdout / stderr must hold TEXT (fixed string)
#   quiet_out / quiet_err  stdout / stderr must be empty
#   json_ok FILE [lines]   FILE must be valid JSON (each line of it with "lines"); skipped aloud without python3
[ "${lib_of:-}" != $$ ] || return 0 # train_lib.sh and nvs_lib.sh in one test
lib_of=$$
set -u
export LC_ALL=C
unset NO_COLOR
: "${TTV:?set TTV to the program under test}"
TTV=$(realpath "$TTV")
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
SHARED=$SOURCE/../shared
WORK=$(mktemp -d "${TMPDIR:-/tmp}/ttv-cli.XXXXXX")
trap 'chmod -R u+rwx "$WORK" 2>/dev/null; rm -rf "$WORK"' EXIT
trap 'exit 1' INT TERM
cd "$WORK" || exit 1

checks=0
failures=0
skipped=0
out=
err=
command_line=

fail() {
    failures=$((failures + 1))
    printf 'FAIL: %s\n  command: %s\n' "$1" "$command_line"
    [ -z "$out" ] || printf '%s\n' "$out" | head -n 12 | sed 's/^/  out| /'
    [ -z "$err" ] || printf '%s\n' "$err" | head -n 12 | sed 's/^/  err| /'
}

skip() {
    skipped=$((skipped + 1))
    printf 'skipped: %s\n' "$1"
}

run_in() {
    local want=$1 input=$2 got
    shift 2
    command_line="ttv $*"
    checks=$((checks + 1))
    timeout 120 "$TTV" "$@" <"$input" >out 2>err
    got=$?
    out=$(tr -d '\0' <out)
    err=$(tr -d '\0' <err)
    [ "$got" -eq "$want" ] || fail "exit code $got instead of $want"
}

run() {
    local want=$1
    shift
    run_in "$want" /dev/null "$@"
}

says() {
    checks=$((checks + 1))
    case $out in *"$1"*) ;; *) fail "stdout lacks: $1" ;; esac
}

tells() {
    checks=$((checks + 1))
    case $err in *"$1"*) ;; *) fail "stderr lacks: $1" ;; esac
}

quiet_out() {
    checks=$((checks + 1))
    [ -z "$out" ] || fail "stdout is not empty"
}

quiet_err() {
    checks=$((checks + 1))
    [ -z "$err" ] || fail "stderr is not empty"
}

equal() { # WHAT GOT WANT
    checks=$((checks + 1))
    [ "$2" = "$3" ] || fail "$1: '$2' instead of '$3'"
}

json_ok() {
    checks=$((checks + 1))
    if ! command -v python3 >/dev/null; then
        skip "JSON of '$command_line' not checked: no python3"
        return
    fi
    if [ "${2:-}" = lines ]; then
        python3 -c 'import json,sys
for line in open(sys.argv[1], "rb"):
    json.loads(line.decode("utf-8"))' "$1" 2>json.err || fail "invalid JSON lines: $(tail -n 1 json.err)"
    else
        python3 -m json.tool "$1" >/dev/null 2>json.err || fail "invalid JSON: $(tail -n 1 json.err)"
    fi
}

# Value of a Python expression over the JSON document d of FILE: json_get FILE 'd["images"]'
json_get() {
    command -v python3 >/dev/null || return 1
    python3 -c 'import json,sys
d = json.load(open(sys.argv[1]))
print(eval(sys.argv[2]))' "$1" "$2"
}

# Of run folders.
same_weights() { # A B WHAT
    checks=$((checks + 1))
    cmp -s "$1/last.safetensors" "$2/last.safetensors" || fail "$3: the weights differ"
}
mean_loss() { # FOLDER FIRST LAST: of train rows, in millionths
    awk -F, -v a="$2" -v b="$3" '$1 == "train" && $2 >= a && $2 <= b {s += $4; n++}
        END {printf "%d", 1e6 * s / n}' "$1/metrics.csv"
}

# Weights of VGG16's and LPIPS's sizes, made up and small: lpips_weights FILE (needs python3)
lpips_weights() {
    python3 - "$1" <<'PY'
import json, struct, sys
plan, at, header, number, inputs = [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512], 0, {}, 0, 3
def add(name, *shape):
    global at
    n = 2
    for s in shape: n *= s
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
    at += n
for c in plan:
    if c == 0:
        number += 1
        continue
    add(f"features.{number}.weight", c, inputs, 3, 3)
    add(f"features.{number}.bias", c)
    number, inputs = number + 2, c
for k, c in enumerate([64, 128, 256, 512, 512]):
    add(f"lin{k}.model.1.weight", 1, c, 1, 1)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
state, values = 1, []
for i in range(4099):
    state = state * 1664525 + 1013904223 & 0xFFFFFFFF
    values.append(struct.pack("<f", (state >> 8) / 2**24 * 0.1)[2:])
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + (b"".join(values) * (at // 8198 + 1))[:at])
PY
}

finish() {
    printf '%s: %d checks, %d failed, %d skipped\n' "$(basename "$0")" "$checks" "$failures" "$skipped"
    [ "$failures" -eq 0 ] || exit 1
    [ "$checks" -gt 0 ] || exit 77
    exit 0
}
