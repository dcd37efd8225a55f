"""Decodes image files in a sandboxed process, because image decoders are native code.

A file that hangs or crashes the decoder or exhausts its memory fails one request; the model's
process, which others share, gets only pixels. `decode` says which files are supported.
"""

from __future__ import annotations

import numpy as np

from tampu.errors import RequestError, SandboxLimitError
from tampu.sandbox.client import ForkServerClient
from tampu.sandbox.process import SandboxedProcess, SandboxLimits
from tampu.vision.limits import DEFAULT_LIMITS, SIZE
from tampu.vision.pixels import RGBImage

DECODE_LIMITS = SandboxLimits(
    cpu_s=4.0,
    memory_bytes=1 << 30,
    result_bytes=3 * DEFAULT_LIMITS.pixels + SIZE.size,
)


class SandboxedDecoder:
    """Runs `decode` in a process that is started by the first image.

    Thread-safe; calls wait for one another.
    """

    def __init__(self, fork_server: ForkServerClient) -> None:
        self._process = SandboxedProcess("tampu.vision.decoding:serve", fork_server, DECODE_LIMITS)

    def prepare(self) -> None:
        """Prepare the start of the process, without waiting for it."""
        self._process.prepare()

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def decode(self, data: bytes) -> RGBImage:
        """Return the image in an image file: RGB, (height, width, 3), not to be written to.

        Raises:
            RequestError: as `decode`, and if decoding takes too much time or memory.
        """
        try:
            answer = self._process.call(data)
        except SandboxLimitError as error:
            raise RequestError(f"the image cannot be decoded: {error}") from error
        height, width = SIZE.unpack_from(answer.ljust(SIZE.size, b"\0"))
        if not height:
            raise RequestError(answer[SIZE.size :].decode("utf-8", "replace"))
        if len(answer) != SIZE.size + 3 * height * width:
            raise RequestError(
                "the image cannot be decoded: unexpected response from the decoder process"
            )
        return np.frombuffer(answer, np.uint8, offset=SIZE.size).reshape(height, width, 3)
