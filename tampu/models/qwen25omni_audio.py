"""Qwen2.5-Omni's hearing: Whisper's encoder on two seconds at a time, whose pairs are averaged.

Positions begin anew with every two seconds, and attend to those of the same two seconds only, so
each of these chunks is encoded by itself. A token is 40 ms.

Sources: arXiv:2503.20215 (Qwen2.5-Omni), transformers' Qwen2_5OmniAudioEncoder.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.audio import HOP, check_length, whisper_log_mel
from tampu.ml import Context, Tensor
from tampu.models.whisper import WhisperEncoder

_MAX_SECONDS = 7200
_STRIDE, _PAIR = 2, 2  # frames of a position, positions of a token
_SHORTEST = 3  # frames: those of a token
_SILENCE = 3  # frames behind the sound, so that nothing of it is mirrored


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("audio.block_count", at_most=1024)
    heads: int = nn.option("audio.attention.head_count", at_most=4096)
    epsilon: float = nn.option("audio.attention.layer_norm_epsilon", default=1e-5)
    bins: int = nn.option("audio.num_mel_bins", at_most=1024)
    half_chunk: int = nn.option("audio.n_window", default=100, at_most=2**16)  # frames

    @property
    def chunk(self) -> int:
        """Frames that are encoded together."""
        return 2 * self.half_chunk


class Qwen25OmniAudio(nn.AudioModel):
    encoder: WhisperEncoder = nn.gguf("a")
    projection: nn.Linear = nn.gguf("mm.a.fc")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("qwen2a", "qwen2.5o")
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<|audio_bos|>",),),
        "audio": (("<|AUDIO|>",),),
        "end": (("<|audio_eos|>",),),
    }
    options: Options

    def prepare(self, samples: nn.Samples) -> tuple[int | nn.MediaItem, ...]:
        check_length(samples, _MAX_SECONDS)
        o = self.options
        count = max(_SHORTEST, -(-len(samples) // HOP))
        silence = (count + _SILENCE) * HOP - len(samples)
        frames = whisper_log_mel(np.pad(samples, (0, silence)), o.bins)[:count]
        starts = range(0, count, o.chunk)
        parts = [self._part(frames[start : start + o.chunk]) for start in starts]
        heard = (part for part in parts if part.rows)  # two frames or one make no token
        return (*self.tokens["start"], *heard, *self.tokens["end"])

    def largest(self) -> nn.MediaItem:
        return self._part(np.zeros((self.options.chunk, self.options.bins), np.float32))

    def _part(self, frames: nn.Samples) -> nn.MediaItem:
        positions = -(-len(frames) // _STRIDE)
        rows = positions // _PAIR
        arrays = {"frames": frames, "places": np.arange(positions, dtype=np.int32)}
        lies = nn.audio_placeholders(self.tokens["audio"][0], rows)
        return nn.MediaItem(arrays, len(frames), rows, lies, is_audio=True)

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o = self.options
        x = self.encoder.hidden(context, inputs, o.heads, o.epsilon)
        return self.projection(self.encoder.norm(_averaged(x), o.epsilon))


def _averaged(x: Tensor) -> Tensor:
    """Return the mean of each pair (n // 2, features); without a partner the last is left out."""
    rows, features, row = x.shape[0] // _PAIR, x.shape[1], x.strides[0]
    first, second = (
        x.strided((rows, features), (_PAIR * row,), index * row).contiguous()
        for index in range(_PAIR)
    )
    return (first + second) * 0.5
