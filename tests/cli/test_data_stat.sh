#!/bin/bash
# ttv data stat: mean and deviation against the same computed in Python from the pixels.
. "$(dirname "$0")/lib.sh"
if ! command -v python3 >/dev/null; then
    echo 'skipped: no python3 to compute with'
    exit 77
fi
python3 - <<'PY' >want
import os, struct, zlib
def png(path, width, height, pixel):
    rows = b"".join(b"\0" + b"".join(bytes(pixel(x, y)) for x in range(width)) for y in range(height))
    def chunk(kind, data): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
seen = []
def picture(path, width, height, salt):
    def pixel(x, y): return (x * 37 + y * 11 + salt) % 256, (x * y + 3 * salt) % 256, 255 - (x + 2 * y + salt) % 256
    png(path, width, height, pixel)
    seen.extend(pixel(x, y) for y in range(height) for x in range(width))
for i in range(6): picture(f"set/train/{i % 2}/{i}.png", 5 + 3 * i, 4 + i, 40 * i)
for c in range(2): png(f"set/val/{c}/grey.png", 9, 7, lambda x, y: (51, 102, 204))
for c in range(3):
    values = [p[c] / 255 for p in seen]
    mean = sum(values) / len(values)
    print("mean_%s = %.6g" % ("rgb"[c], mean))
for c in range(3):
    values = [p[c] / 255 for p in seen]
    mean = sum(values) / len(values)
    print("std_%s = %.6g" % ("rgb"[c], (sum((v - mean)**2 for v in values) / len(values))**0.5))
PY
run 0 data stat set
says '; 6 pictures of train'
equal 'mean and deviation' "$(tail -n 6 out)" "$(cat want)"
cp out colours.ini
for workers in 1 3; do
    run 0 data stat set -j "$workers"
    equal "$workers threads" "$out" "$(cat colours.ini)"
done
run 0 train -c colours.ini --print-config
says "$(grep mean_g want)"
run 0 data stat set --split val --img-size 16 --json
json_ok out
equal 'one colour' "$(json_get out '[round(255 * m) for m in d["mean"]] + d["std"]')" '[51, 102, 204, 0, 0, 0]'
equal 'pixels of evaluation' "$(json_get out 'd["pixels"]')" 512
run 0 data stat set/val
says '; 2 pictures: whole'

# ---- bad input ----
head -c 60 set/train/0/0.png >set/train/1/torn.png
run 3 data stat set
tells 'torn.png'
tells '1 of 7'
run 0 data stat set --set data.max_corrupt=1
equal 'torn pictures are left out' "$(tail -n 6 out)" "$(cat want)"
run 3 data stat set --on-corrupt fail
run 2 data stat
run 2 data stat set set
run 4 data stat nowhere
finish
