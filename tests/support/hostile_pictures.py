"""Files that are not pictures, hardly pictures, or pictures of a kind that breaks decoders."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"
NOISE = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
PLAIN = Image.fromarray(NOISE)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, format, **options)
    return content.getvalue()


def chunk(kind: bytes, data: bytes = b"", *, checksum: int | None = None) -> bytes:
    found = zlib.crc32(kind + data) if checksum is None else checksum
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", found)


def png(width: int, height: int, rows: bytes | None = None, *, before: bytes = b"") -> bytes:
    """Return a grey PNG file; `rows` are what its pixels unpack to."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    content = zlib.compress(bytes((width + 1) * height) if rows is None else rows)
    parts = (chunk(b"IHDR", head), before, chunk(b"IDAT", content), chunk(b"IEND"))
    return SIGNATURE + b"".join(parts)


def bomb(kind: bytes, prefix: bytes) -> bytes:
    """Return a PNG file with a note that unpacks to 64 MiB."""
    return png(4, 4, before=chunk(kind, prefix + zlib.compress(bytes(64 << 20))))


def apng(frames: int) -> bytes:
    """Return an animation of very many tiny frames."""

    def control(number: int) -> bytes:
        return chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, 1, 1, 0, 0, 1, 1, 0, 0))

    pixels = zlib.compress(bytes(2))
    parts = [
        chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
        chunk(b"acTL", struct.pack(">II", frames, 0)),
        control(0),
        chunk(b"IDAT", pixels),
    ]
    for frame in range(1, frames):
        parts += [control(2 * frame - 1), chunk(b"fdAT", struct.pack(">I", 2 * frame) + pixels)]
    return SIGNATURE + b"".join([*parts, chunk(b"IEND")])  # fmt: skip


def gif(frames: int, side: int = 1) -> bytes:
    """Return an animation of very many frames of one pixel, on a canvas of `side` pixels."""
    frame = b"\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0"
    head = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return head + frame * frames + b";"


def scans(times: int) -> bytes:
    """Return a progressive JPEG file that refines its last scan again and again."""
    data = encoded(PLAIN, "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * times + data[-2:]


def marked(original: bytes, marker: bytes, changed: bytes) -> bytes:
    data = encoded(PLAIN, "JPEG")
    assert data.count(original) == 1
    return data.replace(original, marker + changed)


def webp_canvas() -> bytes:
    """Return a WebP file whose canvas has 16,777,216 pixels on each side."""
    inner = encoded(PLAIN, "WEBP")[12:]
    extended = b"VP8X" + struct.pack("<I", 10) + bytes(4) + b"\xff" * 6
    body = b"WEBP" + extended + inner
    return b"RIFF" + struct.pack("<I", len(body)) + body


def polyglot() -> bytes:
    """Return a PNG file that is a ZIP archive too."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x", "y" * 1000)
    return encoded(PLAIN, "PNG") + archive.getvalue()


def _other_formats() -> Iterator[tuple[str, bytes]]:
    for name in ("TIFF", "ICO", "JPEG2000", "PPM", "PCX", "TGA", "SGI", "EPS", "PDF"):
        yield name, encoded(PLAIN, name)
    yield "PSD", b"8BPS\0\x01" + bytes(6) + struct.pack(">HIIHH", 3, 8, 8, 8, 3) + bytes(400)
    yield "FITS", b"SIMPLE  =                    T".ljust(2880)
    yield "SVG", b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"
    yield "HEIC", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)
    yield "AVIF", b"\0\0\0\x18ftypavif\0\0\0\0mif1avif" + bytes(64)


# Made when a test asks: some take long. Refused, with these words among others.
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "one byte": (lambda: b"\x89", "format is not supported"),
    "PNG: 65535 x 65535": (lambda: png(65_535, 65_535, b""), "too large"),
    "PNG: 1 x 100,000,000": (lambda: png(1, 100_000_000, b""), "too large"),
    "PNG: 0 x 1": (lambda: png(0, 1), "damaged|no pixels"),
    "PNG: no pixels in it": (lambda: png(7_000, 7_000, b""), "damaged"),
    "PNG: a wrong checksum": (lambda: SIGNATURE + chunk(
        b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0), checksum=1), "damaged"),
    "PNG: text that unpacks to 64 MiB": (lambda: bomb(b"iTXt", b"x\0\1\0\0\0"), "damaged"),
    "PNG: text that unpacks to 64 MiB, older form": (lambda: bomb(b"zTXt", b"x\0\0"), "damaged"),
    "PNG: a profile that unpacks to 64 MiB": (lambda: bomb(b"iCCP", b"x\0\0"), "damaged"),
    "JPEG: 12 bits": (
        lambda: marked(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c", b""), "damaged"),
    "JPEG: the first half": (lambda: encoded(PLAIN, "JPEG")[:600], "damaged"),
    "GIF: a canvas of 65,535 x 65,535": (lambda: gif(1, 65_535), "too large"),
    "WebP: a canvas of 16,777,216 x 16,777,216": (webp_canvas, "too large"),
    **{name: (partial(bytes, data), "format is not supported") for name, data in _other_formats()},
}  # fmt: skip

# Taken: they are pictures, if strange ones.
TAKEN: dict[str, Callable[[], bytes]] = {
    "PNG: a bomb of zeros within the limits": lambda: png(4_000, 4_000),
    "PNG: 10,000 frames": lambda: apng(10_000),
    "PNG and ZIP": polyglot,
    "PNG: 16 bits": lambda: encoded(Image.fromarray(np.full((3, 5), 0x8000, np.uint16)), "PNG"),
    "PNG: 1 x 1": lambda: png(1, 1),
    "PNG: 1 x 4096": lambda: png(1, 4096),
    "PNG: 4096 x 1": lambda: png(4096, 1),
    "JPEG: CMYK": lambda: encoded(PLAIN.convert("CMYK"), "JPEG"),
    "JPEG: EXIF that is garbage": lambda: encoded(
        PLAIN, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"
    ),
    "JPEG: a profile that is garbage": lambda: encoded(PLAIN, "JPEG", icc_profile=b"\xff" * 5000),
    "GIF: 10,000 frames": lambda: gif(10_000),
    "WebP: lossless": lambda: encoded(PLAIN, "WEBP", lossless=True),
    "WebP: moving": lambda: encoded(PLAIN, "WEBP", save_all=True, append_images=[PLAIN] * 20),
}
# Either is right, if it is quick.
EITHER: dict[str, Callable[[], bytes]] = {
    "JPEG: 10,000 scans": lambda: scans(10_000),
    "JPEG: arithmetic coding": lambda: marked(b"\xff\xc0", b"\xff\xc9", b""),
}
