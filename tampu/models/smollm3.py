"""SmolLM3: Llama in which each fourth layer rotates nothing (NoPE).

    x = x + attention(norm(x))
    x = x + down(silu(gate(norm(x))) · up(norm(x)))

Source: arXiv:2501.18795 (layers without positions); the SmolLM3 model card.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor

NOPE_INTERVAL = 4  # no file states it


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation | None,
        o: nn.DecoderOptions,
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        return x + self.feed_forward(self.feed_forward_norm(x, o.epsilon))


class SmolLM3(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[nn.DecoderOptions]] = nn.DecoderOptions
    options: nn.DecoderOptions

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        rotate = partial(self.options.rope(), positions=batch.positions)
        return [
            partial(layer, rotate=rotate if has_rope(index) else None, o=self.options)
            for index, layer in enumerate(self.layers)
        ]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further, in the layers that rotate them."""
        return self.options.rope().move(keys, offsets) if has_rope(index) else keys


def has_rope(layer: int) -> bool:
    """Return whether a layer rotates queries and keys."""
    return (layer + 1) % NOPE_INTERVAL != 0
