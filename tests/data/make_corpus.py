#!/usr/bin/env python3
"""Makes tests/data/images: a small corpus of good, odd and broken pictures, and what an independent decoder
(Pillow) says about them. Needs Pillow 9.4 and numpy; the outputs are committed, the tests need no Python.

    python3 make_corpus.py

images.tsv      file, verdict (ok, damaged: only lenient, fail), width, height, orientation, CRC-32C of the RGB
                bytes, of the same after turning by EXIF, part of the message expected
preprocess.tsv  source size, S, crop_pct, mode, filter, CRC-32C of Pillow's result on pattern()
color.tsv       operation, factor, CRC-32C of ImageEnhance's result on pattern()
policy.tsv      source, side, operation, value, filter, fill, CRC-32C of what Pillow makes of it
"""
import io
import os
import struct
import zlib

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "images")
rows = []


def crc32c(data):
    table = []
    for i in range(256):
        c = i
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
        table.append(c)
    c = 0xFFFFFFFF
    for b in data:
        c = c >> 8 ^ table[(c ^ b) & 255]
    return c ^ 0xFFFFFFFF


def pattern(w, h):
    """The picture that the C tests compute too."""
    x = np.arange(w)[None, :, None]
    y = np.arange(h)[:, None, None]
    c = np.arange(3)[None, None, :]
    return ((x * 7 + y * 13 + c * 50 + (x * y) % 31 * 5) & 255).astype(np.uint8)


def smooth(w, h):
    x = np.arange(w)[None, :] / w
    y = np.arange(h)[:, None] / h
    rgb = np.stack([255 * x * (1 - y), 255 * y * np.ones_like(x), 128 + 100 * np.sin(9 * x + 5 * y)], 2)
    return np.clip(rgb, 0, 255).astype(np.uint8)


def crc_text(image):
    return "%08x" % crc32c(np.asarray(image, np.uint8).tobytes())


def add(name, data, verdict="ok", rgb=None, orientation=1, message="-"):
    with open(os.path.join(OUT, name), "wb") as f:
        f.write(data)
    if verdict == "fail":
        rows.append((name, verdict, 0, 0, 1, "-", "-", message))
        return
    if rgb is None:
        rgb = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    turned = rgb
    if orientation != 1:
        turned = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    rows.append((name, verdict, rgb.shape[1], rgb.shape[0], orientation, crc_text(rgb), crc_text(turned), message))


# ---- JPEG ----

def jpeg(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90, **options)
    return buffer.getvalue()


def exif(orientation, order=b"MM"):
    e = ">" if order == b"MM" else "<"
    entry = struct.pack(e + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0" + order + struct.pack(e + "HIH", 42, 8, 1) + entry + struct.pack(e + "I", 0)


def segment_at(data, marker):
    at = 2
    while data[at + 1] != marker:
        at += 2 + struct.unpack(">H", data[at + 2:at + 4])[0]
    return at, at + 2 + struct.unpack(">H", data[at + 2:at + 4])[0]


def mul255(a, b):
    t = a * b + 128
    return (t + (t >> 8)) >> 8


def make_jpegs():
    rgb = Image.fromarray(smooth(45, 35))
    add("grey.jpg", jpeg(rgb.convert("L")))
    for name, sampling in (("444", 0), ("422", 1), ("420", 2)):
        add("rgb_%s.jpg" % name, jpeg(rgb, subsampling=sampling))
        add("progressive_%s.jpg" % name, jpeg(rgb, subsampling=sampling, progressive=True))
    add("one_pixel.jpg", jpeg(rgb.crop((7, 7, 8, 8))))
    adobe = jpeg(rgb.convert("CMYK"))
    add("cmyk_adobe.jpg", adobe)
    start, end = segment_at(adobe, 0xEE)
    add("ycck_adobe.jpg", adobe[:end - 1] + b"\2" + adobe[end:])
    plain = adobe[:start] + adobe[end:]
    ink = 255 - np.asarray(Image.open(io.BytesIO(plain))).astype(int)  # Pillow inverts in any case
    light = 255 - ink[:, :, 3:]
    add("cmyk_plain.jpg", plain, rgb=(light - mul255(ink[:, :, :3], light)).astype(np.uint8))
    ycc = jpeg(rgb, subsampling=0)
    start, end = segment_at(ycc, 0xE0)
    add("rgb_components.jpg", ycc[:start] + b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0" + ycc[end:])
    add("png_inside.jpg", png(np.asarray(rgb), 8, 2))
    for o in range(1, 9):
        add("exif_%d.jpg" % o, jpeg(rgb.crop((0, 0, 24, 16)), exif=exif(o, b"MM" if o % 2 else b"II")), orientation=o)
    block = exif(6)
    add("exif_broken_offset.jpg", jpeg(rgb, exif=block[:10] + b"\xff\xff\xff\xf0" + block[14:]))
    add("exif_value_9.jpg", jpeg(rgb, exif=exif(9)))
    add("exif_truncated.jpg", jpeg(rgb, exif=block[:15]))
    whole = jpeg(rgb, subsampling=2)
    start, end = segment_at(whole, 0xDA)
    add("extraneous_bytes.jpg", whole[:-2] + b"\1\2\3" + whole[-2:])
    for percent in (50, 90):
        cut = end + (len(whole) - end) * percent // 100
        add("truncated_%d.jpg" % percent, whole[:cut], "damaged", rgb=lenient(whole[:cut]), message="Premature end")
    add("no_end_marker.jpg", whole[:-2], "damaged", rgb=lenient(whole[:-2]), message="Premature end")
    add("header_only.jpg", whole[:20], "fail", message="bad JPEG")
    add("two_bytes.jpg", whole[:2], "fail", message="bad JPEG")
    start, end = segment_at(whole, 0xC0)
    add("bits_12.jpg", whole[:start + 4] + b"\x0c" + whole[start + 5:], "fail", message="precision 12")
    add("no_pixels.jpg", whole[:start + 5] + b"\0\0" + whole[start + 7:], "fail", message="bad JPEG")
    big = whole[:start + 5] + struct.pack(">HH", 14552, 65497) + whole[start + 9:]
    add("bomb_pixels.jpg", big, "fail", message="more than the limit")
    claim = whole[:start + 5] + struct.pack(">HH", 3000, 3000) + whole[start + 9:]
    add("implausible.jpg", claim, "fail", message="too many for a file of")


def lenient(data):
    """What libjpeg makes of truncated data, through Pillow."""
    from PIL import ImageFile
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


# ---- PNG, written by hand because every depth and interlacing is wanted ----

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pack(samples, depth):
    """[h, w, channels] samples -> filtered rows (filter 0)."""
    h = samples.shape[0]
    flat = samples.reshape(h, -1)
    lines = []
    for y in range(h):
        if depth == 16:
            lines.append(b"\0" + flat[y].astype(">u2").tobytes())
            continue
        bits = ((flat[y][:, None] >> np.arange(depth - 1, -1, -1)) & 1).astype(np.uint8)
        lines.append(b"\0" + np.packbits(bits.reshape(-1)).tobytes())
    return b"".join(lines)


ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def png(samples, depth, color, extra=b"", interlaced=False, keep=None):
    if samples.ndim == 2:
        samples = samples[:, :, None]
    h, w = samples.shape[:2]
    if interlaced:
        parts = [samples[y0::dy, x0::dx] for x0, y0, dx, dy in ADAM7]
        raw = b"".join(pack(p, depth) for p in parts if p.size > 0)
    else:
        raw = pack(samples, depth)
    data = zlib.compress(raw, 9)
    if keep is not None:
        data = data[:len(data) * keep // 100]
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, color, 0, 0, int(interlaced)))
    return b"\x89PNG\r\n\x1a\n" + head + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def to8(samples16):
    return ((samples16.astype(np.int64) * 255 + 32895) >> 16).astype(np.uint8)  # round(v / 257)


def grey3(a):
    return np.repeat(a.reshape(a.shape[0], a.shape[1], 1), 3, 2)


def make_pngs():
    rng = np.random.default_rng(7)
    base = pattern(19, 13)
    alpha = rng.integers(0, 256, (13, 19, 1)).astype(np.uint8)
    for depth in (1, 2, 4, 8):
        top = (1 << depth) - 1
        g = base[:, :, 0] >> (8 - depth)
        add("grey_%d.png" % depth, png(g, depth, 0), rgb=grey3((g.astype(int) * 255 // top).astype(np.uint8)))
        palette = rng.integers(0, 256, (top + 1, 3)).astype(np.uint8)
        extra = chunk(b"PLTE", palette.tobytes())
        add("palette_%d.png" % depth, png(g, depth, 3, extra))
        trns = chunk(b"tRNS", bytes(range(0, min(top + 1, 200))))
        add("palette_%d_trns.png" % depth, png(g, depth, 3, extra + trns, interlaced=depth % 2 == 0))
    wide = rng.integers(0, 65536, (13, 19, 4)).astype(np.uint16)
    add("grey_16.png", png(wide[:, :, 0], 16, 0), rgb=grey3(to8(wide[:, :, 0])))
    add("rgb_16.png", png(wide[:, :, :3], 16, 2), rgb=to8(wide[:, :, :3]))
    add("rgba_16.png", png(wide, 16, 6, interlaced=True), rgb=to8(wide[:, :, :3]))
    add("rgb.png", png(base, 8, 2))
    add("rgb_interlaced.png", png(base, 8, 2, interlaced=True))
    add("rgba.png", png(np.concatenate([base, alpha], 2), 8, 6))
    add("grey_alpha.png", png(np.concatenate([base[:, :, :1], alpha], 2), 8, 4))
    add("rgb_trns.png", png(base, 8, 2, chunk(b"tRNS", base[0, 0].astype(">u2").tobytes())))
    add("grey_8_trns.png", png(base[:, :, 0], 8, 0, chunk(b"tRNS", b"\0\7")))
    add("gamma.png", png(base, 8, 2, chunk(b"gAMA", struct.pack(">I", 100000))))
    add("one_pixel.png", png(base[:1, :1], 8, 2))
    add("interlaced_1x5.png", png(base[:5, :1], 8, 2, interlaced=True))
    block = exif(6)[6:]
    add("exif_6.png", png(base, 8, 2, chunk(b"eXIf", block)), orientation=6)
    good = png(base, 8, 2)
    at = good.index(b"IDAT") + 8
    add("bad_idat_crc.png", good[:-16] + bytes([good[-16] ^ 1]) + good[-15:], "damaged", rgb=base, message="CRC error")
    add("bad_header_crc.png", good[:29] + bytes([good[29] ^ 1]) + good[30:], "damaged", rgb=base, message="CRC error")
    add("cut_in_header.png", good[:20], "fail", message="no header")
    add("cut_in_data.png", good[:at], "fail", message="bad PNG")
    add("no_palette.png", png(base[:, :, 0], 8, 3), "fail", message="bad PNG")
    add("no_pixels.png", png(base, 8, 2)[:16] + b"\0\0\0\0" + good[20:], "fail", message="pixels")
    add("bomb_size.png", png_header(65535, 65535), "fail", message="more than the limit")
    add("bomb_huge.png", png_header(0x7FFFFFFF, 0x7FFFFFFF), "fail", message="more than the limit")
    add("implausible.png", png_header(10000, 10000), "fail", message="too many for a file of")
    add("text_mode.png", good.replace(b"\r\n", b"\n", 1), "fail", message="text-mode")


def png_header(w, h):
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b""))


def make_others():
    add("empty.jpg", b"", "fail", message="an empty file")
    add("zeros.jpg", bytes(300), "fail", message="zero bytes")
    add("text.jpg", b"This is no picture at all.\n", "fail", message="text")
    add("page.jpg", b"\n<!DOCTYPE HTML><html><body>404</body></html>", "fail", message="HTML")
    add("lfs.png", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "fail", message="Git LFS")
    add("gif.png", b"GIF89a\1\0\1\0\0\0\0;", "fail", message="GIF")
    add("webp.jpg", b"RIFF\x20\0\0\0WEBPVP8 " + bytes(20), "fail", message="WebP")
    add("bmp.jpg", b"BM" + struct.pack("<IIIIiiHH", 58, 0, 54, 40, 1, 1, 1, 24) + bytes(28), "fail", message="BMP")
    add("tiff.jpg", b"II*\0\x08\0\0\0" + bytes(20), "fail", message="TIFF")
    add("avif.jpg", b"\0\0\0\x20ftypavif" + bytes(20), "fail", message="AVIF")
    add("heic.jpg", b"\0\0\0\x18ftypheic" + bytes(20), "fail", message="HEIC")
    add("gzip.jpg", b"\x1f\x8b\x08\0" + bytes(20), "fail", message="gzip")
    add("zip.png", b"PK\3\4" + bytes(30), "fail", message="zip")
    add("noise.jpg", bytes([7, 200, 3, 99, 0, 255, 18, 1] * 8), "fail", message="unknown binary")


def write_tsv(name, lines):
    with open(os.path.join(OUT, name), "w") as f:
        for line in lines:
            f.write("\t".join(str(v) for v in line) + "\n")


FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}


def eval_transform(image, s, pct, mode, kind):
    """vittt.md section 8 for center; timm's squash and border."""
    w, h = image.size
    side = max(int(s / pct), s)
    if mode == "squash":
        w, h = side, side
    elif mode == "border":
        longest = max(w, h)
        w, h = (max(1, round(v * side / longest)) for v in (w, h))
    else:
        w, h = (side, int(side * h / w)) if w <= h else (int(side * w / h), side)
    image = image.resize((w, h), FILTERS[kind])
    if mode == "border":
        canvas = Image.new("RGB", (s, s), tuple(round(255 * m) for m in (0.485, 0.456, 0.406)))
        left, top = max(0, round((w - s) / 2)), max(0, round((h - s) / 2))
        image = image.crop((left, top, left + min(w, s), top + min(h, s)))
        canvas.paste(image, ((s - image.width) // 2, (s - image.height) // 2))
        return canvas
    left, top = round((w - s) / 2), round((h - s) / 2)
    return image.crop((left, top, left + s, top + s))


def make_preprocess():
    cases = []
    sizes = [(500, 375), (375, 500), (64, 64), (32, 32), (36, 36), (8, 8), (1, 9), (9, 1), (1, 1), (257, 256), (40, 700)]
    for w, h in sizes:
        for s, pct in ((32, 0.875), (224, 0.875), (28, 1.0)):
            for mode in ("center", "squash", "border"):
                for kind in FILTERS if (w, h) == (500, 375) and s == 32 else ("bicubic",):
                    image = eval_transform(Image.fromarray(pattern(w, h)), s, pct, mode, kind)
                    cases.append((w, h, s, pct, mode, kind, crc_text(image)))
    write_tsv("preprocess.tsv", cases)


def make_color():
    image = Image.fromarray(pattern(37, 29))
    ops = (("brightness", ImageEnhance.Brightness), ("contrast", ImageEnhance.Contrast), ("saturation", ImageEnhance.Color))
    write_tsv("color.tsv", [(name, f, crc_text(op(image).enhance(f))) for name, op in ops for f in (0.0, 0.4, 0.83, 1.0, 1.37, 1.9)])


def policy_op(image, op, value, resample, fill):
    """One operation of datasets/policy.h in Pillow's words."""
    enhancers = {"Color": ImageEnhance.Color, "Contrast": ImageEnhance.Contrast,
                 "Brightness": ImageEnhance.Brightness, "Sharpness": ImageEnhance.Sharpness}
    matrices = {"ShearX": (1, value, 0, 0, 1, 0), "ShearY": (1, 0, 0, value, 1, 0),
                "TranslateX": (1, 0, value, 0, 1, 0), "TranslateY": (1, 0, 0, 0, 1, value)}
    if op in enhancers:
        return enhancers[op](image).enhance(value)
    if op in matrices:
        return image.transform(image.size, Image.AFFINE, matrices[op], resample=resample, fillcolor=fill)
    if op == "Rotate":
        return image.rotate(value, resample=resample, fillcolor=fill)
    if op == "SolarizeAdd":
        return image.point([min(255, i + int(value)) if i < 128 else i for i in range(256)] * 3)
    if op == "Posterize":
        return ImageOps.posterize(image, int(value))
    if op == "Solarize":
        return ImageOps.solarize(image, value)
    return {"AutoContrast": ImageOps.autocontrast, "Equalize": ImageOps.equalize, "Invert": ImageOps.invert}[op](image)


def make_policy():
    sources = {"full": lambda a: a, "narrow": lambda a: a // 3 + 40, "flat": lambda a: a * 0 + 77}
    filters = {"nearest": Image.NEAREST, "bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}
    fill = (125, 123, 114)
    plain = [("AutoContrast", (0,)), ("Equalize", (0,)), ("Invert", (0,)), ("Posterize", (0, 1, 3, 8)),
             ("Solarize", (0, 26, 127.5, 256)), ("SolarizeAdd", (0, 99, 110)),
             ("Color", (0.1, 0.19, 1.81)), ("Contrast", (0.1, 0.19, 1.81)),
             ("Brightness", (0.19, 1.81)), ("Sharpness", (0.1, 0.55, 1.0, 1.81))]
    moves = [("Rotate", (-27, 13.7, 90, -135, 0)), ("ShearX", (-0.27, 0.131, 0.99)), ("ShearY", (-0.27, 0.131, 0.99)),
             ("TranslateX", (-12.96, 7, 0.5, -32)), ("TranslateY", (-12.96, 7, 0.5, -32))]
    rows = []
    for name, source in sources.items():
        for side in (1, 2, 32, 41):
            image = Image.fromarray(source(pattern(side, side)).astype(np.uint8))
            for op, values in plain:
                rows += [(name, side, op, v, "-", "-", crc_text(policy_op(image, op, v, None, None))) for v in values]
    for side in (1, 32, 41):
        image = Image.fromarray(pattern(side, side))
        for op, values in moves:
            for f, resample in filters.items():
                rows += [("full", side, op, v, f, "%d,%d,%d" % fill,
                          crc_text(policy_op(image, op, v, resample, fill))) for v in values]
    write_tsv("policy.tsv", rows)


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    make_jpegs()
    make_pngs()
    make_others()
    write_tsv("images.tsv", rows)
    make_preprocess()
    make_color()
    make_policy()
