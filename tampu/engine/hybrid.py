"""Three embeddings of a text from one computation, as BGE-M3 has them (arXiv:2402.03216)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from tampu.engine.handlers.embed import embedded_tokens, states_of
from tampu.engine.native import NativeModel
from tampu.engine.pooling import NONE, RANK, pooled
from tampu.engine.requests import Embed
from tampu.errors import RequestError
from tampu.ml.metadata import Metadata
from tampu.ml.vectors import unit_vectors
from tampu.nn import TextEncoder
from tampu.runner.pooled import compute_rows

_MARKS = ("bos", "eos", "cls", "seperator", "padding", "unknown")  # GGUF's spelling


@dataclass(frozen=True, slots=True)
class HybridEmbedding:
    """Three embeddings of one text.

    Attributes:
        dense: float32, (features,), of length 1: the pooled states.
        sparse: token ids and their weights, above 0; control tokens have none.
        multi_vector: float32, (tokens - 1, features), each of length 1: of all tokens but the
            first, for late interaction (ColBERT).
    """

    dense: npt.NDArray[np.float32]
    sparse: Mapping[int, float]
    multi_vector: npt.NDArray[np.float32]

    def sparse_score(self, other: HybridEmbedding) -> float:
        """Return the sum over common tokens of the product of their weights."""
        common = self.sparse.keys() & other.sparse.keys()
        return sum(self.sparse[token] * other.sparse[token] for token in common)

    def multi_vector_score(self, document: HybridEmbedding) -> float:
        """Return the mean over this text's vectors of the largest product with a document's."""
        return float((self.multi_vector @ document.multi_vector.T).max(axis=1).mean())


def embed_hybrid(model: NativeModel, request: Embed) -> list[HybridEmbedding]:
    """Return the three embeddings of each input.

    Raises:
        RequestError: if the model's file lacks a head for them.
        ContextLengthError: for an input that is too long.
    """
    graphs = model.model.graphs
    encoder = graphs.model
    sparse = encoder.sparse if isinstance(encoder, TextEncoder) else None
    multi = encoder.multi_vector if isinstance(encoder, TextEncoder) else None
    if sparse is None or multi is None or model.pooling in (NONE, RANK):
        raise RequestError(
            f"{model.info.name} has no sparse and multi-vector embeddings: they need a file made "
            "of a checkpoint with sparse_linear.safetensors and colbert_linear.safetensors (BGE-M3)"
        )
    texts, _ = embedded_tokens(model.requests, request)
    if not texts:
        return []
    states = states_of(model, texts, request.engine_options, NONE)
    ends = np.cumsum([len(each) for each in states])[:-1]
    of_all = partial(compute_rows, graphs.backend, rows=np.concatenate(states))
    weights = np.split(np.maximum(of_all(sparse)[:, 0], 0), ends)
    vectors = np.split(unit_vectors(of_all(multi)), ends)
    marks = control_tokens(model.info.metadata)
    return [
        HybridEmbedding(
            unit_vectors(pooled(rows, model.pooling))[0],
            _largest([token for token in text if isinstance(token, int)], own, marks),
            of_tokens[1:],
        )
        for text, rows, own, of_tokens in zip(texts, states, weights, vectors, strict=True)
    ]


def control_tokens(metadata: Metadata) -> frozenset[int]:
    """Return the ids of the tokens that begin, end, separate, pad or replace."""
    keys = (f"tokenizer.ggml.{mark}_token_id" for mark in _MARKS)
    return frozenset(metadata.integer(key) for key in keys if metadata.has(key))


def _largest(
    tokens: Sequence[int], weights: npt.NDArray[np.float32], marks: frozenset[int]
) -> dict[int, float]:
    """Return the largest weight of each token, without those of marks and zeros."""
    found: dict[int, float] = {}
    for token, weight in zip(tokens, weights.tolist(), strict=True):
        if weight > 0 and token not in marks:
            found[token] = max(weight, found.get(token, 0.0))
    return found
