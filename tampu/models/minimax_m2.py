"""MiniMax-M2: queries and keys are normed over all heads of a token, half of each is rotated.

    x = x + attention(norm(x))
    x = x + experts(norm(x))

The router weights experts by the sigmoid of their scores; a bias changes the choice only.

Source: the MiniMax-M2 reference implementation.
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
    gating: nn.Gating = nn.option_from(partial(nn.read_gating, renormalize=True))

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        return replace(super().shape, has_joint_norm=True)


class Experts(nn.SparseMoE):
    router: nn.BiasedRouter = nn.gguf()


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: Experts = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return self.feed_forward(self.feed_forward_norm(x, o.epsilon), o.gating) + x


class MiniMaxM2(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        rotate = partial(self.options.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope().move(keys, offsets)
