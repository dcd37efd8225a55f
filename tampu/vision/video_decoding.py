"""Decodes untrusted video files within limits: some frames, resized, and their times.

PyAV (FFmpeg) reads them; it comes with the extra `video`. Frames are chosen as transformers' video
processor of Qwen3-VL chooses them: evenly, so many per second, at least and at most so many.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.video.stream import VideoStream

from tampu.errors import RequestError
from tampu.vision.pixels import Filter, RGBImage, resize
from tampu.vision.sizes import fit_video
from tampu.vision.video import SETTINGS, SHAPE, Video, VideoSettings, format_of

logger = logging.getLogger(__name__)

_FEWEST = 2  # frames: those of one patch


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """Limits of videos.

    Attributes:
        size_bytes: of a file.
        seconds: its length.
        frames: in the file.
        side: width or height of a frame in pixels.
    """

    size_bytes: int = 48 << 20
    seconds: float = 1800.0
    frames: int = 100_000
    side: int = 4096


DEFAULT_VIDEO_LIMITS = VideoLimits()


def decode_video(
    data: bytes, settings: VideoSettings, limits: VideoLimits = DEFAULT_VIDEO_LIMITS
) -> Video:
    """Return frames of a video file.

    Raises:
        RequestError: if the format is not MP4, MOV, WebM, Matroska or AVI, the file is damaged, or
            it is over a limit.
    """
    form = format_of(data)
    if form is None:
        raise RequestError(
            "the video format is not supported; supported: MP4, MOV, WebM, Matroska and AVI"
        )
    if len(data) > limits.size_bytes:
        raise RequestError(f"the video has {len(data)} bytes, the limit is {limits.size_bytes}")
    try:
        with av.open(io.BytesIO(data), "r", format=form) as container:
            return _decoded(container, settings, limits)
    except MemoryError as error:
        raise RequestError("no memory to decode the video") from error
    except (av.FFmpegError, ValueError, IndexError, ArithmeticError, EOFError) as error:
        logger.info("a video is damaged: %r", error)  # may contain details of this machine
        raise RequestError("the video is damaged, or its codec is not supported") from error


def frames_taken(total: int, fps: float, settings: VideoSettings) -> npt.NDArray[np.int64]:
    """Return the numbers of the frames to take of so many, at so many per second."""
    count = min(
        max(int(total / fps * settings.fps), settings.min_frames), settings.max_frames, total
    )
    return np.linspace(0, total - 1, count).round().astype(np.int64)


def serve(request: bytes) -> bytes:
    """Decode a file, in the sandboxed process."""
    settings = VideoSettings(*SETTINGS.unpack_from(request))
    try:
        video = decode_video(request[SETTINGS.size :], settings)
    except RequestError as error:
        return SHAPE.pack(0, 0, 0) + str(error).encode()
    shape = SHAPE.pack(*video.frames.shape[:3])
    return b"".join([shape, video.times.astype(np.float64).tobytes(), video.frames.tobytes()])


def _decoded(container: InputContainer, settings: VideoSettings, limits: VideoLimits) -> Video:
    if not container.streams.video:
        raise RequestError("the file has no video, only sound or text")
    stream = container.streams.video[0]
    stream.codec_context.thread_type = "NONE"
    fps = float(stream.average_rate or stream.guessed_rate or 0)
    total = _count(container, stream, limits)
    if not total or not 0 < fps <= limits.frames:
        raise ValueError(f"{total} frames, {fps} in a second")
    if total / fps > limits.seconds:
        raise RequestError(
            f"the video has {total / fps:.0f} seconds, the limit is {limits.seconds:.0f}"
        )
    height, width = stream.codec_context.height, stream.codec_context.width
    if not 0 < max(height, width) <= limits.side:
        raise RequestError(
            f"the video is too large: {width} x {height}; the limit is {limits.side} on a side"
        )
    taken = frames_taken(total, fps, settings)
    size = fit_video(
        max(len(taken), _FEWEST),
        height,
        width,
        multiple=settings.multiple,
        fewest=settings.min_pixels,
        most=settings.max_pixels,
    )
    container.seek(0)
    frames = [*_frames(container, stream, taken, size)]
    if len(frames) < len(taken):
        raise ValueError(f"{len(frames)} of {len(taken)} frames")
    if len(frames) % _FEWEST:
        frames, taken = [*frames, frames[-1]], np.append(taken, taken[-1])
    return Video(np.stack(frames), taken / fps)


def _count(container: InputContainer, stream: VideoStream, limits: VideoLimits) -> int:
    """Return how many frames a file has, without decoding them."""
    count = 0
    for packet in container.demux(stream):
        count += bool(packet.size)
        if count > limits.frames:
            raise RequestError(f"the video has more than {limits.frames} frames")
    return count


def _frames(
    container: InputContainer,
    stream: VideoStream,
    taken: npt.NDArray[np.int64],
    size: tuple[int, int],
) -> Iterator[RGBImage]:
    """Yield the frames with these numbers, resized."""
    wanted, last = set(taken.tolist()), int(taken[-1])
    for number, frame in enumerate(container.decode(stream)):
        if number in wanted:
            pixels = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
            yield resize(pixels, *size, Filter.BICUBIC)
        if number == last:
            return
