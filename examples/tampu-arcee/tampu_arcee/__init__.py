"""Arcee's AFM: Llama without a gate, and the square of ReLU as activation.

Source: arXiv:2109.08668 (the activation). An architecture outside of tampu's own package;
docs/adding-a-model.md walks through this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    """What the file's metadata says, under `arcee.`."""

    epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-5)
    rope_mode: RopeMode = RopeMode.INTERLEAVED  # no file holds it


class Layer(nn.Module):
    """Attention, then a feed-forward part, each of the normed input and added to it."""

    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.FeedForward = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        """Return the layer's output; if `rows` is given, of those tokens only."""
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        return x + self.feed_forward(y, nn.relu_squared)


class Arcee(nn.Decoder):
    """The architecture."""

    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        """Return what each layer keeps of a token."""
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        """Return the layers with what they need of a batch."""
        rotate = partial(self.options.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]
