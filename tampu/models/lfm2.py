"""LFM2: short convolutions in most layers, grouped-query attention in the others.

Source: arXiv:2511.23404. A convolution looks at a token and the few before it: what a sequence
keeps of its past there is a state of a few rows, however long it is. The mixtures of experts
(`lfm2moe`) have them in all but the first layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import RopeMode, Tensor
from tampu.ml.metadata import Metadata
from tampu.ml.recurrence import fits_parts
from tampu.models.lfm2_vision import Lfm2Vision


def read_key_heads(metadata: Metadata) -> tuple[int, ...]:
    """Return the key heads of each layer; 0 for those with a convolution."""
    key, layers = "attention.head_count_kv", metadata.integer("block_count")
    heads = tuple(int(each) for each in metadata.integers(key))
    if len(heads) != layers or not 0 < max(heads) <= 4096 or set(heads) - {0, max(heads)}:
        reason = f"{heads[:8]} are not 0 or the same number of heads for {layers} layers"
        raise ModelFileError(f"key '{metadata.full_key(key)}'", reason)
    return heads


def read_gating(metadata: Metadata) -> nn.Gating:
    """Return how experts are chosen, if there are any."""
    has_experts = metadata.has("expert_used_count")
    return nn.read_gating(metadata, renormalize=True) if has_experts else nn.Gating(0)


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("block_count", at_most=1024)
    embedding: int = nn.option("embedding_length")
    heads: int = nn.option("attention.head_count", at_most=4096)
    layer_kv_heads: tuple[int, ...] = nn.option_from(read_key_heads)
    epsilon: float = nn.option("attention.layer_norm_rms_epsilon")
    rope_base: float = nn.option("rope.freq_base", default=1e6, at_most=1e12)
    width: int = nn.option("shortconv.l_cache", at_least=2, at_most=64)
    gating: nn.Gating = nn.option_from(read_gating)

    @property
    def shape(self) -> nn.Heads:
        """The shape of attention."""
        features = self.embedding // self.heads
        kv_heads = max(self.layer_kv_heads)
        return nn.Heads(self.heads, kv_heads, features, features**-0.5, self.epsilon)


class ShortConvolution(nn.Module):
    """Gated from both sides: out(c · convolved(b · x)), all three projected from the input."""

    project: nn.Linear = nn.gguf("shortconv.in_proj")
    kernel: Tensor = nn.gguf("shortconv.conv.weight")
    output: nn.Linear = nn.gguf("shortconv.out_proj")

    def __call__(self, x: Tensor, cache: nn.LayerCache) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        before, after, values = self.project(x).split(3)
        return self.output(after * cache.advance((before * values,), self.convolved))

    def convolved(self, inputs: nn.Tensors, states: nn.States) -> Tensor:
        """Slide over the last inputs, which are the state, and the new ones."""
        (x,), (past,) = inputs, states
        return nn.slide(x, past, self.kernel)


class Experts(nn.SparseMoE):
    router: nn.BiasedRouter = nn.gguf()


class Layer(nn.Module):
    operator_norm: nn.RMSNorm = nn.gguf("attn_norm")
    operator: nn.SelfAttention | ShortConvolution = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward | Experts = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        normed = self.operator_norm(x, o.epsilon)
        if isinstance(self.operator, ShortConvolution):
            y = self.operator(normed, cache)
        else:
            y = self.operator(normed, cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, Experts):
            return self.feed_forward(y, o.gating) + x
        return x + self.feed_forward(y)


class Lfm2(nn.Decoder):
    layers: list[Layer]
    output_norm: nn.RMSNorm = nn.gguf("token_embd_norm")

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Lfm2Vision,)
    options: Options

    def cache_shapes(self) -> list[nn.CacheShape]:
        o = self.options
        inputs = (o.embedding,) if fits_parts(o.embedding, o.width) else ()
        state = nn.StateShape(((o.embedding, o.width - 1),), inputs)
        rows = nn.LayerShape(o.shape.keys, o.shape.features)
        return [rows if heads else state for heads in o.layer_kv_heads]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rope = nn.Rope(o.shape.features, o.rope_base, RopeMode.HALVES)
        rotate = partial(rope, positions=batch.positions)
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]
