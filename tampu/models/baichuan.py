"""Baichuan and Refact: Llama, in which scores fall with the distance (ALiBi) instead of RoPE.

    x = x + attention(norm(x))
    x = x + down(silu(gate(norm(x))) · up(norm(x)))

Baichuan 7B rotates, as Llama does; only its number of layers distinguishes the 13B model from it.
Sources: arXiv:2309.10305 (Baichuan 2), arXiv:2108.12409 (ALiBi).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor

_LAYERS_13B = 40  # of Baichuan
_MAX_BIAS = 8.0


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    may_rotate: bool = False  # by architecture: no file holds it

    @property
    def has_rope(self) -> bool:
        """Whether queries and keys are rotated."""
        return self.may_rotate and self.layers != _LAYERS_13B

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        return replace(super().shape, max_bias=0.0 if self.has_rope else _MAX_BIAS)


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation | None,
        o: Options,
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(self.feed_forward_norm(x, o.epsilon))


class Baichuan(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim, has_alibi=not o.has_rope)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions) if o.has_rope else None
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further, if they are rotated."""
        return self.options.rope().move(keys, offsets) if self.options.has_rope else keys
