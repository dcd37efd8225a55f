"""GLM-4.5 to 4.7, dots.llm1, Ling 2 and Hy3: mixtures of experts in all but the first layers.

    x = x + attention(norm(x))
    x = x + experts(norm(x))        in the first layers down(silu(gate(norm(x))) · up(norm(x)))

The router weights experts by the sigmoid of their scores, a bias changes the choice only, and one
expert is for all tokens. GLM and Ling rotate half of each head, and Ling's experts are in groups.

Sources: arXiv:2508.06471 (GLM-4.5), arXiv:2506.05767 (dots.llm1), arXiv:2510.22115 (Ling 2),
arXiv:2412.19437 (the router, and multi-token prediction).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor


@dataclass(frozen=True, kw_only=True)
class Options(nn.MTPDecoderOptions):
    gating: nn.Gating = nn.option_from(nn.read_gating)


class Experts(nn.SparseMoE):
    router: nn.BiasedRouter = nn.gguf()
    shared: nn.SharedExpert = nn.gguf()


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: nn.SelfAttention = nn.gguf()
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm", or_="post_attention_norm")
    feed_forward: nn.SiluFeedForward | Experts = nn.gguf()

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

    def store(self, x: Tensor, cache: nn.LayerCache, rotate: nn.Rotation, o: Options) -> None:
        """Write keys and values only."""
        self.attention.store(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)


class MTPLayer(nn.MTPLayer):
    layer: Layer = nn.gguf()

    reads_normed: ClassVar[bool] = True


class Glm4Moe(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    mtp_type: ClassVar[type[nn.MTPLayer]] = MTPLayer
    options: Options

    def cache_shapes(self) -> list[nn.CacheShape]:
        o = self.options
        return self.with_mtp([nn.LayerShape(o.kv_heads, o.head_dim)] * o.layers)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        rotate = partial(self.options.rope(), positions=batch.positions)
        return [partial(layer, rotate=rotate, o=self.options) for layer in self.layers]

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        """Rotate keys further."""
        return self.options.rope().move(keys, offsets)
