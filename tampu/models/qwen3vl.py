"""Qwen3-VL and Qwen3-ASR, text: Qwen 3 with interleaved M-RoPE, images add to its first layers.

Dense or a mixture of experts. Source: arXiv:2511.21631. What the layers of the vision encoder add
follows the embedding in each row of an image (DeepStack, arXiv:2406.04334).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import RopeMode, Tensor
from tampu.ml.metadata import Metadata
from tampu.models.qwen3_audio import Qwen3Audio
from tampu.models.qwen3vl_vision import DEEPSTACK, Qwen3VLVision


def read_deepstack(metadata: Metadata) -> int:
    """Return to how many layers an image adds something; the last layer is not one of them."""
    layers, count = metadata.integer("block_count"), metadata.integer(DEEPSTACK, 0)
    if not 0 <= count < layers:
        raise ModelFileError(f"key '{metadata.full_key(DEEPSTACK)}'", f"{count} of {layers} layers")
    return count


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    sections: nn.RopeSections = nn.option_from(nn.read_rope_sections)
    deepstack: int = nn.option_from(read_deepstack)
    used_experts: int = nn.option("expert_used_count", default=0, at_least=0, at_most=4096)
    rope_mode: RopeMode = RopeMode.INTERLEAVED_SECTIONS

    @property
    def gating(self) -> nn.Gating:
        """How experts are chosen."""
        return nn.Gating(self.used_experts, renormalize=True)

    def rope(self, factors: Tensor | None = None) -> nn.Rope:
        return replace(super().rope(factors), sections=self.sections)


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward | nn.SparseMoE = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        if isinstance(self.feed_forward, nn.SiluFeedForward):
            return x + self.feed_forward(y)
        return self.feed_forward(y, o.gating) + x


class Qwen3VL(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Qwen3VLVision,)
    audio_types: ClassVar[tuple[type[nn.AudioModel], ...]] = (Qwen3Audio,)
    positions_per_token: int = 4
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]

    def hidden(self, batch: nn.Batch, caches: Sequence[nn.LayerCache]) -> Tensor:
        return super().hidden(batch.split_deepstack(self.options.deepstack), caches)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope().move(keys, offsets)
