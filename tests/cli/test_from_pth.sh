#!/bin/bash
# scripts/vittt_from_pth.py: weights in PyTorch's archive come back as they were, whatever else lies in it.
if ! command -v python3 >/dev/null; then
    echo 'skipped: no python3'
    exit 77
fi
. "$(dirname "$0")/model_lib.sh"

CONVERT="$SOURCE/scripts/vittt_from_pth.py"

# Archives as torch.save writes them, without PyTorch: modules of its names, storages by persistent id.
cat >make.py <<'PY'
import json, pickle, struct, sys, types, zipfile
from collections import OrderedDict

def fake(module, name):
    made = type(name, (), {})
    made.__module__ = module
    made.__qualname__ = name
    parts = module.split(".")
    for i in range(len(parts)):
        sys.modules.setdefault(".".join(parts[: i + 1]), types.ModuleType(parts[i]))
    setattr(sys.modules[module], name, made)
    return made

STORAGE = {k: fake("torch", k + "Storage") for k in ("Float", "Half", "BFloat16", "Long")}
REBUILD, CONFIG = fake("torch._utils", "_rebuild_tensor_v2"), fake("yacs.config", "CfgNode")
blobs = []

class Saved:
    def __init__(self, kind, data, size, stride, offset=0):
        blobs.append(data)
        self.args = (("storage", STORAGE[kind], str(len(blobs) - 1), "cpu", len(data)), offset, size, stride, False, OrderedDict())

class Id:
    def __init__(self, pid):
        self.pid = pid

class Pickler(pickle.Pickler):
    def persistent_id(self, o):
        return o.pid if isinstance(o, Id) else None
    def reducer_override(self, o):
        if isinstance(o, Saved):
            return REBUILD, (Id(o.args[0]),) + o.args[1:]
        return NotImplemented

def read(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        data = f.read()
    header.pop("__metadata__", None)
    return header, data

def strides(size):
    out, step = [], 1
    for n in reversed(size):
        out.insert(0, step)
        step *= n
    return tuple(out)

def transposed(data, rows, columns):
    cells = [data[i * 4 : i * 4 + 4] for i in range(rows * columns)]
    return b"".join(cells[r * columns + c] for c in range(columns) for r in range(rows))

header, data = read(sys.argv[1])
weights = OrderedDict()
for i, (name, e) in enumerate(header.items()):
    size, bytes_ = tuple(e["shape"]), data[slice(*e["data_offsets"])]
    if len(size) == 2 and i % 2:  # a transposed view
        t = Saved("Float", transposed(bytes_, *size), size, (1, size[0]))
    else:  # behind three other numbers
        t = Saved("Float", b"\1" * 12 + bytes_, size, strides(size), 3)
    weights["module." + name if sys.argv[3] == "module" else name] = t
weights["norm.num_batches_tracked"] = Saved("Long", bytes(8), (), ())
config = CONFIG()
config.LR = 1
everything = {"plain": weights, "half": {"x": Saved("Half", struct.pack("<3e", 1, -2.5, 0), (3,), (1,)),
                                         "y": Saved("BFloat16", b"\x80\x3f\x20\xc0", (2,), (1,))},
              "module": {"optimizer": {"state": {0: {"step": 1}}}, "config": config, "epoch": 3, "model": weights}}
with zipfile.ZipFile(sys.argv[2], "w") as z:
    import io
    text = io.BytesIO()
    Pickler(text, 2).dump(everything[sys.argv[3]])
    z.writestr("archive/data.pkl", text.getvalue())
    for i, blob in enumerate(blobs):
        z.writestr(f"archive/data/{i}", blob)
    z.writestr("archive/version", "3\n")
PY

same_tensors() { # A B: names, shapes and bytes
    python3 - "$1" "$2" <<'PY'
import json, struct, sys
def tensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    return {k: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for k, e in header.items()}
sys.exit(tensors(sys.argv[1]) != tensors(sys.argv[2]))
PY
}

for kind in plain module; do
    python3 make.py "$WEIGHTS" $kind.pth $kind || fail 'the test cannot make its archive'
    checks=$((checks + 2))
    python3 "$CONVERT" $kind.pth $kind.safetensors >converted || fail "$kind.pth is not converted"
    same_tensors "$WEIGHTS" $kind.safetensors || fail "$kind.pth: the tensors differ"
    run 0 eval -c "$RUN/config.ini" --checkpoint $kind.safetensors -q
    result=$(sed 's/,[^,]*img.s.*//' out)
    run 0 eval -c "$RUN/config.ini" --checkpoint "$WEIGHTS" -q
    equal "scores of $kind" "$result" "$(sed 's/,[^,]*img.s.*//' out)"
done
python3 make.py "$WEIGHTS" half.pth half
python3 "$CONVERT" half.pth half.safetensors >converted
equal 'half and bfloat16' "$(tail -c 20 half.safetensors | od -An -tf4 -v | tr -s ' \n' ' ')" ' 1 -2.5 0 1 -2.5 '

# ---- the real thing where PyTorch is ----
if python3 -c 'import torch' 2>/dev/null; then
    python3 - "$WEIGHTS" <<'PY'
import json, struct, sys, torch
with open(sys.argv[1], "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    data = f.read()
header.pop("__metadata__", None)
model = {k: torch.frombuffer(bytearray(data[slice(*e["data_offsets"])]), dtype=torch.float32).reshape(e["shape"])
         for k, e in header.items()}
torch.save({"model": model, "epoch": 3}, "torch.pth")
PY
    checks=$((checks + 2))
    python3 "$CONVERT" torch.pth torch.safetensors >converted || fail 'torch.pth is not converted'
    same_tensors "$WEIGHTS" torch.safetensors || fail 'torch.pth: the tensors differ'
else
    skip 'no PyTorch: archives of its own making were not read'
fi

# ---- refused ----
refused() { # TEXT ARGS...
    checks=$((checks + 2))
    if python3 "$CONVERT" "${@:2}" >converted 2>errors; then fail "accepted: ${*:2}"; fi
    grep -qF -- "$1" errors || fail "no '$1' in: $(cat errors)"
}
refused 'no zip archive' "$WEIGHTS" x.safetensors
refused "no dictionary 'ema'; there are: optimizer" module.pth x.safetensors --key ema
refused 'no tensors' module.pth x.safetensors --key optimizer
refused 'missing.pth' missing.pth x.safetensors
# a pickle that would run a command
python3 - <<'PY'
import pickle, zipfile
class Evil:
    def __reduce__(self):
        import os
        return os.system, ("touch ran",)
with zipfile.ZipFile("evil.pth", "w") as z:
    z.writestr("a/data.pkl", pickle.dumps({"model": {"w": Evil()}}, 2))
PY
refused 'no tensors' evil.pth x.safetensors
checks=$((checks + 2))
[ ! -e ran ] || fail 'the pickle was run'
[ ! -e x.safetensors ] && [ ! -e x.safetensors.part ] || fail 'a refused file leaves something behind'
# ---- archives with a damaged pickle: refused in a line, or converted; never a traceback ----
cat >damage.py <<'PY'
import importlib.util, io, os, random, sys, zipfile
spec = importlib.util.spec_from_file_location("convert", sys.argv[1])
convert = importlib.util.module_from_spec(spec)
spec.loader.exec_module(convert)
draw = random.Random(int(os.environ.get("TTV_FUZZ_SEED", "1")))
rounds = 300 * int(os.environ.get("TTV_FUZZ_TIMES", "1"))
with zipfile.ZipFile(sys.argv[2]) as z:
    members = {n: z.read(n) for n in z.namelist()}
name = next(n for n in members if n.endswith("data.pkl"))
refused = 0
for round in range(rounds):
    text = bytearray(members[name])
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(text))
        kind = draw.randrange(4)
        if kind == 0:
            text[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del text[at:at + draw.randrange(1, 20)]
        elif kind == 2:
            text[at:at] = bytes(draw.randrange(256) for _ in range(draw.randrange(1, 9)))
        else:
            text[at] = draw.choice(b"\x00\xff\x7f.(}])")
    archive = io.BytesIO()
    with zipfile.ZipFile("damaged.pth", "w") as z:
        for n, data in members.items():
            z.writestr(n, bytes(text) if n == name else data)
    sys.argv[1:] = ["damaged.pth", "damaged.safetensors"]
    stdout, sys.stdout = sys.stdout, io.StringIO()
    try:
        convert.main()
    except SystemExit as error:
        refused += 1
        if not str(error.code).startswith("damaged.pth: "):
            sys.exit(f"round {round}: said '{error.code}'")
    except BaseException as error:
        sys.exit(f"round {round}: {type(error).__name__}: {error}")
    finally:
        sys.stdout = stdout
if refused < rounds // 5:
    sys.exit(f"{refused} of {rounds} were refused")
PY
checks=$((checks + 1))
python3 damage.py "$CONVERT" module.pth >out 2>err || fail "a damaged archive: $(tail -n 1 err)"

finish
