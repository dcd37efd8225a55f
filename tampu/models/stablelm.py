"""StableLM and Orion: Llama with LayerNorm. StableLM rotates a part of each head.

    x = x + attention(norm(x))
    x = x + down(silu(gate(norm(x))) · up(norm(x)))

The 12B model norms each head of queries and keys with weights of its own, and has one norm in a
layer: attention and feed-forward part get the same input. Sources: arXiv:2402.17834
(StableLM 2), arXiv:2401.12246 (Orion).
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


class Attention(nn.SelfAttention):
    query_norm: nn.LayerNorm | None = nn.gguf("attn_q_norm")
    key_norm: nn.LayerNorm | None = nn.gguf("attn_k_norm")


class Layer(nn.Module):
    attention_norm: nn.LayerNorm = nn.gguf("attn_norm")
    attention: Attention = nn.gguf()
    feed_forward_norm: nn.LayerNorm | None = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()

    def __call__(
        self, x: Tensor, cache: nn.LayerCache, rows: Tensor | None, rotate: nn.Rotation, o: Options
    ) -> Tensor:
        normed = self.attention_norm(x, o.epsilon)
        y = self.attention(normed, cache, o.shape, rotate)
        x, y, normed = nn.select_rows(rows, x, y, normed)
        x = x + y
        if self.feed_forward_norm:
            normed = self.feed_forward_norm(x, o.epsilon)
        return x + self.feed_forward(normed)


class StableLM(nn.Decoder):
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
