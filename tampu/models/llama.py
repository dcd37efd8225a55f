"""Llama, and the decoders that differ from it by a few weights or options.

A layer adds the attention of its normed input to the input, then a gated feed-forward part in the
same way. Attention has fewer heads of keys than of queries, and RoPE instead of embedded positions:

    x = x + attention(norm(x))
    x = x + down(silu(gate(norm(x))) · up(norm(x)))

The others have biases of queries, keys and values (Qwen 2, Seed-OSS), norms of queries and keys
(Qwen 3), a sliding window (Mistral), RoPE of a part of a head (Phi-4-mini) or experts instead of
the feed-forward part (Mixtral, Qwen's MoE models): weights and options that a file has or has not.
Which features RoPE pairs differs by architecture: neighbours (Llama, ERNIE 4.5), or the halves of a
head (Qwen, Phi, EXAONE 3).

Sources: arXiv:2302.13971 (Llama), arXiv:2407.21783 (Llama 3: RoPE factors), arXiv:2310.06825
(Mistral), arXiv:2401.04088 (Mixtral), arXiv:2407.10671 (Qwen 2), arXiv:2505.09388 (Qwen 3),
arXiv:2404.14219 (Phi-3), arXiv:2412.04862 (EXAONE 3.5).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor
from tampu.models.idefics3 import Idefics3
from tampu.models.internvl import InternVL
from tampu.models.llava import Llava
from tampu.models.pixtral import Pixtral
from tampu.models.whisper import Ultravox, Voxtral


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    window: int = nn.option("attention.sliding_window", default=0, at_least=0)
    used_experts: int = nn.option("expert_used_count", default=0, at_least=0, at_most=4096)
    renormalize: bool = True  # by architecture: no file holds it

    @property
    def gating(self) -> nn.Gating:
        """How experts are chosen."""
        return nn.Gating(self.used_experts, renormalize=self.renormalize)


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm", or_="post_attention_norm")
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
        return self.feed_forward(y, o.gating) + x  # GPUs add x to the experts' sum in this order


class Llama(nn.Decoder):
    layers: list[Layer]
    rope_factors: nn.RopeFactors = nn.gguf()

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Llava, Idefics3, InternVL, Pixtral)
    audio_types: ClassVar[tuple[type[nn.AudioModel], ...]] = (Ultravox, Voxtral)
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim, o.window or None)] * o.layers

    def rope(self) -> nn.Rope:
        """Return how queries and keys are rotated."""
        o = self.options
        return o.rope(self.rope_factors.of(self.context, o.rope_scaling))

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        rotate = partial(self.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.rope().move(keys, offsets)
