"""Gates of feed-forward parts: an activation of one projection, times another, in one pass."""

from __future__ import annotations

from collections.abc import Callable

from tampu.ml.checks import FLOATS, require
from tampu.ml.library import TensorPointer, gg
from tampu.ml.tensor import Tensor


def silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) · up (SwiGLU, arXiv:2002.05202)."""
    return _gated(gg.ggml_swiglu_split, gate, up)


def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) · up (GEGLU, arXiv:2002.05202), GELU in its tanh form."""
    return _gated(gg.ggml_geglu_split, gate, up)


def gelu_exact_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) · up (GEGLU), GELU with the error function."""
    return _gated(gg.ggml_geglu_erf_split, gate, up)


def _gated(operation: Callable[..., TensorPointer], gate: Tensor, up: Tensor) -> Tensor:
    fits = up.shape == gate.shape and up.type is gate.type and gate._is(FLOATS)
    is_known = len(up.shape) <= 2 or (gate.is_contiguous and up.is_contiguous)
    require(fits and up._is(FLOATS) and is_known, "gate", gate, up)
    return gate._like(operation(gate._context().arena, gate.pointer, up.pointer))
