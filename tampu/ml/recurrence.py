"""Operations of recurrent layers: gates, unit vectors, and the gated delta rule.

Shapes are slowest dimension first: (sequences, tokens, heads, features).
"""

from __future__ import annotations

from tampu.ml.checks import SINGLE, require
from tampu.ml.library import gg
from tampu.ml.moe import repeat
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType


def softplus(x: Tensor) -> Tensor:
    """Return ln(1 + exp(x))."""
    require(x._is(SINGLE) and x.is_contiguous, "softplus", x)
    return x._like(gg.ggml_softplus(x._context().arena, x.pointer))


def unit_vectors(x: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(sum(x²) + epsilon) over the last dimension, contiguous.

    ggml's own operation takes the larger of the length and epsilon instead of adding it.
    """
    features = x.shape[-1]
    return x.rms_norm(epsilon / features) * float(features**-0.5)


def repeat_heads(x: Tensor, count: int) -> Tensor:
    """Return (sequences, tokens, heads · count, features): each head `count` times in a row."""
    if count == 1:
        return x
    sequences, tokens, heads, features = x.shape
    repeated = repeat(x.reshape(sequences * tokens * heads, 1, features), count)
    return repeated.reshape(sequences, tokens, heads * count, features)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute tokens of some sequences one after the other (arXiv:2412.06464).

    For each token and head: S ← exp(log_decay) · S, then S ← S + β (v - S k) kᵀ, and the output is
    S q / sqrt(features). Value head h has the query and the key of head h modulo their number.

    Args:
        q: F32, (sequences, tokens, key_heads, features).
        k: as q, of length 1.
        v: F32, (sequences, tokens, heads, features).
        log_decay: F32, (sequences, tokens, heads), at most 0.
        beta: F32, (sequences, tokens, heads).
        state: F32, (sequences, heads, features, features): values' features by keys' features.

    Returns:
        The outputs (sequences, tokens, heads, features), and the states after the last tokens.

    Raises:
        ShapeError: for operands that do not fit.
    """
    operands = (q, k, v, log_decay, beta, state)
    require([len(each.shape) for each in operands] == [4, 4, 4, 3, 3, 4], "delta rule", *operands)
    sequences, tokens, heads, features = v.shape
    key_heads = q.shape[2]
    fits = q.shape == k.shape == (sequences, tokens, key_heads, features) and not heads % key_heads
    fits = fits and log_decay.shape == beta.shape == v.shape[:3]
    fits = fits and state.shape == (sequences, heads, features, features)
    is_known = all(each._is(SINGLE) for each in operands) and state.is_contiguous
    require(fits and is_known, "delta rule", *operands)
    context = q._context()
    gates = [each.reshape(sequences, tokens, heads, 1).pointer for each in (log_decay, beta)]
    pointer = gg.ggml_gated_delta_net(
        context.arena, q.pointer, k.pointer, v.pointer, *gates, state.pointer, 1
    )
    width = heads * features
    rows = sequences * (tokens + features)  # ggml returns the states behind the outputs
    both = context.wrap(pointer, (rows, width), GGMLType.F32)
    step = both.strides[0]
    outputs = both.strided(v.shape, (tokens * step, step, features * 4))
    head = features * features * 4
    after = both.strided(state.shape, (heads * head, head, features * 4), sequences * tokens * step)
    return outputs, after
