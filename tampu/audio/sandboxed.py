"""Decodes sound files in sandboxed processes, because decoders are native code.

As for images (`tampu.vision.sandboxed`): a file that hangs or crashes the decoder or exhausts its
memory fails one request. WAV has a process of its own, which needs no PyAV.
"""

from __future__ import annotations

import numpy as np

from tampu.audio.features import Samples
from tampu.audio.formats import (
    COUNT,
    DEFAULT_AUDIO_LIMITS,
    SAMPLE_RATE,
    SUPPORTED,
    format_of,
    is_wav,
    require_pyav,
)
from tampu.errors import RequestError, SandboxLimitError
from tampu.sandbox.client import ForkServerClient
from tampu.sandbox.process import SandboxedProcess, SandboxLimits

_MAX_SAMPLES = int((DEFAULT_AUDIO_LIMITS.seconds + 1) * SAMPLE_RATE)

DECODE_LIMITS = SandboxLimits(
    cpu_s=60.0, wall_s=300.0, memory_bytes=3 << 29, result_bytes=4 * _MAX_SAMPLES + COUNT.size
)


class SandboxedAudioDecoder:
    """Runs `decode_wav` or `decode_compressed` in a process that the first sound starts.

    Thread-safe; calls wait for one another.
    """

    def __init__(self, fork_server: ForkServerClient) -> None:
        self._wav = SandboxedProcess("tampu.audio.wav:serve", fork_server, DECODE_LIMITS)
        self._compressed = SandboxedProcess(
            "tampu.audio.compressed:serve", fork_server, DECODE_LIMITS
        )

    def close(self) -> None:
        """End the processes."""
        self._wav.close()
        self._compressed.close()

    def decode(self, data: bytes) -> Samples:
        """Return the sound in a file: mono, float32, 16,000 samples a second; not to be written to.

        Raises:
            RequestError: as `decode_wav` and `decode_compressed`; if decoding takes too much time
                or memory; for formats other than WAV without PyAV.
        """
        DEFAULT_AUDIO_LIMITS.check_size(data)
        process = self._wav
        if not is_wav(data):
            if format_of(data) is None:
                raise RequestError(f"the sound's format is not supported; supported: {SUPPORTED}")
            require_pyav()
            process = self._compressed
        try:
            answer = process.call(data)
        except SandboxLimitError as error:
            raise RequestError(f"the sound cannot be decoded: {error}; make it shorter") from error
        [count] = COUNT.unpack_from(answer.ljust(COUNT.size, b"\0"))
        if not count:
            raise RequestError(answer[COUNT.size :].decode("utf-8", "replace"))
        if len(answer) != COUNT.size + 4 * count:
            raise RequestError(
                "the sound cannot be decoded: unexpected response from the decoder process"
            )
        return np.frombuffer(answer, np.float32, offset=COUNT.size)
