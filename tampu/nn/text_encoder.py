"""What encoders of texts share: embeddings, layers, a last norm, and a head that ranks.

Their tokens attend to one another both ways, so a text is computed in one batch. Their hidden
states are pooled outside; `after_pooling` is what some compute from the result.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from tampu.ml import Tensor
from tampu.nn.cache import LayerCache
from tampu.nn.decoder import Step, run_layers
from tampu.nn.linear import Embedding, Linear
from tampu.nn.model import Batch, Model
from tampu.nn.module import gguf
from tampu.nn.rank import RankHead


class TextEncoder(Model):
    """A model of token embeddings and layers, for embeddings of texts or with a head that ranks.

    An architecture says which kind of `layers` it has, and what `steps` gives each of them; it
    overrides `embed` and `normed` where it does more there. `sparse` and `multi_vector` are the
    heads for each token that BGE-M3 has (arXiv:2402.03216).
    """

    token_embedding: Embedding = gguf("token_embd")
    layers: list[Any] = gguf("blk", count="layers")
    rank_head: RankHead = gguf()
    dense: Linear | None = gguf("dense_2")
    second_dense: Linear | None = gguf("dense_3")
    sparse: Linear | None = gguf("sparse_linear")
    multi_vector: Linear | None = gguf("colbert_linear")

    default_rank_pooling: ClassVar[str] = "cls"

    @property
    def max_bidirectional_tokens(self) -> int:
        """As many tokens as in the longest text of the training."""
        return int(self.options.context)

    @property
    def ranks(self) -> bool:
        """Whether the file has a head that ranks."""
        return self.rank_head.is_there

    @property
    def has_dense(self) -> bool:
        """Whether `after_pooling` does anything."""
        return self.dense is not None or self.second_dense is not None

    @abstractmethod
    def steps(self, batch: Batch) -> Iterable[Step]:
        """Return the layers with their arguments for a batch."""

    def embed(self, batch: Batch) -> Tensor:
        """Return what the first layer reads (n, features)."""
        return self.token_embedding(batch.tokens)

    def normed(self, x: Tensor) -> Tensor:
        """Return the last layer's output x after the last norm, if there is one."""
        return x

    def hidden(self, batch: Batch, caches: Sequence[LayerCache]) -> Tensor:
        """Return the final hidden states (m, features) of the tokens that `batch.outputs` names."""
        return self.normed(run_layers(self.embed(batch), batch, caches, self.steps(batch)))

    def after_pooling(self, pooled: Tensor) -> Tensor:
        """Return the embeddings (texts, n) of pooled hidden states: the dense layers' outputs."""
        for dense in (self.dense, self.second_dense):
            pooled = dense(pooled) if dense else pooled
        return pooled

    def head(self, hidden: Tensor) -> Tensor:
        """Return the scores (m, labels) if it ranks, else the hidden states: it has no logits."""
        return self.rank_head(hidden) if self.ranks else hidden
