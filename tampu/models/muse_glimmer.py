"""Muse Glimmer, its text: norms before and behind the parts, gated attention, few rotated layers.

    x = norm(embedding(token))
    x = x + norm(output(sigmoid(gate(norm(x))) · attention(norm(x))))
    x = x + norm(down(silu(gate(norm(x))) · up(norm(x))))

Three layers of four have a sliding window; the others rotate nothing. Logits are scaled, then
capped. Source: the Muse Glimmer model card. Norm weights in files include the + 1 of the reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tampu import nn
from tampu.ml import Tensor

POST_NORM_EPSILON = 1e-8  # no file states it


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    window: int = nn.option("attention.sliding_window")
    has_window: tuple[bool, ...] = nn.option_from(nn.read_window_pattern(4))
    logit_scale: float = nn.option("logit_scale")
    logit_cap: float | None = nn.option("final_logit_softcapping", default=None)


class Attention(nn.SelfAttention):
    query_norm: nn.RMSNorm = nn.gguf("attn_q_norm")
    key_norm: nn.RMSNorm = nn.gguf("attn_k_norm")
    gate: nn.Linear = nn.gguf("attn_gate")


class Layer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: Attention = nn.gguf()
    post_attention_norm: nn.RMSNorm = nn.gguf("post_attention_norm")
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()
    post_feed_forward_norm: nn.RMSNorm = nn.gguf("post_ffw_norm")

    def __call__(
        self,
        x: Tensor,
        cache: nn.LayerCache,
        rows: Tensor | None,
        rotate: nn.Rotation | None,
        o: Options,
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, o.epsilon), cache, o.shape, rotate)
        x, y = nn.select_rows(rows, x, y)
        x = x + self.post_attention_norm(y, POST_NORM_EPSILON)
        y = self.feed_forward(self.feed_forward_norm(x, o.epsilon))
        return x + self.post_feed_forward_norm(y, POST_NORM_EPSILON)


class MuseGlimmer(nn.Decoder):
    layers: list[Layer]

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def cache_shapes(self) -> list[nn.LayerShape]:
        o = self.options
        return [
            nn.LayerShape(o.kv_heads, o.head_dim, o.window if has_window else None)
            for has_window in o.has_window
        ]

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embedding(tokens).rms_norm(self.options.epsilon)

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        o = self.options
        rotate = partial(o.rope(), positions=batch.positions)
        return [
            partial(layer, rotate=rotate if has_window else None, o=o)
            for layer, has_window in zip(self.layers, o.has_window, strict=True)
        ]

    def logits(self, hidden: Tensor) -> Tensor:
        o = self.options
        y = self.output(hidden) * o.logit_scale
        return nn.soft_cap(y, o.logit_cap) if o.logit_cap else y

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:
        """Rotate keys further, in the layers that rotate them."""
        o = self.options
        return o.rope().move(keys, offsets) if o.has_window[index] else keys
