"""Operations on each element alone: activations, gates, and a few functions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from tampu.ml.library import TensorPointer, gg
from tampu.ml.operands import FLOATS, require

if TYPE_CHECKING:
    from tampu.ml.context import Context
    from tampu.ml.tensor import Tensor
    from tampu.ml.types import GGMLType

Operation: TypeAlias = Callable[..., TensorPointer]

_SLOPE = 1.702  # of the sigmoid that is nearest to the normal distribution


class Activated:
    """What `Tensor` inherits."""

    __slots__ = ()

    pointer: TensorPointer
    shape: tuple[int, ...]
    type: GGMLType

    def silu(self) -> Tensor:
        """Return x · sigmoid(x)."""
        return self._activated(gg.ggml_silu)

    def gelu(self) -> Tensor:
        """Return GELU in its tanh form (ggml takes it from a half-precision table)."""
        return self._activated(gg.ggml_gelu)

    def gelu_exact(self) -> Tensor:
        """Return GELU in its original form, with the error function (arXiv:1606.08415)."""
        return self._activated(gg.ggml_gelu_erf)

    def gelu_quick(self) -> Tensor:
        """Return x · sigmoid(1.702 x): by way of SiLU, as ggml has it in a half-precision table."""
        return (self * _SLOPE).silu() * (1 / _SLOPE)

    def sigmoid(self) -> Tensor:
        """Return 1 / (1 + exp(-x))."""
        return self._activated(gg.ggml_sigmoid)

    def tanh(self) -> Tensor:
        """Return the hyperbolic tangent."""
        return self._activated(gg.ggml_tanh)

    def floor(self) -> Tensor:
        """Return the largest integers that are not greater."""
        return self._activated(gg.ggml_floor)

    def log(self) -> Tensor:
        """Return the natural logarithm."""
        return self._activated(gg.ggml_log)

    def silu_gate(self, up: Tensor) -> Tensor:
        """Return silu(self) · up in one pass (SwiGLU, arXiv:2002.05202)."""
        return self._gate(gg.ggml_swiglu_split, up)

    def gelu_gate(self, up: Tensor) -> Tensor:
        """Return gelu(self) · up in one pass (GEGLU, arXiv:2002.05202), GELU in its tanh form."""
        return self._gate(gg.ggml_geglu_split, up)

    @abstractmethod
    def __mul__(self, other: Tensor | float) -> Tensor: ...

    @abstractmethod
    def _context(self, other: Tensor | None = None) -> Context: ...

    @abstractmethod
    def _like(self, pointer: TensorPointer) -> Tensor: ...

    @abstractmethod
    def _is(self, types: frozenset[GGMLType]) -> bool: ...

    @property
    @abstractmethod
    def is_contiguous(self) -> bool:
        """Whether its elements lie without gaps in the order of its shape."""

    def _activated(self, operation: Operation) -> Tensor:
        require(self._is(FLOATS), "activation", self)
        return self._like(operation(self._context().arena, self.pointer))

    def _gate(self, operation: Operation, up: Tensor) -> Tensor:
        fits = up.shape == self.shape and up.type is self.type and self.type in FLOATS
        require(fits and self.is_contiguous and up.is_contiguous, "gate", self, up)
        return self._like(operation(self._context().arena, self.pointer, up.pointer))
