"""Qwen3-ASR's and Qwen3-Omni's hearing: chunks of a second, convolved, then attention over eight.

Three convolutions over frequencies and time make 13 positions of a chunk of 100 frames, whose
embeddings begin anew with every chunk. Chunks attend to those of their own window only, so each
window is encoded by itself.

Source: arXiv:2509.17765 (Qwen3-Omni), and transformers' Qwen3ASREncoder.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.audio import check_length, whisper_log_mel
from tampu.ml import Context, Tensor
from tampu.models.qwen3vl_vision import DEEPSTACK

_MAX_SECONDS = 7200
_SHORTEST = 8000  # samples: shorter sounds are filled with silence
_STRIDE = 2


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("audio.block_count", at_most=1024)
    heads: int = nn.option("audio.attention.head_count", at_most=4096)
    epsilon: float = nn.option("audio.attention.layer_norm_epsilon", default=1e-5)
    bins: int = nn.option("audio.num_mel_bins", at_most=1024)
    half_chunk: int = nn.option("audio.n_window", default=50, at_most=2**16)  # frames
    infer: int = nn.option("audio.n_window_infer", default=800, at_most=2**20)  # frames
    text_deepstack: int = nn.option(DEEPSTACK, default=0, at_least=0, of_text=True)

    @property
    def chunk(self) -> int:
        """Frames that are convolved together."""
        return 2 * self.half_chunk

    @property
    def window(self) -> int:
        """Frames that attend to one another: whole chunks."""
        return max(1, self.infer // self.chunk) * self.chunk


class Qwen3Audio(nn.AudioModel):
    first: nn.Conv2d = nn.gguf("a.conv2d.1")
    second: nn.Conv2d = nn.gguf("a.conv2d.2")
    third: nn.Conv2d = nn.gguf("a.conv2d.3")
    inward: nn.Linear = nn.gguf("a.conv_out")
    position: nn.Embedding = nn.gguf("a.position_embd")
    layers: list[nn.EncoderLayer] = nn.gguf("a.blk", count="layers")
    norm: nn.LayerNorm = nn.gguf("a.post_ln")
    projector: nn.GeluProjector = nn.gguf("mm.a")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("qwen3a",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("<|audio_start|>",),),
        "audio": (("<|audio_pad|>",),),
        "end": (("<|audio_end|>",),),
    }
    options: Options

    def prepare(self, samples: nn.Samples) -> tuple[int | nn.MediaItem, ...]:
        check_length(samples, _MAX_SECONDS)
        o = self.options
        filled = np.pad(samples, (0, max(0, _SHORTEST - len(samples))))
        frames = whisper_log_mel(filled, o.bins)
        starts = range(0, len(frames), o.window)
        parts = [self._part(frames[start : start + o.window]) for start in starts]
        return (*self.tokens["start"], *parts, *self.tokens["end"])

    def largest(self) -> nn.MediaItem:
        return self._part(np.zeros((self.options.window, self.options.bins), np.float32))

    def _part(self, frames: nn.Samples) -> nn.MediaItem:
        """Return a window of frames (n, bins), the last chunk filled with zeros."""
        o, count = self.options, len(frames)
        chunks = -(-count // o.chunk)
        rows = (chunks - 1) * _positions(o.chunk) + _positions(count - (chunks - 1) * o.chunk)
        filled = np.pad(frames, ((0, chunks * o.chunk - count), (0, 0)))
        maps = filled.reshape(chunks, o.chunk, o.bins).swapaxes(1, 2)
        arrays = {
            "chunks": np.ascontiguousarray(maps),
            "places": np.arange(_positions(o.chunk), dtype=np.int32),
            "kept": np.arange(rows, dtype=np.int32),  # those of the zeros are not
        }
        lies = nn.audio_placeholders(self.tokens["audio"][0], rows)
        return nn.MediaItem(arrays, (chunks, rows), rows, lies, is_audio=True)

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        o, maps, places = self.options, inputs["chunks"], self.position(inputs["places"])
        step = maps.strides[0]
        chunks = (
            maps.strided((1, *maps.shape[1:]), (step, maps.strides[1]), index * step)
            for index in range(maps.shape[0])
        )
        embedded = [self._convolved(chunk) + places for chunk in chunks]
        x = reduce(lambda some, other: some.concat(other, 0), embedded)
        x = x.rows(inputs["kept"])
        activate = Tensor.gelu_exact
        for layer in self.layers:
            x = layer(context.pause(x), heads=o.heads, epsilon=o.epsilon, activate=activate)
        embedding = self.projector(self.norm(x, o.epsilon))
        nothing = embedding * 0.0  # what a sound adds to the text's first layers, as images do
        parts = [embedding, *[nothing] * o.text_deepstack]
        return reduce(lambda some, other: some.concat(other, 1), parts)

    def _convolved(self, chunk: Tensor) -> Tensor:
        """Return the positions (n, features) of a chunk (1, bins, frames)."""
        x = chunk
        for convolution in (self.first, self.second, self.third):
            x = convolution(x, _STRIDE).gelu_exact().transpose(2, 0, 1).contiguous()
        return self.inward(x.transpose(2, 0, 1).contiguous().reshape(x.shape[2], -1))


def _positions(frames: int) -> int:
    """Return how many positions three convolutions make of so many frames."""
    for _ in range(3):
        frames = -(-frames // _STRIDE)
    return frames
