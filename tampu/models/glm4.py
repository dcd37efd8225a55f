"""GLM-4: norms before and behind attention and feed-forward parts, and half of each head rotated.

    x = x + norm(attention(norm(x)))
    x = x + norm(down(silu(gate(norm(x))) · up(norm(x))))

Of its models that see, a token has a position of three numbers, and files have queries and keys in
the order of halves. They may have layers of multi-token prediction after the others, which are not
computed. Source: arXiv:2406.12793.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, Tensor
from tampu.ml.metadata import Metadata
from tampu.models.glm4_vision import Glm4Vision


def _sections(metadata: Metadata) -> nn.RopeSections | None:
    """Return the sections of models that see; None for the others."""
    has_sections = metadata.has("rope.dimension_sections")
    return nn.read_rope_sections(metadata) if has_sections else None


def _mode(metadata: Metadata) -> RopeMode:
    return RopeMode.SECTIONS if _sections(metadata) else RopeMode.INTERLEAVED


@dataclass(frozen=True, kw_only=True)
class Options(nn.MTPDecoderOptions):
    sections: nn.RopeSections | None = nn.option_from(_sections)
    rope_mode: RopeMode = nn.option_from(_mode)

    def rope(self, factors: Tensor | None = None) -> nn.Rope:
        rope = super().rope(factors)
        return replace(rope, sections=self.sections) if self.sections else rope


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    post_attention_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()
    post_feed_forward_norm: nn.RMSNorm = nn.gguf("post_ffw_norm")

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + self.post_attention_norm(y, o.epsilon)
        y = self.feed_forward(self.feed_forward_norm(x, o.epsilon))
        return x + self.post_feed_forward_norm(y, o.epsilon)


class Glm4(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Glm4Vision,)
    options: Options

    @property
    def positions_per_token(self) -> int:
        return 4 if self.options.sections else 1

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        rotate = partial(self.options.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope().move(keys, offsets)
