#!/bin/bash
# --log-format json: what stderr says, as one JSON object a line; stdout, exit codes and the run folder stay as they are.
. "$(dirname "$0")/train_lib.sh"
tiny_train=("${tiny[@]}")
. "$(dirname "$0")/nvs_lib.sh"
command -v python3 >/dev/null || { skip 'no python3 to read JSON'; finish; }

levels() { # the levels of the lines, counted; each line has time and message, or a record
    python3 - err <<'P'
import collections, datetime, json, sys
seen = collections.Counter()
for line in open(sys.argv[1]):
    d = json.loads(line)
    datetime.datetime.strptime(d["time"], "%Y-%m-%dT%H:%M:%S.%fZ")
    assert isinstance(d["record"], dict) if d["level"] == "record" else d["message"], line
    seen[d["level"]] += 1
print(" ".join(sorted(seen)))
P
}

run 0 train "${tiny_train[@]}" "${small_data[@]}" --epochs 1 --log-format json -o run
json_ok err lines
equal 'levels of a training run' "$(levels)" 'info record'
says 'trained to step 10'
python3 - err run/metrics.jsonl <<'P' || fail 'the records are not those of metrics.jsonl'
import json, sys
told = [d["record"] for d in map(json.loads, open(sys.argv[1])) if d["level"] == "record"]
sys.exit(told != [json.loads(l) for l in open(sys.argv[2])])
P
checks=$((checks + 1))
grep -q '^{' run/log.txt && fail 'log.txt is for people'
run 0 eval --checkpoint run "${small_data[@]}" --log-format=json --json
json_ok out
equal 'levels of a score' "$(levels)" info

run 0 nvs train "${tiny[@]}" --steps 6 --log-format json -o views
equal 'levels of a run on scenes' "$(levels)" 'info record'

# ---- what goes wrong, also before the flag itself is read ----
run 4 eval --checkpoint nowhere --log-format json
equal 'an error' "$(levels)" error
run 2 train --bogus --log-format json
equal 'an unknown flag' "$(levels)" 'error info'
TTV_LOG_FORMAT=json run 2 nvs
equal 'half a command' "$(levels)" 'error info'
TTV_LOG_FORMAT=json run 2
equal 'no command' "$(levels)" error
printf 'x' >'bad"\.png'
run 3 classify --checkpoint run --log-format json 'bad"\.png'
equal 'a file with odd letters in its name' "$(levels)" 'error info'
run 4 eval --checkpoint nowhere -q --log-format json
equal 'quiet' "$(levels)" error
run 2 eval --checkpoint run --log-format xml
tells 'expected one of text, json'
run 0 train "${tiny_train[@]}" "${small_data[@]}" --epochs 1 --max-steps 2 --ranks 2 --log-format json -o ranks
equal 'levels of two ranks' "$(levels)" 'info record'
finish
