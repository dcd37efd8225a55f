"""Qwen 2.5-VL, text: Qwen 2 with positions of three numbers, of time, row and column (M-RoPE).

Qwen2.5-Omni's text is the same, PaddleOCR-VL's is that without biases. Sources: arXiv:2409.12191,
arXiv:2502.13923, arXiv:2510.14528.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import RopeMode, Tensor
from tampu.models.paddleocr_vision import PaddleOCRVision
from tampu.models.qwen25omni_audio import Qwen25OmniAudio
from tampu.models.qwen25vl_vision import Qwen25VLVision


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    sections: nn.RopeSections = nn.option_from(nn.read_rope_sections)
    rope_mode: RopeMode = RopeMode.SECTIONS

    def rope(self, factors: Tensor | None = None) -> nn.Rope:
        return replace(super().rope(factors), sections=self.sections)


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(self.feed_forward_norm(x, o.epsilon))


class Qwen25VL(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Qwen25VLVision, PaddleOCRVision)
    audio_types: ClassVar[tuple[type[nn.AudioModel], ...]] = (Qwen25OmniAudio,)
    positions_per_token: int = 4
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
