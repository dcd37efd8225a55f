"""StarCoder 2, CodeShell, Nemotron-4, Jais 2: LayerNorm, RoPE, a feed-forward part without gate.

    x = x + attention(norm(x))
    x = x + down(activate(up(norm(x))))

The activation is GELU in StarCoder 2 and CodeShell, and the square of ReLU in Nemotron-4 and
Jais 2; Nemotron-4 rotates a part of each head. Sources: arXiv:2402.19173 (StarCoder 2),
arXiv:2403.15747 (CodeShell), arXiv:2406.11704 (Nemotron-4). Nemotron's norm weights in files
already include the + 1 of the reference.
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
    window: int | None = nn.option("attention.sliding_window", default=None)
    activate: nn.Activation = Tensor.gelu  # by architecture: no file holds it


class Layer(nn.Module):
    attention_norm: nn.LayerNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.LayerNorm = nn.gguf("ffn_norm")
    feed_forward: nn.FeedForward = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(self.feed_forward_norm(x, o.epsilon), o.activate)


class StarCoder2(nn.Decoder):
    layers: list[Layer]
    output_norm: nn.LayerNorm = nn.gguf("output_norm")

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim, o.window)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope().move(keys, offsets)
