#!/usr/bin/env python3
"""Turns a published ViTTT checkpoint (a .pth file) into a safetensors file that ttv reads.

    python3 scripts/vittt_from_pth.py vittt_t.pth vittt_t.safetensors [--key model]

The weights are the dictionary under --key; without it the first of model, state_dict, model_state_dict
that is there, or the file itself. Names stay as they are (a "module." in front goes), numbers become
F32, counters of batches are left out. Then:

    ttv eval -c configs/vittt_tiny.ini --data-dir imagenet --checkpoint vittt_t.safetensors

Needs Python 3.8 and nothing else: a .pth file of PyTorch 1.6 or later is a zip archive with one pickle
and the numbers beside it. Nothing that the pickle names is run: tensors are rebuilt by this script, and
whatever else lies in it (optimiser, configuration) becomes an empty stand-in. Older files must be saved
again with torch.save().
"""
import argparse
import array
import json
import os
import pickle
import struct
import sys
import zipfile
import zlib
from collections import OrderedDict

# Storage class of PyTorch: bytes of a number, conversion to F32 bytes.
STORAGES = {
    "FloatStorage": (4, bytes),
    "DoubleStorage": (8, lambda b: array.array("f", array.array("d", b)).tobytes()),
    "HalfStorage": (2, lambda b: array.array("f", struct.unpack(f"<{len(b) // 2}e", b)).tobytes()),
    "BFloat16Storage": (2, lambda b: b"".join(b"\0\0" + b[i : i + 2] for i in range(0, len(b), 2))),
}
SKIPPED = "num_batches_tracked"
MOST_PICKLE = 256 << 20


class StandIn(dict):
    """Any object that is not needed."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def __setstate__(self, state):
        pass

    def append(self, item):
        pass

    def extend(self, items):
        pass

    def add(self, item):
        pass


class Storage:
    def __init__(self, kind, key):
        self.kind = kind
        self.key = key


class Tensor:
    def __init__(self, storage, offset, size, stride):
        self.storage = storage
        self.offset = offset
        self.size = tuple(size)
        self.stride = tuple(stride)


def rebuild_tensor(storage, offset, size, stride, *_):
    numbers = [offset, *size, *stride]
    if not isinstance(storage, Storage) or len(size) != len(stride) or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError("a tensor whose size or place is none")
    return Tensor(storage, offset, size, stride)


def rebuild_parameter(data, *_):
    return data


class Reader(pickle._Unpickler):
    """The one written in Python: the other takes memory for whatever memo index a file names."""

    def find_class(self, module, name):
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            return rebuild_tensor
        if module == "torch._utils" and name == "_rebuild_parameter":
            return rebuild_parameter
        if module == "collections" and name == "OrderedDict":
            return OrderedDict
        if module.split(".")[0] == "torch" and name.endswith("Storage"):
            return type(name, (StandIn,), {})
        return StandIn

    def persistent_load(self, saved):
        if not isinstance(saved, tuple) or len(saved) < 3 or saved[0] != "storage":
            raise ValueError("an object outside of the pickle that is no storage")
        return Storage(getattr(saved[1], "__name__", "?"), str(saved[2]))


class Checkpoint:
    def __init__(self, path):
        if not zipfile.is_zipfile(path):
            raise ValueError("no zip archive: not a .pth file of PyTorch 1.6 or later (save it again with torch.save)")
        self.zip = zipfile.ZipFile(path)
        names = [n for n in self.zip.namelist() if n.endswith("/data.pkl")]
        if len(names) != 1:
            raise ValueError("the archive has no data.pkl")
        self.root = names[0][: -len("data.pkl")]
        order = self.root + "byteorder"
        if order in self.zip.namelist() and self.zip.read(order) != b"little":
            raise ValueError("saved on a big-endian machine")
        if self.zip.getinfo(names[0]).file_size > MOST_PICKLE:
            raise ValueError("its data.pkl is larger than 256 MB")
        with self.zip.open(names[0]) as file:
            try:
                self.content = Reader(file).load()
            except ValueError:
                raise
            except Exception as error:  # a damaged pickle may end in nearly any of them
                raise ValueError(f"the pickle is damaged: {type(error).__name__}: {error}") from None

    def numbers(self, tensor):
        """The tensor as F32 bytes in row-major order."""
        if tensor.storage.kind not in STORAGES:
            raise ValueError(f"numbers of kind {tensor.storage.kind}")
        width, convert = STORAGES[tensor.storage.kind]
        try:
            data = self.zip.read(f"{self.root}data/{tensor.storage.key}")
        except KeyError:
            raise ValueError(f"its storage {tensor.storage.key!r} is missing in the archive") from None
        count = 1
        for n in tensor.size:
            count *= n
        expected, dense = 1, True
        for n, step in zip(reversed(tensor.size), reversed(tensor.stride)):
            dense = dense and (n == 1 or step == expected)
            expected *= n
        if dense:
            taken = data[tensor.offset * width : (tensor.offset + count) * width]
        elif count > max(len(data) // width, 1 << 22):
            raise ValueError("the storage is too short")
        else:
            at = [tensor.offset]
            for n, step in zip(tensor.size, tensor.stride):
                at = [base + i * step for base in at for i in range(n)]
            taken = b"".join(data[i * width : (i + 1) * width] for i in at)
        if len(taken) != count * width:
            raise ValueError("the storage is too short")
        return convert(taken)


def choose(content, key):
    """The dictionary of weights."""
    if not isinstance(content, dict):
        raise ValueError("the file holds no dictionary")
    if key is None:
        found = [k for k in ("model", "state_dict", "model_state_dict") if isinstance(content.get(k), dict)]
        weights = content[found[0]] if found else content
    elif isinstance(content.get(key), dict):
        weights = content[key]
    else:
        raise ValueError(f"no dictionary '{key}'; there are: {', '.join(str(k) for k in content)}")
    tensors = OrderedDict()
    for name, value in weights.items():
        name = str(name)
        name = name[len("module.") :] if name.startswith("module.") else name
        if isinstance(value, Tensor) and not name.endswith(SKIPPED):
            tensors[name] = value
    if not tensors:
        raise ValueError(f"no tensors; there are: {', '.join(str(k) for k in content)}")
    return tensors


def write_safetensors(path, checkpoint, tensors, metadata):
    header, offset = OrderedDict(__metadata__=metadata), 0
    for name, tensor in tensors.items():
        size = 4
        for n in tensor.size:
            size *= n
        header[name] = {"dtype": "F32", "shape": list(tensor.size), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    part = path + ".part"
    try:
        with open(part, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name, tensor in tensors.items():
                try:
                    file.write(checkpoint.numbers(tensor))
                except (ValueError, NotImplementedError) as error:
                    raise ValueError(f"{name}: {error}") from None
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", help="the .pth file")
    parser.add_argument("out", help="the safetensors file to write")
    parser.add_argument("--key", help="the dictionary that holds the weights (model, state_dict_ema, ...)")
    args = parser.parse_args()
    try:
        checkpoint = Checkpoint(args.checkpoint)
        tensors = choose(checkpoint.content, args.key)
        write_safetensors(args.out, checkpoint, tensors, {"source": os.path.basename(args.checkpoint)})
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        sys.exit(f"{args.checkpoint}: {error}")
    print(f"{args.out}: {len(tensors)} tensors, {os.path.getsize(args.out) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
