#!/bin/bash
# scripts/re10k_from_torch.py: a scene packed as pixelSplat does comes back, as folder and as tar; what does not
# add up is named and left out. PyTorch is stood in for by what the script uses of it.
if ! command -v python3 >/dev/null; then
    echo 'skipped: no python3'
    exit 77
fi
. "$(dirname "$0")/lib.sh"
UNPACK=$SOURCE/scripts/re10k_from_torch.py

mkdir torch
cat >torch/__init__.py <<'PY'
import pickle
class Tensor:
    def __init__(self, values, shape): self.values, self.shape = values, tuple(shape)
    def __len__(self): return self.shape[0]
    def tolist(self): return self.values
    def numpy(self): return self
    def tobytes(self): return bytes(self.values)
def load(path, map_location, weights_only):
    assert map_location == "cpu" and weights_only is True
    with open(path, "rb") as file: return pickle.load(file)
PY
cat >pack.py <<'PY'
"""chunks/000000.torch: the motorcycle, and the same three times with something wrong."""
import os, pickle, sys, tarfile
from torch import Tensor
archive = tarfile.open(sys.argv[1])
files = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}
text = next(n for n in files if n.endswith(".txt"))
key = os.path.basename(text)[:-4]
url, *lines = files[text].decode().splitlines()
rows = [line.split() for line in lines]
def tensor(data): return Tensor(list(data), [len(data)])
def scene(name, **change):
    made = {"key": name, "url": url, "timestamps": tensor([int(r[0]) for r in rows]),
            "cameras": Tensor([[float(x) for x in r[1:]] for r in rows], [len(rows), 18]),
            "images": [tensor(files[f"test/{key}/{r[0]}.jpg"]) for r in rows]}
    made.update(change)
    return made
scenes = [scene(key), scene("../up"), scene("fewer", images=[]), scene("descending", timestamps=tensor([5, 5])),
          scene("text", images=[tensor(b"hello"), tensor(b"hello")]), scene("second"), None, scene("odd", timestamps=None)]
os.makedirs("chunks")
pickle.dump(scenes, open("chunks/000000.torch", "wb"))
print(key)
PY
key=$(PYTHONPATH=$PWD python3 pack.py "$SOURCE/data/motorcycle.tar")
unpack() { # CODE ARGS...
    local want=$1 got
    shift
    command_line="re10k_from_torch.py $*"
    checks=$((checks + 1))
    PYTHONPATH=$PWD python3 "$UNPACK" "$@" >out 2>err
    got=$?
    out=$(cat out) err=$(cat err)
    [ "$got" -eq "$want" ] || fail "exit code $got instead of $want"
}

unpack 1 chunks plain --split test
says '2 scenes written, 6 left out'
tells 'a NoneType, no dictionary'
for reason in 'scene ../up: the key is no file name' 'scene fewer: 2 timestamps, 0 images' 'scene descending: timestamps do not ascend' \
    'scene text: the image at 0 is neither JPEG nor PNG'; do
    tells "$reason"
done
equal 'what was written' "$(find plain -type f | sort | tr '\n' ' ')" \
    "plain/test/$key.txt plain/test/$key/0.jpg plain/test/$key/1000000.jpg plain/test/second.txt plain/test/second/0.jpg plain/test/second/1000000.jpg "
tar -xf "$SOURCE/data/motorcycle.tar"
checks=$((checks + 1))
cmp -s "test/$key/0.jpg" "plain/test/$key/0.jpg" || fail 'a picture has changed'
# the same numbers, and a data set that ttv takes
run 0 data check plain
says 'clean'
cat >numbers.py <<'PY'
import sys
a, b = ([float(x) for line in open(p).read().splitlines()[1:] for x in line.split()] for p in sys.argv[1:])
print(len(a) == len(b) > 0 and max(abs(x - y) for x, y in zip(a, b)) < 1e-9)
PY
equal 'cameras' "$(python3 numbers.py "test/$key.txt" "plain/test/$key.txt")" True

unpack 0 chunks packed --split test --tar --limit 1
equal 'a tar' "$(ls packed)" test-000000.tar
run 0 data check packed/test-000000.tar
says 'clean'
mkdir empty
unpack 1 empty out
tells 'no *.torch files'
# ---- files that are no chunks: a line, no traceback ----
printf 'no pickle' >damaged.torch
unpack 1 damaged.torch x
tells 'damaged.torch: cannot be read: '
python3 -c 'import pickle; pickle.dump({"key": 1}, open("other.torch", "wb"))'
unpack 1 other.torch x
tells 'other.torch: cannot be read: TypeError: a dict, no list of scenes'
finish
