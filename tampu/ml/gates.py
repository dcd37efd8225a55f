"""Gates of feed-forward parts that few models have; `Tensor` has the usual ones."""

from __future__ import annotations

from tampu.ml.library import gg
from tampu.ml.tensor import Tensor


def gelu_exact_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) · up in one pass, GELU with the error function (GEGLU, 2002.05202)."""
    return gate._gate(gg.ggml_geglu_erf_split, up)
