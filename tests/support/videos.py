"""Small videos, written with PyAV."""

from __future__ import annotations

import io
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from support.seeing import picture

Frames = npt.NDArray[np.uint8]
KINDS = {
    "mp4": ("mp4", "mpeg4", "yuv420p"),
    "mov": ("mov", "mpeg4", "yuv420p"),
    "webm": ("webm", "libvpx", "yuv420p"),
    "mkv": ("matroska", "ffv1", "bgr0"),  # without loss
    "avi": ("avi", "mjpeg", "yuvj420p"),
}


def scene(count: int = 25, height: int = 96, width: int = 128, seed: int = 0) -> Frames:
    """Return frames (count, height, width, 3) in which something moves."""
    still = picture(height, width, seed)
    return np.stack([np.roll(still, 3 * number, axis=1) for number in range(count)])


def video(frames: Frames, kind: str = "mkv", fps: int = 10) -> bytes:
    """Return a video file of these frames."""
    form, codec, pixels = KINDS[kind]
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=fps)  # of one of three classes, by the codec
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixels
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def sound() -> bytes:
    """Return a file with sound alone."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=16_000)
        silence = np.zeros((1, 1024), np.float32)
        frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
        frame.sample_rate = 16_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()
