"""What every architecture is to the runner."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tampu.ml import Tensor
from tampu.nn.attention import LayerCache
from tampu.nn.module import Module


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of one graph; their data is set only when it is computed.

    Attributes:
        tokens: I32, (n,): token ids.
        positions: I32, (n,): each token's place in its sequence.
        outputs: I32, (m,): the tokens whose logits are wanted.
    """

    tokens: Tensor
    positions: Tensor
    outputs: Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer needs of the cache.

    Attributes:
        kv_heads: key and value heads.
        head_dim: features of each.
        window: how many positions a token attends to, itself included; None: all.
    """

    kv_heads: int
    head_dim: int
    window: int | None = None


class Model(Module):
    """An architecture with its weights.

    `hidden` and `head` run when a graph is built, not for each token: they may branch on options
    and shapes, never on values.

    Attributes:
        options_type: the dataclass of its options.
        unused: beginnings of names of tensors that files may hold and that it does not need.
        options: of this file.
    """

    options_type: ClassVar[type[Any]]
    unused: ClassVar[tuple[str, ...]] = ()
    options: Any

    @abstractmethod
    def cache_shapes(self) -> list[LayerShape]:
        """Return what each layer needs of the cache."""

    @abstractmethod
    def hidden(self, batch: Batch, caches: Sequence[LayerCache]) -> Tensor:
        """Return the final hidden states (m, features) of the tokens that `batch.outputs` names."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits (m, vocabulary) of hidden states."""
