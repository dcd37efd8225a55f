"""Multi-token prediction: a layer after the last one that guesses the token after the next.

    row of token t     embedding of t ─ norm ─┐
                                              ├─ projection ─ layer ─ norm ─ head ─> token after t
    state before t     of the token before ─ norm ┘

The row of a token belongs to the token's own cell: it has the token itself and the hidden state of
the token before, which is a state of the cache like those of recurrent layers. The first token has
zeros there. Of tokens that are not guessed from, keys and values are enough.

Sources: arXiv:2404.19737, arXiv:2412.19437 (section 2.2).
"""

from __future__ import annotations

from typing import Any, ClassVar

from tampu.errors import ModelFileError
from tampu.ml import Tensor
from tampu.ml.recurrence import token_before
from tampu.nn.attention import Rotation
from tampu.nn.cache import LayerCache, States, Tensors
from tampu.nn.linear import Embedding, Linear
from tampu.nn.module import Module, gguf
from tampu.nn.norm import RMSNorm


class MTPLayer(Module):
    """From a token and the hidden state of the token before it to the next token.

    An architecture declares `layer`: one that can be called as its others, and whose `store` writes
    keys and values only.

    Attributes:
        reads_normed: whether hidden states are those after the norm that precedes the head.
    """

    layer: Any
    embedding_norm: RMSNorm = gguf("nextn.enorm")
    hidden_norm: RMSNorm = gguf("nextn.hnorm")
    project: Linear = gguf("nextn.eh_proj")
    token_embedding: Embedding | None = gguf("nextn.embed_tokens")
    output_norm: RMSNorm | None = gguf("nextn.shared_head_norm")
    output: Linear | None = gguf("nextn.shared_head_head")

    reads_normed: ClassVar[bool] = False

    def __call__(
        self, embeddings: Tensor, before: Tensor, cache: LayerCache, rotate: Rotation, o: Any
    ) -> Tensor:
        """Return the hidden states (tokens, features), before the norm that precedes the head.

        Args:
            embeddings: of each token, (tokens, features).
            before: the hidden state of the token before each, (tokens, features).
            cache: of the layer's own keys and values.
            rotate: as the other layers do.
            o: the options.
        """
        x = self._joined(embeddings, before, o)
        y: Tensor = self.layer(x, cache, None, rotate=rotate, o=o)
        return y

    def store(
        self, embeddings: Tensor, before: Tensor, cache: LayerCache, rotate: Rotation, o: Any
    ) -> None:
        """Write the keys and values of tokens; arguments as for a call."""
        self.layer.store(self._joined(embeddings, before, o), cache, rotate=rotate, o=o)

    def check(self, features: int, vocabulary: int) -> None:
        """Require tensors of the shapes that a model's hidden states and tokens need.

        Args:
            features: of a hidden state.
            vocabulary: the rows of the model's token embeddings.

        Raises:
            ModelFileError: naming a tensor of another shape.
        """
        wanted = {
            self.project.weight: (features, 2 * features),
            self.embedding_norm.weight: (features,),
            self.hidden_norm.weight: (features,),
        }
        if self.output_norm:
            wanted[self.output_norm.weight] = (features,)
        tables = (each.weight for each in (self.token_embedding, self.output) if each)
        wanted.update(dict.fromkeys(tables, (vocabulary, features)))
        for tensor, shape in wanted.items():
            if tensor.shape != shape:
                reason = f"its shape is {[*tensor.shape]}, not {[*shape]}"
                raise ModelFileError(f"tensor {tensor.name}", reason)

    def _joined(self, embeddings: Tensor, before: Tensor, o: Any) -> Tensor:
        embeddings = self.embedding_norm(embeddings, o.epsilon)
        return self.project(embeddings.concat(self.hidden_norm(before, o.epsilon), 1))


def shift_states(hidden: Tensor, cache: LayerCache) -> Tensor:
    """Return the hidden state of the token before each (tokens, features); keep the last ones.

    Args:
        hidden: of each token, (tokens, features).
        cache: has a state (features, 1).
    """
    return cache.advance((hidden,), _shifted)


def load_states(hidden: Tensor, cache: LayerCache) -> Tensor:
    """Return the kept states (tokens, features) of a batch with one token of each sequence.

    Args:
        hidden: anything of the shape of the states.
        cache: as for `shift_states`.
    """
    return cache.advance((hidden,), _loaded)


def store_states(hidden: Tensor, cache: LayerCache) -> None:
    """Keep the hidden states (tokens, features) of a batch with one token of each sequence."""
    cache.advance((hidden,), _stored)


def _shifted(inputs: Tensors, states: States) -> Tensor:
    (x,), (kept,) = inputs, states
    if kept.has_parts:
        return token_before(x, kept)
    sequences, tokens, features = x.shape
    before = kept.load().reshape(sequences, 1, features)
    last = x.strided((sequences, features), x.strides[:1], (tokens - 1) * x.strides[1])
    kept.store(last.contiguous())
    if tokens == 1:
        return before
    return before.concat(x.strided((sequences, tokens - 1, features), x.strides[:2]), 1)


def _loaded(inputs: Tensors, states: States) -> Tensor:
    (x,), (kept,) = inputs, states
    if kept.has_parts:  # what this writes, `store_states` writes again
        return token_before(x, kept)
    return kept.load().reshape(*x.shape)


def _stored(inputs: Tensors, states: States) -> Tensor:
    (x,), (kept,) = inputs, states
    if kept.has_parts:
        return token_before(x, kept)
    kept.store(x.contiguous())
    return x
