"""Mamba 2 alone: x = x + mamba(norm(x)), without attention and feed-forward parts.

Source: arXiv:2405.21060.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("block_count", at_most=1024)
    embedding: int = nn.option("embedding_length")
    context: int = nn.option("context_length")  # only checked: the engine reads it as well
    epsilon: float = nn.option("attention.layer_norm_rms_epsilon")
    mamba: nn.Mamba2Shape = nn.option_from(nn.read_mamba2_shape)


class Layer(nn.Module):
    norm: nn.RMSNorm = nn.gguf("attn_norm")
    mamba: nn.Mamba2 = nn.gguf()

    def __call__(self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, o: Options) -> Tensor:
        x, y = nn.select_rows(rows, x, self.mamba(self.norm(x, o.epsilon), cache, o.mamba))
        return x + y


class Mamba2(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.CacheShape]:
        return [self.options.mamba.state] * self.options.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:  # noqa: ARG002
        return [partial(layer, o=self.options) for layer in self.layers]
