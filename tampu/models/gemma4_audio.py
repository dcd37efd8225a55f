"""Gemma 4's hearing without an encoder (12B): 40 ms of samples become one token.

Source: transformers' Gemma4UnifiedModel. The samples are normed and projected, nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.audio import check_length
from tampu.errors import ModelFileError
from tampu.ml import Context, Tensor

_PART_TOKENS = 100  # four seconds: what is encoded at once
_MAX_SECONDS = 600  # the model was trained with thirty

MARKS: nn.SpecialTokens = {
    "start": (("<|audio>",),),
    "audio": (("<pad>",),),  # as for images
    "end": (("<audio|>",),),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    frame: int = nn.option("audio.num_mel_bins", default=640, at_most=2**16)  # samples of a token
    epsilon: float = nn.option("audio.attention.layer_norm_epsilon", default=1e-6)
    text_embedding: int = nn.option("embedding_length", of_text=True)


class Gemma4UnifiedAudio(nn.AudioModel):
    projection: nn.Linear = nn.gguf("mm.a.input_projection")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("gemma4ua",)
    special_tokens: ClassVar[nn.SpecialTokens] = MARKS
    options: Options

    def prepare(self, samples: nn.Samples) -> tuple[int | nn.MediaItem, ...]:
        check_length(samples, _MAX_SECONDS)
        frame = self.options.frame
        count = -(-len(samples) // frame)
        frames = np.pad(samples, (0, count * frame - len(samples))).reshape(count, frame)
        starts = range(0, count, _PART_TOKENS)
        parts = [self._part(frames[start : start + _PART_TOKENS]) for start in starts]
        return (*self.tokens["start"], *parts, *self.tokens["end"])

    def largest(self) -> nn.MediaItem:
        return self._part(np.zeros((_PART_TOKENS, self.options.frame), np.float32))

    def _part(self, frames: nn.Samples) -> nn.MediaItem:
        count = len(frames)
        return nn.MediaItem(
            {"frames": frames},
            count,
            count,
            nn.audio_placeholders(self.tokens["audio"][0], count),
            is_audio=True,
        )

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o, weight = self.options, self.projection.weight
        if weight.shape != (o.text_embedding, o.frame):
            reason = f"{list(weight.shape)} is not [{o.text_embedding}, {o.frame}]"
            raise ModelFileError("tensor 'mm.a.input_projection.weight'", reason)
        return self.projection(inputs["frames"].rms_norm(o.epsilon))
