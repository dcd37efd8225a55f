"""Llama 3.2 Vision, text: a Llama with layers that attend to an image beside the text.

Source: arXiv:2407.21783, section 7. What those layers read of an image depends on the image alone:
the vision encoder computes their keys and values once. Without an image they are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.ml import Graph, RopeMode, Tensor
from tampu.models.mllama_vision import MllamaVision

_NEVER = -1e30  # the logit of a token that is never sampled


@dataclass(frozen=True, kw_only=True)
class Options(nn.DecoderOptions):
    rope_mode: RopeMode = RopeMode.INTERLEAVED


class SelfLayer(nn.Module):
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


class CrossAttention(nn.Module):
    query: nn.Linear = nn.gguf("cross_attn_q_proj")
    query_norm: nn.RMSNorm = nn.gguf("cross_attn_q_norm")
    output: nn.Linear = nn.gguf("cross_attn_o_proj")

    def __call__(
        self, x: Tensor, image: nn.CrossAttentionInputs, index: int, heads: nn.Heads
    ) -> Tensor:
        """Return (tokens, features); `index` counts the layers that attend to an image."""
        q = self.query(x).reshape(-1, heads.queries, heads.features)
        q = self.query_norm(q, heads.epsilon)
        rows, width = image.embeddings.shape[0], heads.keys * heads.features
        steps = (image.embeddings.shape[1] * 4, heads.features * 4)
        k, v = (
            image.embeddings.strided(
                (rows, heads.keys, heads.features),
                steps,
                (2 * index + part) * width * 4,
                context=x.context,
            )
            for part in (0, 1)
        )
        return self.output(nn.attend(q, k, v, image.mask)) * image.sees_image


class CrossLayer(nn.Module):
    attention_norm: nn.RMSNorm = nn.gguf("attn_norm")
    attention: CrossAttention = nn.gguf()
    attention_gate: Tensor = nn.gguf("cross_attn_attn_gate")
    feed_forward_norm: nn.RMSNorm = nn.gguf("ffn_norm")
    feed_forward: nn.SiluFeedForward = nn.gguf()
    feed_forward_gate: Tensor = nn.gguf("cross_attn_mlp_gate")

    def __call__(
        self,
        x: Tensor,
        image: nn.CrossAttentionInputs,
        index: int,
        heads: nn.Heads,
        context: Graph,
    ) -> Tensor:
        y = self.attention(self.attention_norm(x, heads.epsilon), image, index, heads)
        x = x + y * opened(self.attention_gate, context)
        y = self.feed_forward(self.feed_forward_norm(x, heads.epsilon)) * image.sees_image
        return x + y * opened(self.feed_forward_gate, context)


def opened(gate: Tensor, context: Graph) -> Tensor:
    """Return tanh of a weight (1,), which stays as it is."""
    return gate.strided((1,), (), context=context).tanh()


class Mllama(nn.Decoder):
    layers: list[SelfLayer | CrossLayer]
    rope_factors: Tensor | None = nn.gguf("rope_freqs.weight")

    options_type: ClassVar[type[Options]] = Options
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (MllamaVision,)
    pads_logits: ClassVar[bool] = True
    options: Options

    @property
    def crossed_features(self) -> int:
        """The features of each row: keys and values of all layers that attend to images."""
        layers = sum(isinstance(layer, CrossLayer) for layer in self.layers)
        return 2 * layers * self.options.kv_heads * self.options.head_dim

    def cache_shapes(self) -> list[nn.CacheShape]:
        """Return the shapes of the layers that attend to the text; the others have no cache."""
        shape = nn.LayerShape(self.options.kv_heads, self.options.head_dim)
        return [shape if isinstance(layer, SelfLayer) else () for layer in self.layers]

    def steps(self, batch: nn.Batch) -> Iterable[nn.Step]:
        """Return the layers that attend to the text."""
        o = self.options
        rotate = partial(o.rope(self.rope_factors), positions=batch.positions)
        text = (layer for layer in self.layers if isinstance(layer, SelfLayer))
        return [partial(layer, rotate=rotate, o=o) for layer in text]

    def hidden(self, batch: nn.Batch, caches: Sequence[nn.LayerCache]) -> Tensor:
        o, text, index = self.options, iter(self.steps(batch)), 0
        x = batch.place(self.embed(batch.tokens))
        for layer, cache in zip(self.layers, caches, strict=True):
            if isinstance(layer, SelfLayer):
                x = next(text)(x, cache, rows=None)
                continue
            if batch.cross_attention:
                x = layer(x, batch.cross_attention, index, o.shape, batch.context)
            index += 1
        return self.output_norm(x.rows(batch.outputs), o.epsilon)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits; those of tokens without an output row, the image's, are -1e30."""
        logits = self.output(hidden)
        count, known = logits.shape
        absent = self.token_embedding.weight.shape[0] - known
        if absent <= 0 or hidden.context is None:
            return logits
        never = hidden.context.constant(np.full((count, absent), _NEVER))
        return logits.concat(never, 1)

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor:  # noqa: ARG002
        return self.options.rope(self.rope_factors).move(keys, offsets)
