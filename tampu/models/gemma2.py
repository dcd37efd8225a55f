"""Gemma 2: every other layer with a sliding window, norms before and after, capped scores.

Source: arXiv:2408.00118. Norm weights in files already include the + 1 of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu.ml import RopeMode, Tensor
from tampu.nn import (
    Batch,
    Decoder,
    Heads,
    LayerShape,
    Rope,
    SandwichNormLayer,
    Step,
    option,
    soft_cap,
)

_LAYERS_27B = 46  # the one size whose scale does not follow from its head size


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = option("block_count", at_most=1024)
    embedding: int = option("embedding_length")
    heads: int = option("attention.head_count", at_most=4096)
    kv_heads: int = option("attention.head_count_kv", at_most=4096)
    head_dim: int = option("attention.key_length", default=256)
    epsilon: float = option("attention.layer_norm_rms_epsilon", default=1e-6)
    window: int = option("attention.sliding_window")
    given_scale: float | None = option("attention.scale", default=None)
    rope_base: float = option("rope.freq_base", default=10_000.0, at_most=1e12)
    score_cap: float | None = option("attn_logit_softcapping", default=50.0)
    logit_cap: float | None = option("final_logit_softcapping", default=30.0)

    @property
    def shape(self) -> Heads:
        """The shape of attention."""
        width = self.embedding // self.heads if self.layers == _LAYERS_27B else self.head_dim
        scale = self.given_scale or width**-0.5
        return Heads(self.heads, self.kv_heads, self.head_dim, scale, self.epsilon, self.score_cap)

    @property
    def rope(self) -> Rope:
        """The rotation in all layers."""
        return Rope(self.head_dim, self.rope_base, RopeMode.HALVES)


class Gemma2(Decoder):
    layers: list[SandwichNormLayer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[LayerShape]:
        o = self.options
        return [
            LayerShape(o.kv_heads, o.head_dim, None if index % 2 else o.window)
            for index in range(o.layers)
        ]

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embedding(tokens) * math.sqrt(self.options.embedding)

    def steps(self, batch: Batch) -> Iterable[Step]:
        o, positions = self.options, batch.positions
        return [
            partial(layer, positions=positions, rope=o.rope, heads=o.shape) for layer in self.layers
        ]

    def head(self, hidden: Tensor) -> Tensor:
        logits, cap = self.output(hidden), self.options.logit_cap
        return soft_cap(logits, cap) if cap else logits

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        return self.options.rope.move(keys, offsets)
