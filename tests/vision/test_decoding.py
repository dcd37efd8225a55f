"""Image files become arrays of pixels, or an error that gives the reason."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tampu.errors import RequestError
from tampu.vision import ImageLimits
from tampu.vision.decoding import decode

PLAIN = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3) * 4


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """Return the head of a PNG file that claims a size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("format", "options"), [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})]
)
def test_exact_formats_give_the_pixels_that_were_saved(
    format: str, options: dict[str, bool]
) -> None:
    picture = decode(encoded(Image.fromarray(PLAIN), format, **options))
    assert picture.dtype == np.uint8
    np.testing.assert_array_equal(picture, PLAIN)


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "GIF"])
def test_lossy_formats_give_nearly_the_same_pixels(format: str) -> None:
    plain = np.full((16, 24, 3), (200, 40, 90), np.uint8)
    picture = decode(encoded(Image.fromarray(plain), format))
    assert picture.shape == plain.shape
    assert np.abs(picture.astype(int) - plain).max() < 12


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_is_used(format: str) -> None:
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:], duration=100)
    picture = decode(data)
    assert picture.shape == (3, 4, 3)
    assert picture[0, 0, 0] > 200
    assert picture[0, 0, 2] < 50


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :8] = (255, 0, 0)  # red in the upper left corner
    turns = {
        1: lambda x: x, 2: lambda x: x[:, ::-1], 3: lambda x: x[::-1, ::-1], 4: lambda x: x[::-1],
        5: lambda x: x.swapaxes(0, 1), 6: lambda x: np.rot90(x, 1), 7: lambda x: np.rot90(
            x, 2).swapaxes(0, 1), 8: lambda x: np.rot90(x, -1),
    }  # fmt: skip
    stored = np.ascontiguousarray(turns[orientation](upright))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for format, options in (("JPEG", {"quality": 95}), ("PNG", {}), ("WEBP", {"lossless": True})):
        picture = decode(encoded(Image.fromarray(stored), format, exif=exif, **options))
        assert picture.shape == upright.shape
        assert np.abs(picture.astype(int) - upright).mean() < 3, format


def test_invalid_exif_data_is_ignored() -> None:
    data = encoded(Image.fromarray(PLAIN), "JPEG", exif=b"Exif\0\0garbage that is no TIFF")
    assert decode(data).shape == PLAIN.shape


def test_transparent_pixels_become_white() -> None:
    layer = np.zeros((2, 2, 4), np.uint8)
    layer[0, 0] = (10, 20, 30, 255)
    layer[0, 1] = (0, 0, 0, 128)
    picture = decode(encoded(Image.fromarray(layer), "PNG"))
    assert picture[0, 0].tolist() == [10, 20, 30]
    assert picture[1].tolist() == [[255] * 3] * 2
    assert picture[0, 1].tolist() == [127] * 3
    palette = Image.new("P", (2, 1), 1)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.putpixel((0, 0), 0)
    found = decode(encoded(palette, "PNG", transparency=0))
    assert found[0].tolist() == [[255, 255, 255], [0, 255, 0]]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.full((3, 5), 0x8000, np.uint16))
    else:
        image = Image.new("RGB", (5, 3), (128, 128, 128)).convert(
            mode, palette=Image.Palette.ADAPTIVE
        )
    picture = decode(encoded(image, "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"))
    assert picture.shape == (3, 5, 3)
    assert mode == "1" or np.abs(picture.astype(int) - 128).max() < 5


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"), (b"\x89", "format is not supported"),
        (b"<svg/>", "format is not supported"), (b"II*\0" + bytes(100), "format is not supported"),
        (b"RIFF\0\0\0\0WAVE", "format is not supported"), (b"BM", "damaged"),
        (b"GIF89a", "damaged"), (png(0, 1), "damaged|no pixels"), (png(65535, 65535), "too large"),
        (png(1, 100_000_000), "too large"), (png(16_385, 1), "too large"),
        (png(8_000, 8_000), "too large"), (png(100, 100, bytes(50)), "damaged"),
        (bytes(21 << 20), "bytes, the limit is"),
    ],
)  # fmt: skip
def test_files_that_are_not_images_are_refused_with_a_reason(data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        decode(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("part", range(1, 16))
def test_a_truncated_file_is_refused(format: str, part: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    data = encoded(Image.fromarray(noise), format)
    with pytest.raises(RequestError):
        decode(data[: len(data) * part // 16])


def test_the_callers_limits_apply() -> None:
    data = encoded(Image.fromarray(PLAIN), "PNG")
    for limits in (
        ImageLimits(pixels=19), ImageLimits(side=4), ImageLimits(size_bytes=len(data) - 1)
    ):  # fmt: skip
        with pytest.raises(RequestError, match="limit"):
            decode(data, limits)
    assert decode(data, ImageLimits(len(data), 20, 5)).shape == (5, 4, 3)


def test_a_decompression_bomb_is_refused_before_decoding() -> None:
    data = png(7_000, 7_000, b"")  # within the limits, but without its pixels
    with pytest.raises(RequestError, match="damaged"):
        decode(data)


SEEDS = [
    encoded(Image.fromarray(PLAIN), format) for format in ("PNG", "JPEG", "WEBP", "GIF", "BMP")
]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
)
def test_damaged_bytes_give_an_image_or_a_request_error(data: Any, changes: list[Any]) -> None:
    mutated = bytearray(data)
    for where, value in changes:
        mutated[int(where * len(mutated))] = value
    try:
        picture = decode(bytes(mutated), ImageLimits(pixels=1 << 20))
    except RequestError:
        return
    assert picture.ndim == 3
    assert picture.dtype == np.uint8
