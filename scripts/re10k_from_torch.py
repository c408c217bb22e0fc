#!/usr/bin/env python3
"""Unpacks pixelSplat's RealEstate10K chunks (NNNNNN.torch) into the layout that ttv reads.

    python3 scripts/re10k_from_torch.py CHUNKS OUT [--split train] [--limit N] [--tar]

CHUNKS is a folder with *.torch files (or one such file); each is a list of scenes
{"key", "url", "timestamps" int64 [n], "cameras" float32 [n, 18], "images": n tensors of JPEG bytes}.
Written are OUT/<split>/<key>.txt (URL, then timestamp and the 18 numbers a line) and
OUT/<split>/<key>/<timestamp>.jpg, bytes as they are; with --tar one OUT/<split>-<chunk>.tar a chunk,
which ttv reads in place.

Needs Python 3.8 and PyTorch. A .torch file is a pickle: it is read with weights_only=True, which
refuses to run code; older PyTorch versions than 1.13 cannot do that and are refused here.
Scenes that do not add up are named and left out; the exit code is 1 when there were any.
"""
import argparse
import io
import os
import sys
import tarfile


def camera_text(scene):
    """The camera file; numbers with the nine decimals of RealEstate10K's own."""
    lines = [str(scene.get("url", "")).replace("\n", " ") or "unknown"]
    for time, row in zip(scene["timestamps"].tolist(), scene["cameras"].tolist()):
        lines.append(" ".join([str(int(time))] + [f"{number:.9f}" for number in row]))
    return ("\n".join(lines) + "\n").encode()


def check_scene(scene):
    """Raises ValueError with the reason when a scene does not add up."""
    if not isinstance(scene, dict):
        raise ValueError(f"a {type(scene).__name__}, no dictionary")
    for key in ("key", "timestamps", "cameras", "images"):
        if key not in scene:
            raise ValueError(f"no '{key}'")
    name = scene["key"]
    if not name or not all(c.isalnum() or c in "-_" for c in name):
        raise ValueError("the key is no file name")
    count = len(scene["timestamps"])
    if tuple(scene["cameras"].shape) != (count, 18):
        raise ValueError(f"{count} timestamps, cameras of shape {tuple(scene['cameras'].shape)}")
    if len(scene["images"]) != count:
        raise ValueError(f"{count} timestamps, {len(scene['images'])} images")
    times = scene["timestamps"].tolist()
    if any(a >= b for a, b in zip(times, times[1:])):
        raise ValueError("timestamps do not ascend")


def scene_files(scene):
    """(path below the split, bytes) of a scene: the pictures, then the cameras."""
    for time, image in zip(scene["timestamps"].tolist(), scene["images"]):
        data = image.numpy().tobytes()
        if data[:2] != b"\xff\xd8" and data[:4] != b"\x89PNG":
            raise ValueError(f"the image at {int(time)} is neither JPEG nor PNG")
        yield f"{scene['key']}/{int(time)}.{'jpg' if data[0] == 0xFF else 'png'}", data
    yield f"{scene['key']}.txt", camera_text(scene)


def write_folder(root, files):
    for name, data in files:
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


def write_tar(archive, split, files):
    for name, data in files:
        info = tarfile.TarInfo(f"{split}/{name}")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("chunks", help="folder with *.torch files, or one of them")
    parser.add_argument("out", help="folder to write to")
    parser.add_argument("--split", default="train", help="train or test (default: train)")
    parser.add_argument("--limit", type=int, default=0, help="stop after so many scenes")
    parser.add_argument("--tar", action="store_true", help="one tar file a chunk")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is needed to read .torch files: pip install torch")
    paths = [args.chunks]
    if os.path.isdir(args.chunks):
        paths = [os.path.join(args.chunks, n) for n in sorted(os.listdir(args.chunks))]
        paths = [p for p in paths if p.endswith(".torch")]
    if not paths:
        sys.exit(f"{args.chunks}: no *.torch files")
    os.makedirs(args.out, exist_ok=True)
    done = bad = 0
    for path in paths:
        try:
            scenes = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(scenes, (list, tuple)):
                raise TypeError(f"a {type(scenes).__name__}, no list of scenes")
        except Exception as error:  # a damaged file may end in any of them
            reason = (str(error).splitlines() or [""])[0]
            print(f"{path}: cannot be read: {type(error).__name__}: {reason}; left out", file=sys.stderr)
            bad += 1
            continue
        chunk = os.path.splitext(os.path.basename(path))[0]
        archive = None
        if args.tar:
            archive = tarfile.open(os.path.join(args.out, f"{args.split}-{chunk}.tar"), "w",
                                   format=tarfile.USTAR_FORMAT)
        for scene in scenes:
            if args.limit and done >= args.limit:
                break
            try:
                check_scene(scene)
                files = list(scene_files(scene))
            except (ValueError, TypeError, AttributeError) as reason:
                name = scene.get("key", "?") if isinstance(scene, dict) else "?"
                print(f"{path}: scene {name}: {reason}; left out", file=sys.stderr)
                bad += 1
                continue
            if archive:
                write_tar(archive, args.split, files)
            else:
                write_folder(os.path.join(args.out, args.split), files)
            done += 1
        if archive:
            archive.close()
        print(f"{path}: {done} scenes so far")
        if args.limit and done >= args.limit:
            break
    print(f"{done} scenes written, {bad} left out")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
