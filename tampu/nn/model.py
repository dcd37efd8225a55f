"""The interface of every architecture to the runner."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from tampu.errors import ComputeError, ShapeError
from tampu.ml import Graph, Tensor
from tampu.nn.assistant import Assistant
from tampu.nn.cache import LayerCache
from tampu.nn.media import AudioModel, Encoder, MediaItem, VisionModel
from tampu.nn.module import Module
from tampu.nn.mtp import MTPLayer


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of one graph; their data is set only when it is computed.

    Attributes:
        tokens: I32, (n,): token ids.
        positions: I32, (n,): each token's place in its sequence; (k, n) for models that take k.
        outputs: I32, (m,): the tokens whose logits are wanted.
        embeddings: F32, (rows, features): of images.
        embedded_rows: I64, (rows,): the tokens that they replace.
        deepstack: F32, (rows, features) each: what is added for the same tokens to the results
            of the first layers (arXiv:2406.04334).
        cross_attention: what layers with cross-attention read; None: they are skipped.
    """

    tokens: Tensor
    positions: Tensor
    outputs: Tensor
    embeddings: Tensor | None = None
    embedded_rows: Tensor | None = None
    deepstack: tuple[Tensor, ...] = ()
    cross_attention: CrossAttentionInputs | None = None

    @property
    def context(self) -> Graph:
        """The graph that is being built."""
        if self.tokens.context is None:
            raise ShapeError(f"{self.tokens!r} is not the input of a graph")
        return self.tokens.context

    def place(self, hidden: Tensor) -> Tensor:
        """Return the tokens' embeddings (n, features), those of placeholders replaced by images'.

        They are written into a copy: a table's rows are never overwritten. Every model calls this
        once, after the operations on the embeddings of tokens alone.
        """
        if self.embeddings is None or self.embedded_rows is None:
            return hidden
        return hidden.contiguous().set_rows(self.embeddings, self.embedded_rows)

    def split_deepstack(self, count: int) -> Batch:
        """Return the batch for images whose rows hold an embedding and what `count` layers add."""
        if self.embeddings is None:
            return self
        first, *others = self.embeddings.split(1 + count)
        return replace(self, embeddings=first, deepstack=tuple(others))

    def add_deepstack(self, layer: int, x: Tensor) -> Tensor:
        """Return the result (n, features) of a layer, with what images add to it."""
        if layer >= len(self.deepstack) or self.embedded_rows is None:
            return x
        return x + (x * 0.0).set_rows(self.deepstack[layer], self.embedded_rows)


@dataclass(frozen=True, slots=True)
class CrossAttentionInputs:
    """Embedded images that layers with cross-attention read, and which tokens see them.

    Attributes:
        embeddings: F32, (rows, features): as the model's encoder returned them.
        mask: F16, (n, rows): 0 where a token attends to a row, -inf elsewhere; all 0 for tokens
            that attend to no image, whose results are discarded.
        sees_image: F32, (n, 1): 1 for the tokens that attend to an image, 0 for the others.
    """

    embeddings: Tensor
    mask: Tensor
    sees_image: Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of the cache of a layer with attention.

    Attributes:
        kv_heads: key and value heads.
        head_dim: features of each key.
        window: how many positions a token attends to, itself included; None: all.
        is_symmetric: whether the window also ends as many positions after a token as it begins
            before it, for tokens that attend to one another both ways.
        chunk: a token attends to its own chunk of so many positions only; None: to all.
        value_dim: features of each value; None: `head_dim`.
        latent_rank: values are the first so many features of the keys and are not stored
            themselves (multi-head latent attention, arXiv:2405.04434); None: they are stored.
        is_causal: whether the tokens of an image attend to earlier ones only, although those of
            other layers attend to one another both ways.
        has_alibi: whether the mask has the distance of each position, which attention multiplies by
            a slope of each head (arXiv:2108.12409); it is then not 0 where a token attends.
        shared_layer: the index of an earlier layer whose keys and values this one reads; it stores
            none of its own. The rest of the shape is that of the other layer.
    """

    kv_heads: int
    head_dim: int
    window: int | None = None
    chunk: int | None = None
    value_dim: int | None = None
    latent_rank: int | None = None
    shared_layer: int | None = None
    is_causal: bool = False
    is_symmetric: bool = False
    has_alibi: bool = False

    @property
    def value_features(self) -> int:
        """Features of each value that attention reads."""
        return self.latent_rank or self.value_dim or self.head_dim

    @property
    def widths(self) -> tuple[int, int]:
        """Elements that the layer stores of a token: of its keys, and of its values."""
        if self.shared_layer is not None:
            return 0, 0
        return self.kv_heads * self.head_dim, (
            0 if self.latent_rank else self.kv_heads * self.value_features
        )


@dataclass(frozen=True, slots=True)
class StateShape:
    """The shape of the cache of a recurrent layer: its states, F32.

    Attributes:
        shapes: of each of its states, for one sequence: vectors, matrices, ...
        inputs: features of each of the inputs that it hands to its cache. Those of a draft are kept
            instead of the state after it, if the kernels can replay them; (): they never can.
    """

    shapes: tuple[tuple[int, ...], ...]
    inputs: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Elements of all its states, for one sequence."""
        return sum(math.prod(shape) for shape in self.shapes)


CachePart: TypeAlias = LayerShape | StateShape

CacheShape: TypeAlias = CachePart | tuple[CachePart, ...]
"""What a layer stores: keys and values or states; of a tuple each part, () for a layer without."""


def cache_parts(*shapes: CacheShape) -> list[CachePart]:
    """Return the parts of the caches of layers."""
    every = [shape if isinstance(shape, tuple) else (shape,) for shape in shapes]
    return [part for parts in every for part in parts]


class Model(Module):
    """An architecture with its weights.

    `hidden` and `head` run when a graph is built, not for each token: they may branch on options
    and shapes, never on values.

    Attributes:
        options_type: the dataclass of its options.
        vision_types: vision encoders, bound if a file has their tensors; the first is that of a
            file with text and vision.
        has_segments: whether the second component is the segment of the text, from 0 on.
        default_rank_pooling: which states of a pair the head that ranks reads if the file does not
            say so: "cls" (the first token's), "last", or "mean".
        pads_logits: whether files have fewer rows of the output than tokens, and `head` adds them.
        context: the longest sequence; set when a model is loaded.
        options: of this file.
        audio_types: audio encoders, as `vision_types`.
        mtp_type: the class of its layer of multi-token prediction; None: it is not supported.
        mtp: this layer; None for a model or a file without one, or if it is not used.
        assistant: guesses next tokens, from a file of its own; None: there is none.
        vision: the vision encoder; None for a model or a file without one.
        audio: the audio encoder; None for a model or a file without one.
    """

    options_type: ClassVar[type[Any]]
    vision_types: ClassVar[tuple[type[VisionModel], ...]] = ()
    audio_types: ClassVar[tuple[type[AudioModel], ...]] = ()
    mtp_type: ClassVar[type[MTPLayer] | None] = None
    has_segments: ClassVar[bool] = False
    default_rank_pooling: ClassVar[str] = "last"
    pads_logits: ClassVar[bool] = False
    context: int = 0
    options: Any
    vision: VisionModel | None = None
    audio: AudioModel | None = None
    mtp: MTPLayer | None = None
    assistant: Assistant | None = None

    @property
    def positions_per_token(self) -> int:
        """The number of components of a token's position."""
        return 1

    @property
    def crossed_features(self) -> int:
        """The features of each row of images that layers with cross-attention read; 0: none do."""
        return 0

    @property
    def encoders(self) -> tuple[Encoder, ...]:
        """Those of images and of sounds that it has."""
        return tuple(each for each in (self.vision, self.audio) if each)

    def encoder_of(self, item: MediaItem) -> Encoder:
        """Return the encoder that an image, or a part of a sound, was prepared for.

        Raises:
            ComputeError: if the model does not have it.
        """
        encoder = self.audio if item.is_audio else self.vision
        if encoder is None:
            raise ComputeError(f"the model has no {'audio' if item.is_audio else 'vision'} encoder")
        return encoder

    @property
    def unused(self) -> tuple[str, ...]:
        """Prefixes of tensors that files may have and that the model ignores."""
        return ()

    @property
    def mtp_prefixes(self) -> tuple[str, ...]:
        """The prefix of the tensors of each layer of multi-token prediction that files may have."""
        return ()

    @property
    def max_bidirectional_tokens(self) -> int | None:
        """The maximum length of a text whose tokens attend to one another both ways.

        Such a text must be computed in one batch; None: tokens attend to earlier ones only.
        """
        return None

    @property
    def max_positions(self) -> int | None:
        """How many positions have an embedding; None: positions are not embedded."""
        return None

    @property
    def ranks(self) -> bool:
        """Whether `head` returns the scores of labels instead of logits (`RankHead`)."""
        return False

    @property
    def decides(self) -> bool:
        """Whether `head` returns the score of the option that begins at a token, for a question.

        The segment of all its tokens is then the type of the question.
        """
        return False

    @property
    def has_dense(self) -> bool:
        """Whether `after_pooling` computes anything."""
        return False

    def after_pooling(self, pooled: Tensor) -> Tensor:
        """Return the embeddings (texts, n) of pooled hidden states (texts, features)."""
        return pooled

    @abstractmethod
    def cache_shapes(self) -> Sequence[CacheShape]:
        """Return the shape of the cache of each layer."""

    @abstractmethod
    def hidden(self, batch: Batch, caches: Sequence[LayerCache]) -> Tensor:
        """Return the final hidden states (m, features) of the tokens that `batch.outputs` names."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits (m, vocabulary) of hidden states; (m, labels) if it `ranks`."""

    def draft_logits(
        self,
        batch: Batch,  # noqa: ARG002
        caches: Sequence[LayerCache],  # noqa: ARG002
        vocabulary: int,  # noqa: ARG002
    ) -> Tensor:
        """Return the logits (m, n) after guessed tokens, by multi-token prediction.

        Args:
            batch: one token of each sequence, the first of which follow what `hidden` has seen.
            caches: of all layers, and of multi-token prediction.
            vocabulary: of how many of the first tokens logits are needed, at least.

        Raises:
            ComputeError: if the model has no such layer.
        """
        raise ComputeError("the model has no layer of multi-token prediction")

    def guess(
        self,
        batch: Batch,  # noqa: ARG002
        hidden: Tensor,  # noqa: ARG002
        caches: Sequence[LayerCache],  # noqa: ARG002
        vocabulary: int,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return the logits (n, m) after tokens and the next hidden states, by the assistant.

        Args:
            batch: one token of each sequence.
            hidden: F32, (n, features): the final hidden states of the tokens before.
            caches: of all layers, the assistant's last.
            vocabulary: of how many of the first tokens logits are needed, at least.

        Raises:
            ComputeError: if the model has no assistant.
        """
        raise ComputeError("the model has no assistant")

    def shift(self, index: int, keys: Tensor, offsets: Tensor) -> Tensor | None:  # noqa: ARG002
        """Move cached keys to other positions, when the context is full.

        Args:
            index: of the layer.
            keys: (n, kv_heads, head_dim), as they were stored.
            offsets: I32, (n,) or (k, n): what to add to their positions.

        Returns:
            The keys there; `keys` itself where a layer's keys have no position; None if the
            architecture does not support it: then the tokens are computed again.
        """
        return None
