"""What decoders share: the options in nearly every file, and embeddings, layers, norm and output.

An architecture adds its own options and its own layer, which states the order of its operations:

    x -> place(embed(tokens)) -> layer 0 -> ... -> layer n-1 -> output_norm -> output -> logits
                                                   keeps only the rows whose logits are wanted
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tampu.errors import ModelFileError
from tampu.ml import RopeMode, RopeScaling, Tensor
from tampu.ml.metadata import Metadata
from tampu.ml.recurrence import fits_parts
from tampu.ml.rotary import Rope
from tampu.nn.attention import Heads, Rotation
from tampu.nn.cache import LayerCache
from tampu.nn.linear import Embedding, Linear
from tampu.nn.model import Batch, CachePart, CacheShape, Model, StateShape, cache_parts
from tampu.nn.module import gguf
from tampu.nn.mtp import MTPLayer, load_states, shift_states, store_states
from tampu.nn.norm import LayerNorm, RMSNorm, UnscaledLayerNorm
from tampu.nn.options import option, option_from
from tampu.nn.rank import RankHead
from tampu.nn.rope import read_rope_scaling


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """The options of decoders with grouped-query attention and RoPE, by GGUF's standard keys.

    An architecture adds its own, and declares an option again to change its key or its default.
    """

    layers: int = option("block_count", at_most=1024)
    embedding: int = option("embedding_length")
    context: int = option("context_length")  # only checked: the engine reads it as well
    heads: int = option("attention.head_count", at_most=4096)
    given_kv_heads: int | None = option("attention.head_count_kv", default=None, at_most=4096)
    key_length: int | None = option("attention.key_length", default=None)
    epsilon: float = option("attention.layer_norm_rms_epsilon")
    rope_base: float = option("rope.freq_base", default=10_000.0, at_most=1e12)
    rope_dimensions: int | None = option("rope.dimension_count", default=None)
    rope_scaling: RopeScaling = option_from(read_rope_scaling)
    rope_mode: RopeMode = RopeMode.HALVES  # by architecture: no file holds it

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.given_kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.key_length or self.embedding // self.heads

    @property
    def shape(self) -> Heads:
        """The shape of attention."""
        scale = self.head_dim**-0.5
        return Heads(self.heads, self.kv_heads, self.head_dim, scale, self.epsilon)

    def rope(self, factors: Tensor | None = None) -> Rope:
        """Return how queries and keys are rotated, with the file's factors of the frequencies."""
        dimensions = self.rope_dimensions or self.head_dim
        return Rope(dimensions, self.rope_base, self.rope_mode, self.rope_scaling, factors)


def read_layers(metadata: Metadata) -> int:
    """Return the number of layers without those of multi-token prediction, which are the last."""
    counts = "block_count", "nextn_predict_layers"
    blocks, appended = metadata.integer(counts[0]), metadata.integer(counts[1], 0)
    if not 1 <= blocks <= 1024 or not 0 <= appended < blocks:
        key = metadata.full_key(counts[bool(appended)])
        raise ModelFileError(f"key '{key}'", f"{appended} of {blocks} layers, at most 1024")
    return blocks - appended


@dataclass(frozen=True, kw_only=True)
class MTPDecoderOptions(DecoderOptions):
    """The options of decoders whose files may have layers of multi-token prediction, the last ones.

    The first of these is loaded if the architecture has an `mtp_type` and it is asked for.
    """

    layers: int = option_from(read_layers)
    mtp_layers: int = option("nextn_predict_layers", default=0, at_least=0)


def read_kv_heads(metadata: Metadata) -> int:
    """Return the key heads of the layers with attention, where the file lists 0 for the others."""
    key = "attention.head_count_kv"
    heads = set(metadata.integers_per_layer(key, metadata.integer("block_count"))) - {0}
    if len(heads) != 1 or not 1 <= max(heads) <= 4096:
        reason = f"{sorted(heads)[:8]} are not one number of heads of 1 to 4096"
        raise ModelFileError(f"key '{metadata.full_key(key)}'", reason)
    return heads.pop()


class Step(Protocol):
    """A layer of a decoder with its arguments bound, except for its input, cache and rows."""

    def __call__(self, x: Tensor, cache: LayerCache, *, rows: Tensor | None) -> Tensor:
        """Return the layer's output; if `rows` (I32) is given, of those tokens only."""
        ...


def run_layers(
    x: Tensor,
    batch: Batch,
    caches: Sequence[LayerCache],
    layers: Iterable[Step],
    *,
    every: bool = False,
) -> Tensor:
    """Return the last layer's output for x, only for the tokens that `batch.outputs` names.

    All layers need all tokens' keys and values; what follows the last attention, only the outputs.
    With `every` the output is that of all tokens.
    """
    last = -1 if every else len(caches) - 1
    for index, (layer, cache) in enumerate(zip(layers, caches, strict=True)):
        x = layer(x, cache, rows=batch.outputs if index == last else None)
        x = batch.add_deepstack(index, x)
    return x


def select_rows(rows: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the given rows of each tensor (tokens, features); all rows if `rows` is None."""
    return tensors if rows is None else tuple(tensor.rows(rows) for tensor in tensors)


class Decoder(Model):
    """A model of token embeddings, layers, a norm and an output projection, or a head that ranks.

    An architecture says which kind of `layers` it has, and what `steps` gives each of them; it
    overrides `embed` and `logits` where it does more there, and declares `output_norm` again where
    it is not an RMS norm.
    """

    token_embedding: Embedding = gguf("token_embd")
    layers: list[Any] = gguf("blk", count="layers")
    output_norm: RMSNorm | LayerNorm | UnscaledLayerNorm = gguf("output_norm")
    output: Linear = gguf("output", or_="token_embd")
    rank_head: RankHead = gguf()

    @property
    def ranks(self) -> bool:
        """Whether the file has a head that ranks."""
        return self.rank_head.is_there

    @property
    def unused(self) -> tuple[str, ...]:
        """Layers of multi-token prediction."""
        return self.mtp_prefixes

    @property
    def mtp_prefixes(self) -> tuple[str, ...]:
        """Of the layers after the last one."""
        o = self.options
        count = o.mtp_layers if isinstance(o, MTPDecoderOptions) else 0
        return tuple(f"blk.{o.layers + index}." for index in range(count))

    def with_mtp(self, own: Sequence[CacheShape], mtp: CachePart | None = None) -> list[CacheShape]:
        """Return the shapes of the caches of all layers, that of multi-token prediction included.

        It has keys and values of its own, and the last hidden state of each sequence.

        Args:
            own: of the other layers.
            mtp: of its keys and values; None: as those of the last layer.
        """
        if self.mtp is None:
            return [*own]
        features = self.options.embedding
        inputs = (features,) if fits_parts(features, 2) else ()
        state = StateShape(((features, 1),), inputs)
        return [*own, (*cache_parts(mtp or own[-1]), state)]

    @abstractmethod
    def steps(self, batch: Batch) -> Iterable[Step]:
        """Return the layers with their arguments for a batch."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (n, features) of tokens I32, (n,)."""
        return self.token_embedding(tokens)

    def hidden(self, batch: Batch, caches: Sequence[LayerCache]) -> Tensor:
        """Return the final hidden states (m, features) of the tokens that `batch.outputs` names.

        With a layer of multi-token prediction all tokens' keys and values are written there too.
        """
        x, epsilon = batch.place(self.embed(batch.tokens)), self.options.epsilon
        if self.mtp is None:
            x = run_layers(x, batch, caches, self.steps(batch))
            return self.output_norm(x, epsilon)
        *own, cache = caches
        embedded = self._embed_for(self.mtp, batch, x)
        x = run_layers(x, batch, own, self.steps(batch), every=True)
        normed = self.output_norm(x, epsilon)
        before = shift_states(normed if self.mtp.reads_normed else x, cache)
        self.mtp.store(embedded, before, cache, self._rotate(batch), self.options)
        return normed.rows(batch.outputs)

    def draft_logits(self, batch: Batch, caches: Sequence[LayerCache], vocabulary: int) -> Tensor:
        """Return the logits after guessed tokens by the layer of multi-token prediction."""
        if self.mtp is None:
            return super().draft_logits(batch, caches, vocabulary)
        cache, mtp, epsilon = caches[-1], self.mtp, self.options.epsilon
        embedded = self._embed_for(mtp, batch, None)
        before = load_states(embedded, cache)
        x = mtp(embedded, before, cache, self._rotate(batch), self.options)
        normed = (mtp.output_norm or self.output_norm)(x, epsilon)
        store_states(normed if mtp.reads_normed else x, cache)
        normed = normed.rows(batch.outputs)
        return (mtp.output or self.output).first(normed, vocabulary)

    def _embed_for(self, mtp: MTPLayer, batch: Batch, embedded: Tensor | None) -> Tensor:
        """Return the embeddings that a layer of multi-token prediction reads.

        `embedded`: those that the first layer reads; None: they are not in the graph.
        """
        if mtp.token_embedding:
            return batch.place(mtp.token_embedding(batch.tokens))
        return embedded if embedded else batch.place(self.embed(batch.tokens))

    def _rotate(self, batch: Batch) -> Rotation:
        return partial(self.options.rope(), positions=batch.positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits (m, vocabulary) of hidden states."""
        return self.output(hidden)

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits (m, vocabulary) of hidden states; (m, labels) if the model ranks."""
        return self.rank_head(hidden) if self.ranks else self.logits(hidden)
