"""Gemma 4's hearing (E2B, E4B): a conformer, in which a position attends to the last twelve.

Two convolutions over time and frequencies make a position of four frames of 10 ms. A layer has a
feed-forward part before and behind attention and a convolution of the last five positions.

Sources: arXiv:2303.01037 (the Universal Speech Model), transformers' Gemma4AudioModel.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tampu import nn
from tampu.audio import check_length, gemma_log_mel
from tampu.ml import Context, Tensor
from tampu.ml.attention import softmax
from tampu.ml.types import GGMLType
from tampu.models.gemma4_audio import MARKS
from tampu.models.gemma4_vision import ClippedLinear

_MAX_SECONDS = 600
_SHORTEST = 480  # samples
_WINDOW = 3000  # frames that are encoded at once: the model was trained with thirty seconds
_EPSILON = 1e-6
_REACH = 12  # positions that one attends to, itself included
_CAP = 50.0  # of scores
_STRIDE = 2
_QUERY_SCALE, _KEY_SCALE = 1 / math.log(2), math.log(1 + math.e) / math.log(2)


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("audio.block_count", at_most=1024)
    heads: int = nn.option("audio.attention.head_count", at_most=4096)
    embedding: int = nn.option("audio.embedding_length", at_most=2**20)
    bins: int = nn.option("audio.num_mel_bins", default=128, at_most=1024)


class Subsampling(nn.Module):
    convolution: nn.Conv2d = nn.gguf()
    norm: nn.LayerNorm = nn.gguf("norm")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (rows', columns', outputs) for a map (inputs, rows, columns)."""
        return self.norm(self.convolution(x, _STRIDE), _EPSILON).clamp(0.0, math.inf)


class Attention(nn.Module):
    query: ClippedLinear = nn.gguf("attn_q")
    key: ClippedLinear = nn.gguf("attn_k")
    value: ClippedLinear = nn.gguf("attn_v")
    output: ClippedLinear = nn.gguf("attn_out")
    relative: nn.Linear = nn.gguf("attn_k_rel")
    query_scale: Tensor = nn.gguf("per_dim_scale.weight")
    key_scale: Tensor | None = nn.gguf("per_dim_k_scale.weight")

    def __call__(self, x: Tensor, inputs: Mapping[str, Tensor], o: Options) -> Tensor:
        """Return (n, features) for x of that shape."""
        count, heads = x.shape[0], o.heads
        parts = (self.query, self.key, self.value)
        q, k, v = (part(x).reshape(count, heads, -1) for part in parts)
        q = q * self.query_scale * (_QUERY_SCALE * q.shape[2] ** -0.5)
        k = (k * self.key_scale if self.key_scale else k) * _KEY_SCALE
        queries, keys = (part.transpose(1, 0, 2).contiguous() for part in (q, k))
        distances = self.relative(inputs["distances"]).reshape(-1, heads, q.shape[2])
        near = queries.linear(distances.transpose(1, 0, 2).contiguous())
        scores = queries.linear(keys)
        scores = nn.soft_cap(scores + _on_diagonals(near, scores * 0.0), _CAP)
        weights = softmax(scores, inputs["mask"])
        mixed = weights.linear(v.transpose(1, 2, 0).contiguous())
        return self.output(mixed.transpose(1, 0, 2).contiguous().reshape(count, -1))


def _on_diagonals(near: Tensor, zeros: Tensor) -> Tensor:
    """Return (heads, n, n), at (i, j) what `near` (heads, n, k) has at i and k - 1 - (i - j).

    Rows of n + k numbers, read as if they had one less, move by one to the right with every row.
    """
    _, count, reach = near.shape
    row = 4 * (count + reach)
    padded = near.concat(zeros, 2)
    return padded.strided(zeros.shape, (count * row, row - 4), 4 * (reach - 1)).contiguous()


class Layer(nn.Module):
    first_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    first_up: ClippedLinear = nn.gguf("ffn_up")
    first_down: ClippedLinear = nn.gguf("ffn_down")
    first_post_norm: nn.RMSNorm = nn.gguf("ffn_post_norm")
    attention_norm: nn.RMSNorm = nn.gguf("attn_pre_norm", or_="ln1")
    attention: Attention = nn.gguf()
    post_attention_norm: nn.RMSNorm = nn.gguf("attn_post_norm")
    convolution_norm: nn.RMSNorm = nn.gguf("conv_norm")  # llama.cpp's names are exchanged
    into: ClippedLinear = nn.gguf("conv_pw1")
    kernel: Tensor = nn.gguf("conv_dw.weight")
    middle_norm: nn.RMSNorm = nn.gguf("norm_conv")
    out_of: ClippedLinear = nn.gguf("conv_pw2")
    second_norm: nn.RMSNorm = nn.gguf("ffn_norm_1")
    second_up: ClippedLinear = nn.gguf("ffn_up_1")
    second_down: ClippedLinear = nn.gguf("ffn_down_1")
    second_post_norm: nn.RMSNorm = nn.gguf("ffn_post_norm_1")
    norm: nn.RMSNorm = nn.gguf("ln2")

    def __call__(self, x: Tensor, inputs: Mapping[str, Tensor], o: Options) -> Tensor:
        y = self.first_down(self.first_up(self.first_norm(x, _EPSILON)).silu())
        x = x + self.first_post_norm(y, _EPSILON) * 0.5
        y = self.attention(self.attention_norm(x, _EPSILON), inputs, o)
        x = x + self.post_attention_norm(y, _EPSILON)
        value, gate = self.into(self.convolution_norm(x, _EPSILON)).split(2)
        y = _convolved(value * gate.sigmoid(), self.kernel)
        x = x + self.out_of(self.middle_norm(y, _EPSILON).silu())
        y = self.second_down(self.second_up(self.second_norm(x, _EPSILON)).silu())
        x = x + self.second_post_norm(y, _EPSILON) * 0.5
        return self.norm(x, _EPSILON)


def _convolved(x: Tensor, kernel: Tensor) -> Tensor:
    """Return (n, features): each feature's sum of its last inputs, by a kernel (features, taps)."""
    (count, features), taps, row = x.shape, kernel.shape[-1], 4 * x.shape[1]
    whole = kernel.strided(kernel.shape, kernel.strides[:-1], context=x.context)
    factors = whole.transpose(1, 0).cast(GGMLType.F32)
    padded = nn.zero_rows(x, taps - 1).concat(x, 0)
    shifted = (padded.strided((count, features), (row,), tap * row) for tap in range(taps))
    parts = (
        given.contiguous() * factors.strided((features,), (), tap * row)
        for tap, given in enumerate(shifted)
    )
    return reduce(lambda some, other: some + other, parts)


class Gemma4Conformer(nn.AudioModel):
    first: Subsampling = nn.gguf("a.conv1d.0")
    second: Subsampling = nn.gguf("a.conv1d.1")
    inward: nn.Linear = nn.gguf("a.input_projection")
    layers: list[Layer] = nn.gguf("a.blk", count="layers")
    outward: nn.Linear = nn.gguf("a.pre_encode.out")
    norm: nn.RMSNorm | None = nn.gguf("mm.a.soft_emb_norm")
    projection: nn.Linear = nn.gguf("mm.a.input_projection")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("gemma4a",)
    special_tokens: ClassVar[nn.SpecialTokens] = MARKS
    options: Options

    def prepare(self, samples: nn.Samples) -> tuple[int | nn.MediaItem, ...]:
        check_length(samples, _MAX_SECONDS)
        filled = np.pad(samples, (0, max(0, _SHORTEST - len(samples))))
        frames = gemma_log_mel(filled, self.options.bins)
        starts = range(0, len(frames), _WINDOW)
        parts = [self._part(frames[start : start + _WINDOW]) for start in starts]
        return (*self.tokens["start"], *parts, *self.tokens["end"])

    def largest(self) -> nn.MediaItem:
        return self._part(np.zeros((_WINDOW, self.options.bins), np.float32))

    def _part(self, frames: nn.Samples) -> nn.MediaItem:
        """Return frames (n, bins) to encode, the mask, and the embedded distances 12 to 0."""
        rows = -(-len(frames) // _STRIDE**2)
        half = self.options.embedding // 2
        rates = np.exp(-np.log(10_000) / max(1, half - 1) * np.arange(half))
        angles = np.arange(_REACH, -1, -1)[:, None] * rates
        distance = np.subtract.outer(np.arange(rows), np.arange(rows))
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "frames": frames[None],
            "distances": np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32),
            "mask": np.where((distance >= 0) & (distance < _REACH), 0, -np.inf).astype(np.float16),
        }
        lies = nn.audio_placeholders(self.tokens["audio"][0], rows)
        return nn.MediaItem(arrays, len(frames), rows, lies, is_audio=True)

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        x = self.first(inputs["frames"]).transpose(2, 0, 1).contiguous()
        x = self.second(x)
        x = self.inward(x.reshape(x.shape[0], -1))
        for layer in self.layers:
            x = layer(context.pause(x), inputs, self.options)
        x = self.outward(x).rms_norm(_EPSILON)
        return self.projection(x * self.norm.weight if self.norm else x)
