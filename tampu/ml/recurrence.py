"""Operations of recurrent layers: gates, unit vectors, and the gated delta rule.

Shapes are slowest dimension first: (sequences, tokens, heads, features).
"""

from __future__ import annotations

from tampu.ml.checks import SINGLE, require
from tampu.ml.library import gg
from tampu.ml.moe import repeat
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType

# ggml's convolution is slower than sums of whole rows, from so many tokens on, for short kernels.
_MANY_TOKENS = 16
_SHORT = 4


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
    width = heads * features
    rows = sequences * (tokens + features)  # the states lie behind the outputs
    gates = [each.reshape(sequences, tokens, heads, 1).pointer for each in (log_decay, beta)]
    pointer = gg.ggml_gated_delta_net(
        context.arena, q.pointer, k.pointer, v.pointer, *gates, state.pointer, 1
    )
    both = context.wrap(pointer, (rows, width), GGMLType.F32)
    step = both.strides[0]
    outputs = both.strided(v.shape, (tokens * step, step, features * 4))
    head = features * features * 4
    after = both.strided(state.shape, (heads * head, head, features * 4), sequences * tokens * step)
    return outputs, after


def slide(x: Tensor, past: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve the tokens of each feature, and those just before them, with its own kernel.

    Args:
        x: F32, (sequences, tokens, features).
        past: F32, (sequences, features, width - 1): the last inputs before.
        kernel: F32, (features, width).

    Returns:
        (sequences, tokens, features), and the last inputs now, of the shape of `past`.

    Raises:
        ShapeError: for operands that do not fit.
    """
    require([len(each.shape) for each in (x, past, kernel)] == [3, 3, 2], "slide", x, past, kernel)
    (sequences, tokens, features), width = x.shape, kernel.shape[1]
    fits = past.shape == (sequences, features, width - 1) and kernel.shape[0] == features
    is_known = x._is(SINGLE) and past._is(SINGLE) and kernel._is(SINGLE)
    require(fits and width > 1 and is_known, "slide", x, past, kernel)
    if tokens >= _MANY_TOKENS and width <= _SHORT:
        return _sum_rows(x, past, kernel)
    window = past.concat(x.transpose(0, 2, 1).contiguous(), 2)
    step = window.strides[1]
    last = window.strided(past.shape, window.strides[:2], tokens * step // (width - 1 + tokens))
    return window.short_convolution(kernel), last.contiguous()


def _sum_rows(x: Tensor, past: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve by adding up the tokens' rows, each times the kernels' values for its place."""
    window = past.transpose(0, 2, 1).contiguous().concat(x, 1)
    kernels = kernel.strided(kernel.shape, kernel.strides[:1], context=x.context)
    columns, steps = kernels.transpose(1, 0).contiguous(), window.strides[:2]
    terms = [
        window.strided(x.shape, steps, place * steps[1])
        * columns.strided(columns.shape[1:], (), place * columns.strides[0])
        for place in range(kernel.shape[1])
    ]
    y = terms[0]
    for term in terms[1:]:
        y = y + term
    shape = (past.shape[0], past.shape[2], past.shape[1])
    return y, window.strided(shape, steps, x.shape[1] * steps[1]).transpose(0, 2, 1).contiguous()
