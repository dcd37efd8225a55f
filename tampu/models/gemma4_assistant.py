"""Gemma 4's assistants: four small layers that read the keys and values of the model's last ones.

Source: transformers' Gemma4AssistantForCausalLM. Those of E2B and E4B have groups of tokens
(`centroids`) besides, which shorten the search for the best one. llama.cpp's files do not have
them, and the logits of the tokens in these groups are the same without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml import RopeMode, Tensor
from tampu.models.gemma4 import SharingLayer, Tokens, read_pattern


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("block_count", at_most=1024)
    embedding: int = nn.option("embedding_length")
    features: int = nn.option("embedding_length_out")
    heads: int = nn.option("attention.head_count", at_most=4096)
    has_window: tuple[bool, ...] = nn.option_from(read_pattern)
    head_dim: int = nn.option("attention.key_length", default=512)
    head_dim_swa: int = nn.option("attention.key_length_swa", default=256)
    epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-6)
    rope_base: float = nn.option("rope.freq_base", default=1_000_000.0, at_most=1e12)
    rope_base_swa: float = nn.option("rope.freq_base_swa", default=10_000.0, at_most=1e12)

    def shape(self, layer: int) -> nn.Heads:
        """Return the shape of a layer's attention; its keys are the model's."""
        features = self.head_dim_swa if self.has_window[layer] else self.head_dim
        return nn.Heads(self.heads, self.heads, features, 1.0, self.epsilon)

    def rope(self, layer: int, factors: Tensor) -> nn.Rope:
        """Return how a layer rotates, as the model's layer of its kind."""
        if self.has_window[layer]:
            return nn.Rope(self.head_dim_swa, self.rope_base_swa, RopeMode.HALVES)
        return nn.Rope(self.head_dim, self.rope_base, RopeMode.HALVES, factors=factors)


class Gemma4Assistant(nn.Assistant):
    before: nn.Linear = nn.gguf("nextn.pre_projection")
    layers: list[SharingLayer] = nn.gguf("blk", count="layers")
    rope_factors: Tensor = nn.gguf("rope_freqs.weight")
    output_norm: nn.RMSNorm = nn.gguf("output_norm")
    output: nn.Linear = nn.gguf("token_embd")
    after: nn.Linear = nn.gguf("nextn.post_projection")

    options_type: ClassVar[type[Options]] = Options
    options: Options

    def check(self, features: int, vocabulary: int) -> None:
        o = self.options
        wanted = {
            self.before.weight: (o.embedding, 2 * features),
            self.after.weight: (features, o.embedding),
            self.output.weight: (vocabulary, o.embedding),
        }
        for tensor, shape in wanted.items():
            if tensor.shape != shape:
                reason = f"its shape is {[*tensor.shape]}, not {[*shape]}"
                raise ModelFileError(f"tensor {tensor.name}", reason)

    def __call__(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        positions: Tensor,
        caches: Sequence[nn.LayerCache],
        vocabulary: int,
    ) -> tuple[Tensor, Tensor]:
        o, x = self.options, self.before(embeddings.concat(hidden, 1))
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            rope = o.rope(index, self.rope_factors)
            at = Tokens(positions, rope, o.shape(index), nn.Gating(1), features=None)
            x = layer(x, cache, at)
        x = self.output_norm(x, o.epsilon)
        return self.output.first(x, vocabulary), self.after(x)
