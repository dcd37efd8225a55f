"""Laguna: heads, rotation and window differ by layer, a softplus gates attention.

    x = x + attention(norm(x))
    x = x + experts(norm(x))        in the first layers down(silu(gate(norm(x))) · up(norm(x)))

One layer of four attends to all tokens; the others have a window, more heads, and a rotation of
their own without scaling. The softplus of a projection of the layer's input multiplies each head of
attention's output, or each feature. The router weights experts by the sigmoid of their scores, a
bias changes the choice only, and one expert is for all tokens.

Source: poolside's reference implementation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import RopeScaling, Tensor
from tampu.ml.metadata import Metadata


def read_heads(metadata: Metadata) -> tuple[int, ...]:
    """Return the heads of queries of each layer."""
    key, layers = "attention.head_count", metadata.integer("block_count")
    heads = metadata.integers_per_layer(key, layers)
    if len(heads) != layers or not 0 < min(heads) <= max(heads) <= 4096:
        reason = f"{heads[:8]} are not heads of {layers} layers"
        raise ModelFileError(f"key '{metadata.full_key(key)}'", reason)
    return heads


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    heads: int = nn.option_from(lambda metadata: max(read_heads(metadata)))
    layer_heads: tuple[int, ...] = nn.option_from(read_heads)
    key_length: int = nn.option("attention.key_length")
    windows: tuple[int | None, ...] = nn.option_from(
        partial(nn.read_windows, period=4, full_first=True)
    )
    gating: nn.Gating = nn.option_from(nn.read_gating)
    window_rope_base: float | None = nn.option("rope.freq_base_swa", default=None, at_most=1e12)
    window_rope_dimensions: int | None = nn.option("rope.dimension_count_swa", default=None)

    def layer_shape(self, index: int) -> nn.Heads:
        """The shape of a layer's attention."""
        return replace(self.shape, queries=self.layer_heads[index], activate_gate=nn.softplus)

    def layer_rope(self, index: int) -> nn.Rope:
        """Return how a layer rotates queries and keys."""
        rope = self.rope()
        if self.windows[index] is None:
            return rope
        base = self.window_rope_base or rope.base
        dimensions = self.window_rope_dimensions or rope.dimensions
        return replace(rope, base=base, dimensions=dimensions, scaling=RopeScaling())


class Attention(nn.SelfAttention):
    gate: nn.Linear = nn.gguf("attn_gate")


class Experts(nn.SparseMoE):
    router: nn.BiasedRouter = nn.gguf()
    shared: nn.SharedExpert = nn.gguf()


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: Attention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward | Experts = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation,
        shape: nn.Heads,
        o: Options,
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, nn.SiluFeedForward):
            return x + self.feed_forward(y)
        return self.feed_forward(y, o.gating) + x


class Laguna(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim, window) for window in o.windows]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        return [
            partial(
                layer,
                rotate=partial(o.layer_rope(index), positions=batch.positions),
                shape=o.layer_shape(index),
                o=o,
            )
            for index, layer in enumerate(self.layers)
        ]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further."""
        return self.options.layer_rope(index).move(keys, offsets)
