"""Decodes videos in a sandboxed process, because video decoders are native code.

As for images (`tampu.vision.sandboxed`): a file that hangs or crashes the decoder or exhausts its
memory fails one request. The frames come back already in the size in which the model takes them.
"""

from __future__ import annotations

import struct
from dataclasses import astuple

import numpy as np

from tampu.errors import RequestError, SandboxLimitError
from tampu.sandbox.client import ForkServerClient
from tampu.sandbox.process import SandboxedProcess, SandboxLimits
from tampu.vision.video import Video, VideoSettings, decode_video, require_pyav

_SETTINGS = struct.Struct("<dIIIQQ")
_SHAPE = struct.Struct("<III")  # frames, height, width; then times and pixels; 0: then the error
_MAX_PIXELS = 100_000_000

DECODE_LIMITS = SandboxLimits(
    cpu_s=60.0, wall_s=300.0, memory_bytes=2 << 30, result_bytes=4 * _MAX_PIXELS
)


class SandboxedVideoDecoder:
    """Runs `decode_video` in a process that is started by the first video.

    Thread-safe; calls wait for one another.
    """

    def __init__(self, fork_server: ForkServerClient) -> None:
        function = "tampu.vision.sandboxed_video:serve"
        self._process = SandboxedProcess(function, fork_server, DECODE_LIMITS)

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def decode(self, data: bytes, settings: VideoSettings) -> Video:
        """Return frames of a video file.

        Raises:
            RequestError: as `decode_video`; if decoding takes too much time or memory; without
                PyAV.
        """
        require_pyav()
        try:
            answer = self._process.call(_SETTINGS.pack(*astuple(settings)) + data)
        except SandboxLimitError as error:
            raise RequestError(
                f"the video cannot be decoded: {error}; make it shorter or smaller"
            ) from error
        count, height, width = _SHAPE.unpack_from(answer.ljust(_SHAPE.size, b"\0"))
        if not count:
            raise RequestError(answer[_SHAPE.size :].decode("utf-8", "replace"))
        pixels = count * height * width * 3
        if len(answer) != _SHAPE.size + 8 * count + pixels:
            raise RequestError(
                "the video cannot be decoded: unexpected response from the decoder process"
            )
        times = np.frombuffer(answer, np.float64, count, _SHAPE.size)
        frames = np.frombuffer(answer, np.uint8, pixels, _SHAPE.size + 8 * count)
        return Video(frames.reshape(count, height, width, 3), times)


def serve(request: bytes) -> bytes:
    """Decode a file, in the sandboxed process."""
    settings = VideoSettings(*_SETTINGS.unpack_from(request))
    try:
        video = decode_video(request[_SETTINGS.size :], settings)
    except RequestError as error:
        return _SHAPE.pack(0, 0, 0) + str(error).encode()
    shape = _SHAPE.pack(*video.frames.shape[:3])
    return b"".join([shape, video.times.astype(np.float64).tobytes(), video.frames.tobytes()])
