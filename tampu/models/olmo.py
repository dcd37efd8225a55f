"""OLMo 1: Llama with LayerNorm that has no weights.

    x = x + attention(norm(x))
    x = x + down(silu(gate(norm(x))) · up(norm(x)))

The first models limit queries, keys and values. Source: arXiv:2402.00838.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    epsilon: float = nn.option("attention.layer_norm_epsilon")
    clamp: float | None = nn.option("attention.clamp_kqv", default=None)

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        return replace(super().shape, clamp=self.clamp)


class Layer(nn.Module):
    attention: nn.SelfAttention = nn.gguf()
    feed_forward: nn.SiluFeedForward = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(x.layer_norm(o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(x.layer_norm(o.epsilon))


class Olmo(nn.Decoder):
    layers: list[Layer]
    output_norm: nn.UnscaledLayerNorm = nn.gguf("output_norm")

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope().move(keys, offsets)
