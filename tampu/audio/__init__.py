"""Sound decoding and preprocessing, from a file's bytes to an encoder's inputs; NumPy and PyAV.

Everything here runs on the host and holds no state. A decoded sound is mono: float32, (samples,),
16,000 a second, between -1 and 1.
"""

from tampu.audio.features import HOP, Samples, gemma_log_mel, whisper_log_mel
from tampu.audio.formats import SAMPLE_RATE, check_audio, is_audio
from tampu.audio.length import check_length

__all__ = [
    "HOP",
    "SAMPLE_RATE",
    "Samples",
    "check_audio",
    "check_length",
    "gemma_log_mel",
    "is_audio",
    "whisper_log_mel",
]
