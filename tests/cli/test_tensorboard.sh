#!/bin/bash
# --tensorboard: event files read back, frame by frame, against metrics.csv; a resumed run; a folder that cannot be.
. "$(dirname "$0")/train_lib.sh"
if ! command -v python3 >/dev/null; then
    echo 'skipped: no python3 to read event files with'
    exit 77
fi
cat >read.py <<'PY'
"""Scalars of the event files of a folder as lines "tag step value", as a reader sees them."""
import os, struct, sys
def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8): crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff
def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff
assert crc32c(b"123456789") == 0xe3069283
def fields(data):
    at = 0
    def varint():
        nonlocal at
        x = shift = 0
        while True:
            x |= (data[at] & 127) << shift; shift += 7; at += 1
            if data[at - 1] < 128: return x
    while at < len(data):
        key = varint()
        if key & 7 == 0: value = varint()
        elif key & 7 == 1: value = struct.unpack_from("<d", data, at)[0]; at += 8
        elif key & 7 == 5: value = struct.unpack_from("<f", data, at)[0]; at += 4
        else:
            assert key & 7 == 2, key
            n = varint(); value = data[at:at + n]; at += n
            assert len(value) == n
        yield key >> 3, value
seen = {}
for name in sorted(os.listdir(sys.argv[1])):
    assert name.startswith("events.out.tfevents."), name
    data = open(os.path.join(sys.argv[1], name), "rb").read()
    at, first, last_time = 0, True, 0
    while at < len(data):
        n, = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at:at + 8]), "CRC of a length"
        event = data[at + 12:at + 12 + n]
        assert struct.unpack_from("<I", data, at + 12 + n)[0] == masked(event), "CRC of data"
        at += 16 + n
        event = list(fields(event))
        one = dict(event)
        assert len(one) == len(event), "a field twice"
        assert one[1] >= last_time > -1 and one[1] > 1e9
        last_time = one[1]
        if first: assert one[3] == b"brain.Event:2"
        first = False
        if 7 in one:
            assert dict(fields(one[7])) == {1: 1}
            seen = {k: v for k, v in seen.items() if k[1] < one[2]}
        for number, value in fields(one.get(5, b"")):
            assert number == 1
            value = dict(fields(value))
            tag = value[1].decode()
            assert (tag, one[2]) not in seen, "a value twice"
            seen[tag, one[2]] = value[2]
    assert not first
for (tag, step), value in sorted(seen.items()): print(tag, step, "%.6g" % value)
PY
cat >table.py <<'PY'
"""The same of metrics.csv."""
import csv, struct, sys
rows = {}
for row in csv.DictReader(open(sys.argv[1])):
    group = {"train": "train", "validate": "validation"}.get(row["kind"])
    for key, value in row.items():
        if group and value and key not in ("kind", "step", "epoch", "seconds"):
            rows[group + "/" + key, int(row["step"])] = struct.unpack("<f", struct.pack("<f", float(value)))[0]
for (tag, step), value in sorted(rows.items()): print(tag, step, "%.6g" % value)
PY
same() { # RUN EVENTS
    python3 read.py "$2" >events.txt || fail "$2 cannot be read"
    python3 table.py "$1/metrics.csv" >csv.txt
    checks=$((checks + 1))
    [ "$(wc -l <csv.txt)" -gt 20 ] || fail 'metrics.csv is short'
    grep -v skipped events.txt | diff - csv.txt >difference || fail "$(head -n 5 difference)"
}

run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 3 --max-steps 10 -o runs/one --tensorboard boards
same runs/one boards/one
cp runs/one/last.json kept.json
run 0 train --resume runs/one/ --max-steps 15
same runs/one boards/one
# As if it had died at step 15, before it could save: what was written beyond step 10 is dropped by readers.
cp kept.json runs/one/last.json
run 0 train --resume runs/one
same runs/one boards/one
checks=$((checks + 1))
grep -q '^train/loss 30 ' events.txt || fail 'the run did not end'
equal 'a second of its own for each file' "$(ls boards/one | cut -d. -f4 | sort -u | wc -l)" 3
checks=$((checks + 1))
[ "$(ls boards/one | wc -l)" = 3 ] || fail 'a resumed run has no event file of its own'
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 1 -o runs/one --tensorboard boards
same runs/one-2 boards/one-2
run 0 train "${tiny[@]}" "${small_data[@]}" --epochs 1 --max-steps 1 -o runs/none
checks=$((checks + 1))
[ ! -e runs/none/boards ] && [ "$(ls boards | wc -l)" = 2 ] || fail 'event files that nobody asked for'
echo >file
run 4 train "${tiny[@]}" "${small_data[@]}" --epochs 1 -o runs/bad --tensorboard file
tells 'file'
checks=$((checks + 1))
[ ! -e runs/bad ] || fail 'a refused --tensorboard leaves a run folder behind'

# novel views
. "$SOURCE/tests/cli/nvs_lib.sh"
run 0 nvs train "${tiny[@]}" --steps 6 --val-interval 3 -o views --tensorboard boards
python3 read.py boards/views >events.txt || fail 'boards/views cannot be read'
checks=$((checks + 1))
grep -q '^validation/val_psnr 6 ' events.txt && grep -q '^train/samples_per_s ' events.txt || fail 'no scores of novel views'
run 4 nvs train "${tiny[@]}" --steps 6 -o bad_views --tensorboard file
tells 'file'
checks=$((checks + 1))
[ ! -e bad_views ] || fail 'a refused --tensorboard leaves a run folder behind'
finish
