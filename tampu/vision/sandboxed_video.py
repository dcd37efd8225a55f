"""Decodes videos in a sandboxed process, because video decoders are native code.

As for images (`tampu.vision.sandboxed`): a file that hangs or crashes the decoder or exhausts its
memory fails one request. The frames come back already in the size in which the model takes them.
"""

from __future__ import annotations

from dataclasses import astuple

import numpy as np

from tampu.errors import RequestError, SandboxLimitError
from tampu.sandbox.client import ForkServerClient
from tampu.sandbox.process import SandboxedProcess, SandboxLimits
from tampu.vision.video import SETTINGS, SHAPE, Video, VideoSettings, require_pyav

_MAX_PIXELS = 100_000_000

DECODE_LIMITS = SandboxLimits(
    cpu_s=60.0, wall_s=300.0, memory_bytes=2 << 30, result_bytes=4 * _MAX_PIXELS
)


class SandboxedVideoDecoder:
    """Runs `decode_video` in a process that is started by the first video.

    Thread-safe; calls wait for one another.
    """

    def __init__(self, fork_server: ForkServerClient) -> None:
        function = "tampu.vision.video_decoding:serve"
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
            answer = self._process.call(SETTINGS.pack(*astuple(settings)) + data)
        except SandboxLimitError as error:
            raise RequestError(
                f"the video cannot be decoded: {error}; make it shorter or smaller"
            ) from error
        count, height, width = SHAPE.unpack_from(answer.ljust(SHAPE.size, b"\0"))
        if not count:
            raise RequestError(answer[SHAPE.size :].decode("utf-8", "replace"))
        pixels = count * height * width * 3
        if len(answer) != SHAPE.size + 8 * count + pixels:
            raise RequestError(
                "the video cannot be decoded: unexpected response from the decoder process"
            )
        times = np.frombuffer(answer, np.float64, count, SHAPE.size)
        frames = np.frombuffer(answer, np.uint8, pixels, SHAPE.size + 8 * count)
        return Video(frames.reshape(count, height, width, 3), times)
