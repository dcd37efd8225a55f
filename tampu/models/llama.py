"""Llama, and the decoders that differ from it by a few weights: Mistral, Mixtral, Qwen 2, Qwen 3.

A layer adds the attention of its normed input to the input, then a gated feed-forward part in the
same way. Attention has fewer heads of keys than of queries, and RoPE instead of embedded positions:

    x = x + attention(norm(x))
    x = x + down(silu(gate(norm(x))) · up(norm(x)))

The others have biases of queries, keys and values (Qwen 2), norms of queries and keys (Qwen 3), a
sliding window (Mistral) or experts instead of the feed-forward part (Mixtral, Qwen's MoE models):
weights and options that a file has or has not. Which features RoPE pairs differs by architecture.

Sources: arXiv:2302.13971 (Llama), arXiv:2407.21783 (Llama 3: RoPE factors), arXiv:2310.06825
(Mistral), arXiv:2401.04088 (Mixtral), arXiv:2407.10671 (Qwen 2), arXiv:2505.09388 (Qwen 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor
from tampu.models.llava import Llava
from tampu.models.pixtral import Pixtral


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    window: int | None = nn.option("attention.sliding_window", default=None)
    used_experts: int = nn.option("expert_used_count", default=0, at_least=0, at_most=4096)
    renormalize: bool = True  # by architecture: no file holds it

    @property
    def gating(self) -> nn.Gating:
        """How experts are chosen."""
        return nn.Gating(self.used_experts, renormalize=self.renormalize)


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
        return self.feed_forward(y, o.gating) + x  # GPUs add x to the experts' sum in this order


class Llama(nn.Decoder):
    layers: list[Layer]
    rope_factors: Tensor | None = nn.gguf("rope_freqs.weight")

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Llava, Pixtral)
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim, o.window)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(self.rope_factors), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=o) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope(self.rope_factors).move(keys, offsets)
