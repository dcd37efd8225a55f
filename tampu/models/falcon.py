"""Falcon, Phi 1 to 2, GPT-J: attention and the feed-forward part side by side.

    x = x + attention(norm(x)) + down(gelu(up(norm(x))))

Both get the same normed input; the larger Falcon models have a second norm for that of attention.
Falcon has GELU in its original form; the others have it in its tanh form, and rotate a part of each
head. Sources: arXiv:2311.16867 (Falcon), arXiv:2309.05463 (Phi-1.5), Wang and Komatsuzaki 2021
(GPT-J-6B).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    epsilon: float = nn.option("attention.layer_norm_epsilon")
    activate: nn.Activation = Tensor.gelu_exact  # by architecture: no file holds it


class Layer(nn.Module):
    norm: nn.LayerNorm = nn.gguf("attn_norm")
    attention_norm: nn.LayerNorm | None = nn.gguf("attn_norm_2")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward: nn.FeedForward = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        normed = self.norm(x, o.epsilon)
        y = self.attention_norm(x, o.epsilon) if self.attention_norm else normed
        y = self.attention(y, cache, o.shape, rotate)
        x, y, normed = nn.select_rows(rows, x, y, normed)
        return x + y + self.feed_forward(normed, o.activate)


class Falcon(nn.Decoder):
    layers: list[Layer]
    output_norm: nn.LayerNorm = nn.gguf("output_norm")

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
