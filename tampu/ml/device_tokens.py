"""Tokens that a step chose, on the device, so that the next step need not wait for the host."""

from __future__ import annotations

from tampu.ml.backend import Backend
from tampu.ml.checks import require
from tampu.ml.library import gg
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType

_OUTPUT = "output.weight"


class DeviceTokens:
    """The tokens that the last step chose, one for each of its outputs.

    They are on the device of the output layer. Each step writes over those of the step before,
    which are read by then.
    """

    def __init__(self, backend: Backend, count: int) -> None:
        """Make room for `count` tokens.

        Raises:
            OutOfMemoryError: if there is none.
        """
        self._context = backend.context(1)
        self._tokens = self._context.weights(_OUTPUT).zeros((count, 1), GGMLType.I32)

    @property
    def size_bytes(self) -> int:
        """Bytes allocated."""
        return self._context.size_bytes

    def select(self, given: Tensor, sources: Tensor) -> Tensor:
        """Return the tokens of a step: given ones, and those of the step before.

        Args:
            given: I32, (n,).
            sources: I32, (n,): for each token, i for given token i, or n + i for token i of the
                step before.
        """
        rows = given.shape[0]
        every = given.reshape(rows, 1).concat(self._tokens, 0)
        return every.rows(sources).reshape(rows)

    def store(self, chosen: Tensor, vocabulary: int) -> Tensor:
        """Write the tokens that a step chose; the graph must be forwarded to it.

        Args:
            chosen: I32, (m, 1). One that is not a token, which GPUs may choose if logits are NaN,
                becomes one: the next step would read outside of the embeddings.
            vocabulary: the number of tokens, at most 2^24.
        """
        rows = chosen.shape[0]
        fits = chosen.type is GGMLType.I32 and chosen.shape == (rows, 1)
        require(fits and rows <= self._tokens.shape[0], "store", chosen, self._tokens)
        context = chosen._context()
        target = self._tokens.strided((rows, 1), self._tokens.strides[:1], context=context)
        bounded = chosen.cast(GGMLType.F32).clamp(0, vocabulary - 1)
        pointer = gg.ggml_cpy(context.arena, bounded.pointer, target.pointer)
        return context.wrap(pointer, chosen.shape, GGMLType.I32)

    def close(self) -> None:
        """Free them; a second call does nothing."""
        self._context.close()
