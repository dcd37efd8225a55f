"""Operations of mixtures of experts: choosing experts, and products with the chosen ones.

Shapes are slowest dimension first: the weights of all experts are (experts, outputs, inputs), a
choice is (tokens, used) of I32.
"""

from __future__ import annotations

import math

from tampu.ml.checks import READABLE, SINGLE, require
from tampu.ml.library import gg
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType

_TINY = 1e-20  # avoids a division by zero


def top_k(scores: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest of each row, the largest first: I32, (rows, count).

    Args:
        scores: F32, (rows, columns).
        count: 1 to the number of columns.
    """
    fits = len(scores.shape) == 2 and 1 <= count <= scores.shape[1]
    require(fits and scores.type in SINGLE, f"the {count} largest", scores)
    context = scores._context()
    pointer = gg.ggml_argsort_top_k(context.arena, scores.pointer, count)
    return context.wrap(pointer, (scores.shape[0], count), GGMLType.I32)


def gather(scores: Tensor, choice: Tensor) -> Tensor:
    """Return the scores (tokens, experts) of the experts that were chosen: (tokens, used)."""
    tokens, used = choice.shape
    require(scores.shape[0] == tokens and scores.type in SINGLE, "gather", scores, choice)
    context = scores._context()
    column = scores.reshape(tokens, scores.shape[1], 1)
    pointer = gg.ggml_get_rows(context.arena, column.pointer, choice.pointer)
    return context.wrap(pointer, (tokens, used, 1), GGMLType.F32).reshape(tokens, used)


def normalized(weights: Tensor) -> Tensor:
    """Return positive weights (tokens, used) divided by the sum of each row."""
    require(len(weights.shape) == 2 and weights._is(SINGLE), "normalized", weights)
    context = weights._context()
    total = context.wrap(
        gg.ggml_sum_rows(context.arena, weights.pointer), (weights.shape[0], 1), GGMLType.F32
    )
    pointer = gg.ggml_div(context.arena, weights.pointer, (total + _TINY).pointer)
    return context.wrap(pointer, weights.shape, GGMLType.F32)


def limit_to_groups(scores: Tensor, groups: int, used: int, best: int) -> Tensor:
    """Return the scores of the experts in each token's best groups, -inf for all others.

    Args:
        scores: F32, (tokens, experts); the experts of a group are neighbours.
        groups: of equal size.
        used: groups of each token.
        best: a group's score is the sum of so many of its largest scores.

    Returns:
        F32, (tokens, experts).
    """
    tokens, experts = scores.shape
    fits = groups >= 1 and experts % groups == 0 and 1 <= used <= groups
    require(fits and 1 <= best <= experts // groups, f"{used} of {groups} groups", scores)
    context, size = scores._context(), experts // groups
    parts = scores.reshape(tokens * groups, size)
    highest = gather(parts, top_k(parts, best))
    totals = gg.ggml_sum_rows(context.arena, highest.pointer)
    sums = context.wrap(totals, (tokens * groups, 1), GGMLType.F32)
    choice = top_k(sums.reshape(tokens, groups), used).contiguous()
    grouped = scores.reshape(tokens, groups, size)
    kept = gg.ggml_get_rows(context.arena, grouped.pointer, choice.pointer)
    blank = gg.ggml_fill(context.arena, grouped.pointer, -math.inf)
    pointer = gg.ggml_set_rows(context.arena, blank, kept, choice.pointer)
    return context.wrap(pointer, grouped.shape, GGMLType.F32).reshape(tokens, experts)


def repeat(x: Tensor, count: int) -> Tensor:
    """Return x (tokens, 1, features) `count` times: (tokens, count, features)."""
    require(len(x.shape) == 3 and x.shape[1] == 1 and x.type in SINGLE, "repeat", x)
    tokens, _, features = x.shape
    context = x._context()
    pointer = gg.ggml_repeat_4d(context.arena, x.pointer, features, count, tokens, 1)
    return context.wrap(pointer, (tokens, count, features), x.type)


def expert_linear(x: Tensor, weight: Tensor, choice: Tensor) -> Tensor:
    """Return x · weightᵀ with the weight of the expert that each row chose.

    Args:
        x: F32, (tokens, used, inputs), or (tokens, 1, inputs): the same for all of a token's.
        weight: (experts, outputs, inputs).
        choice: I32, (tokens, used).

    Returns:
        F32, (tokens, used, outputs).
    """
    fits = len(x.shape) == 3 and len(weight.shape) == 3 and x.shape[2] == weight.shape[2]
    fits = fits and x.shape[0] == choice.shape[0] and x.shape[1] in (1, choice.shape[1])
    is_known = x.type in SINGLE and weight.type in READABLE and choice.type is GGMLType.I32
    require(fits and is_known, "expert_linear", x, weight, choice)
    context = x._context()
    if weight.packed is not None:
        pointer = weight.packed.multiply_experts(context, x, choice)
    else:
        pointer = gg.ggml_mul_mat_id(context.arena, weight.pointer, x.pointer, choice.pointer)
    return context.wrap(pointer, (*choice.shape, weight.shape[1]), GGMLType.F32)


def total(y: Tensor) -> Tensor:
    """Return the sum (tokens, features) over the experts of y (tokens, used, features)."""
    tokens, used, features = y.shape
    step = y.strides[0]
    parts = [y.strided((tokens, features), (step,), index * y.strides[1]) for index in range(used)]
    result = parts[0].contiguous() if used == 1 else parts[0] + parts[1]
    for part in parts[2:]:
        result = result + part
    return result


def weighted_total(y: Tensor, weights: Tensor, of: Tensor) -> Tensor:
    """Return the sum (tokens, features) over the experts of y, each row times its weight.

    Args:
        y: F32, (tokens, used, features).
        weights: F32, (tokens, used, 1).
        of: the weight of the product that y comes from: what multiplied by it adds, too.
    """
    fits = len(y.shape) == 3 and weights.shape == (*y.shape[:2], 1)
    require(fits and y._is(SINGLE) and weights._is(SINGLE), "weighted_total", y, weights)
    if of.packed is None or not (y.is_contiguous and weights.is_contiguous):
        return total(y * weights)
    context = y._context()
    pointer = of.packed.weighted_total(context, y, weights)
    return context.wrap(pointer, (y.shape[0], y.shape[2]), GGMLType.F32)


def add_expert_bias(x: Tensor, bias: Tensor, choice: Tensor) -> Tensor:
    """Return x (tokens, used, outputs) plus the bias (experts, outputs) of each row's expert."""
    fits = x.shape[:2] == choice.shape and bias.shape[1:] == x.shape[2:]
    require(fits and x.type in SINGLE and bias.type in SINGLE, "add_expert_bias", x, bias, choice)
    pointer = gg.ggml_add_id(x._context().arena, x.pointer, bias.pointer, choice.pointer)
    return x._context().wrap(pointer, x.shape, x.type)


def clamped_gate(gate: Tensor, up: Tensor, *, slope: float, limit: float) -> Tensor:
    """Return gate · sigmoid(slope · gate) · (up + 1), both clamped by `limit` (gpt-oss).

    The gate is clamped from above, `up` on both sides. Source: the gpt-oss reference.
    """
    fits = gate.shape == up.shape and gate.type in SINGLE and up.type in SINGLE
    require(fits and gate.is_contiguous and up.is_contiguous, "clamped_gate", gate, up)
    context = gate._context()
    pointer = gg.ggml_swiglu_oai(context.arena, gate.pointer, up.pointer, slope, limit)
    return context.wrap(pointer, gate.shape, gate.type)
