"""Apertus: norms of queries and keys, and a feed-forward part with xIELU instead of a gate.

    x = x + attention(norm(x))
    x = x + down(xielu(up(norm(x))))

The activation's four numbers are those of each layer. Sources: arXiv:2509.14233, arXiv:2411.13010
(xIELU).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import Tensor
from tampu.ml.metadata import Metadata

KEYS = ("xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps")

Numbers = tuple[float, float, float, float]


def read_numbers(metadata: Metadata) -> tuple[Numbers, ...]:
    """Return the activation's numbers of each layer, in the order of the keys."""
    layers = metadata.integer("block_count")
    lists = [metadata.numbers(key).tolist() for key in KEYS]
    for key, numbers in zip(KEYS, lists, strict=True):
        if len(numbers) != layers:
            raise ModelFileError(f"key '{key}'", f"{len(numbers)} numbers for {layers} layers")
    return tuple(zip(*lists, strict=True))


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    xielu: tuple[Numbers, ...] = nn.option_from(read_numbers)


class Attention(nn.SelfAttention):
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    key_norm: nn.RMSNorm = nn.gguf("attn_k_norm")


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: Attention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.FeedForward = nn.gguf()

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation,
        o: Options,
        numbers: Numbers,
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + y
        y = self.feed_forward_norm(x, o.epsilon)
        return x + self.feed_forward(y, lambda up: nn.xielu(up, *numbers))


class Apertus(nn.Decoder):
    layers: list[Layer]
    rope_factors: nn.RopeFactors = nn.gguf()

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers

    def rope(self) -> nn.Rope:
        """Return how queries and keys are rotated."""
        o = self.options
        return o.rope(self.rope_factors.of(self.context, o.rope_scaling))

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o, rotate = self.options, partial(self.rope(), positions=batch.positions)
        return [
            partial(layer, rotate=rotate, o=o, numbers=numbers)
            for layer, numbers in zip(self.layers, o.xielu, strict=True)
        ]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.rope().move(keys, offsets)
