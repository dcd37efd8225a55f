"""Image files decoded in a process of their own: the same pictures, and the same refusals."""

import io
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from PIL import Image
from support.fork_server import FORK_SERVER

from tampu.errors import RequestError
from tampu.sandbox.process import SandboxLimits
from tampu.vision import sandboxed
from tampu.vision.decoding import decode
from tampu.vision.sandboxed import SandboxedDecoder


@cache
def png(width: int, height: int) -> bytes:
    """Return a picture whose pixels differ."""
    pixels = np.arange(width * height * 3, dtype=np.uint32).reshape(height, width, 3)
    stream = io.BytesIO()
    Image.fromarray((pixels % 251).astype(np.uint8)).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


@pytest.fixture(scope="module")
def decoder() -> Iterator[SandboxedDecoder]:
    made = SandboxedDecoder(FORK_SERVER)
    yield made
    made.close()


@pytest.mark.parametrize("size", [(1, 1), (5, 4), (640, 3), (1000, 700)])
def test_sandboxed_decoder_gives_the_same_image(
    decoder: SandboxedDecoder, size: tuple[int, int]
) -> None:
    np.testing.assert_array_equal(decoder.decode(png(*size)), decode(png(*size)))


@pytest.mark.parametrize("data", [b"", b"%PDF-1.7", png(5, 4)[:40], b"\xff\xd8\xff" + bytes(100)])
def test_sandboxed_errors_equal_direct_ones(decoder: SandboxedDecoder, data: bytes) -> None:
    with pytest.raises(RequestError) as plain:
        decode(data)
    with pytest.raises(RequestError) as caught:
        decoder.decode(data)
    assert str(caught.value) == str(plain.value)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (SandboxLimits(cpu_s=0.05, memory_bytes=1 << 30), r"it takes more than 0\.05 s"),
        (
            SandboxLimits(memory_bytes=16 << 20),
            "no memory to decode the PNG image|more than 16 MiB",
        ),
    ],
)
def test_an_image_over_the_limits_is_refused_and_the_next_is_decoded(
    monkeypatch: pytest.MonkeyPatch, limits: SandboxLimits, reason: str
) -> None:
    monkeypatch.setattr(sandboxed, "DECODE_LIMITS", limits)
    decoder = SandboxedDecoder(FORK_SERVER)
    with pytest.raises(RequestError, match=reason):
        decoder.decode(png(6000, 4000))
    assert decoder.decode(png(5, 4)).shape == (4, 5, 3)
    decoder.close()


@pytest.mark.parametrize(
    "answer", [b"", b"\0" * 7, b"\1\0\0\0" * 2, b"\xff" * 20, bytes(8) + b"\xff"]
)
def test_an_invalid_response_is_refused(
    monkeypatch: pytest.MonkeyPatch, decoder: SandboxedDecoder, answer: bytes
) -> None:
    monkeypatch.setattr("tampu.sandbox.process.SandboxedProcess.call", lambda *_: answer)
    with pytest.raises(RequestError):
        decoder.decode(b"")
