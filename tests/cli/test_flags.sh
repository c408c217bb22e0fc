#!/bin/bash
# Every flag that --help prints parses, with its own default as the value. A program with CUDA takes a
# while to start, so the flags of a command go together on one line, and apart only where that line fails.
. "$(dirname "$0")/lib.sh"

flags_of() { # COMMAND...: "flag<TAB>takes<TAB>value"
    "$TTV" "$@" --help | awk '
        function emit() { if (flag != "") printf "%s\t%s\t%s\n", flag, takes, value; flag = "" }
        /^  (    |-[A-Za-z], )--(\[no-\])?[a-z0-9-]+/ {
            emit()
            line = $0
            sub(/^ +(-[A-Za-z], )?--/, "", line)
            if (sub(/^\[no-\]/, "", line)) { takes = "bool" } else { takes = "" }
            match(line, /^[a-z0-9-]+/)
            flag = substr(line, 1, RLENGTH)
            rest = substr(line, RLENGTH + 1)
            if (takes == "") takes = rest ~ /^ [^ ]/ ? "yes" : "no"
            word = rest; sub(/^ /, "", word); sub(/ .*/, "", word)
            value = word ~ /\|/ ? word : "1"
            sub(/\|.*/, "", value)
        }
        /^\[/ || /^$/ { emit() }
        flag != "" && /\[[^][]*\]$/ { value = $0; sub(/^.*\[/, "", value); sub(/\]$/, "", value) }
        END { emit() }'
}
mapfile -t all < <("$TTV" man | sed -n 's/^\.SS "\(.*\)"$/\1/p' | sed 's/\\-/-/g')
checks=$((checks + 1))
[ "${#all[@]}" -gt 12 ] || fail "only ${#all[@]} commands in the manual"

# parses COMMAND LINE...: lines of one flag each, all at once
parses() {
    local command=$1 words=() line
    shift
    for line in "$@"; do words+=("${line%%$'\t'*}"); [[ $line != *$'\t'* ]] || words+=("${line#*$'\t'}"); done
    checks=$((checks + 1))
    "$TTV" $command "${words[@]}" --print-config >out.all 2>err.all && return
    for line in "$@"; do
        if [[ $line == *$'\t'* ]]; then
            run 0 $command "${line%%$'\t'*}" "${line#*$'\t'}" --print-config
        else
            run 0 $command "$line" --print-config
        fi
    done
    fail "the flags of '$command' parse apart, not together: $(tail -n 1 err.all)"
}

for command in "${all[@]}"; do
    apart=() joined=() off=() valued=()
    while IFS=$'\t' read -r flag takes value; do
        case $flag in help | help-all | version | config | set | print-config) continue ;; esac
        if [ "$takes" = yes ]; then
            apart+=("--$flag"$'\t'"$value") joined+=("--$flag=$value") valued+=("--$flag")
        else
            apart+=("--$flag") joined+=("--$flag")
            [ "$takes" = no ] || off+=("--no-$flag")
        fi
    done < <(flags_of $command)
    checks=$((checks + 1))
    [ "${#apart[@]}" -gt 5 ] || fail "only ${#apart[@]} flags found in the help of $command"
    parses "$command" "${apart[@]}"
    parses "$command" "${joined[@]}"
    [ "${#off[@]}" -eq 0 ] || parses "$command" "${off[@]}"
    # one parser serves all flags, so every seventh tells what a missing value does
    for ((i = 0; i < ${#valued[@]}; i += 7)); do run 2 $command "${valued[i]}"; done
done

# ---- what other tools call it, and flags whose work is done otherwise ----
while read -r command flag want; do
    run 2 ${command//_/ } "--$flag" 1
    tells "$want"
done <<'LIST'
train data-path did you mean --data-dir?
train nproc-per-node did you mean --ranks?
train use_ema did you mean --model-ema?
eval use-ema did you mean --weights?
nvs_train warmup did you mean --warmup-steps?
nvs_render target-views did you mean --targets?
train tf32 it is --precision tf32
train no-tf32 it is --precision fp32
nvs_train baseline-epsilon cameras in one place are no fault
train mean it is --set preprocess.mean_r
nvs_train lpips-weight the loss is the mean squared error
nvs_render contact-sheet sheet.png is always written
classify tta 'ttv eval' has it
LIST

finish
