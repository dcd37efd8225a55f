"""gpt-oss: attention with sinks, every other layer with a window, a mixture of clamped experts.

Source: arXiv:2508.10925. YaRN's borders are not rounded to whole pairs here, as ggml rounds them,
so the frequencies are made here and given to the operation as divisors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tampu import nn
from tampu.ml import Graph, RopeMode, RopeScaling, Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    key_length: int = nn.option("attention.key_length", default=64)
    epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-5)
    window: int = nn.option("attention.sliding_window", default=128)
    used_experts: int = nn.option("expert_used_count", default=4, at_most=4096)
    limit: float = nn.option("swiglu_limit", default=7.0)
    rope_base: float = nn.option("rope.freq_base", default=150_000.0, at_most=1e12)

    @property
    def gating(self) -> nn.Gating:
        """How experts are chosen."""
        return nn.Gating(self.used_experts, renormalize=True, clamp=self.limit)


class Attention(nn.SelfAttention):
    output: nn.Linear = nn.gguf("attn_output")
    sinks: Tensor = nn.gguf("attn_sinks.weight")


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: Attention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward: nn.SparseMoE = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return self.feed_forward(self.feed_forward_norm(x, o.epsilon), o.gating) + x


class GptOss(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [
            nn.LayerShape(o.kv_heads, o.head_dim, None if index % 2 else o.window)
            for index in range(o.layers)
        ]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        rotate = partial(self.rope(batch.context), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]

    def rope(self, context: Graph) -> nn.Rope:
        """Return the rotation; its divisors are a constant of the graph."""
        o, scaling = self.options, self.options.rope_scaling
        magnitude = scaling.magnitude
        if scaling.extrapolation:
            magnitude *= 1 + 0.1 * math.log(1 / scaling.frequency_scale)
        divisors = yarn_divisors(o.head_dim, o.rope_base, scaling)
        factors = context.constant(divisors)
        plain = RopeScaling(magnitude=magnitude)
        return nn.Rope(o.head_dim, o.rope_base, RopeMode.HALVES, plain, factors)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor | None:  # noqa: ARG002
        return self.rope(offsets.context).move(keys, offsets) if offsets.context else None


def yarn_divisors(dimensions: int, base: float, scaling: RopeScaling) -> npt.NDArray[np.float32]:
    """Return YaRN's divisor of each pair's frequency (arXiv:2309.00071), borders not rounded."""

    def pair_of(rotations: float) -> float:
        length = scaling.original_context / (rotations * 2 * math.pi)
        return dimensions * math.log(length) / (2 * math.log(base))

    low, high = max(pair_of(scaling.beta_fast), 0), min(pair_of(scaling.beta_slow), dimensions - 1)
    ramp = (np.arange(dimensions // 2) - low) / max(high - low, 0.001)
    kept = scaling.extrapolation * (1 - np.clip(ramp, 0, 1))
    scale = scaling.frequency_scale
    divisors: npt.NDArray[np.float32] = (1 / (scale * (1 - kept) + kept)).astype(np.float32)
    return divisors
