"""The selective scan of Mamba 1 and 2: states that decay and take in each token's inputs.

Sources: arXiv:2312.00752, arXiv:2405.21060. Shapes are slowest dimension first.
"""

from __future__ import annotations

import math

import numpy as np

from tampu.ml.checks import SINGLE, require
from tampu.ml.kernels.library import OWN_PARAMS
from tampu.ml.kernels.matmul import custom
from tampu.ml.library import gg
from tampu.ml.recurrence import LANES, StateRows, fits_states
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType


def selective_scan(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    step: Tensor,
    decay: Tensor,
    skip: Tensor,
    state: StateRows,
) -> Tensor:
    """Compute tokens of some sequences one after the other.

    For each token and head, with Δ = softplus(step): S ← exp(Δ · decay) · S + Δ x bᵀ, and the
    output is S c + skip · x. The heads of a group are neighbours and have the same b and c.

    Args:
        x: F32, (sequences, tokens, heads, features).
        b: F32, (sequences, tokens, groups, size).
        c: as b.
        step: F32, (sequences, tokens, heads).
        decay: F32, below 0: (heads, 1), or (heads, size): one for each element (Mamba 1).
        skip: F32, (heads, 1).
        state: of shape (heads, features, size). The states after the tokens are stored.

    Returns:
        The outputs (sequences, tokens, heads, features).

    Raises:
        ShapeError: for operands that do not fit.
    """
    operands = (x, b, c, step, decay, skip)
    require([len(each.shape) for each in operands] == [4, 4, 4, 3, 2, 2], "scan", *operands)
    (sequences, tokens, heads, features), (groups, size) = x.shape, b.shape[2:]
    fits = b.shape == c.shape == (sequences, tokens, groups, size) and not heads % groups
    fits = fits and step.shape == x.shape[:3] and decay.shape in ((heads, 1), (heads, size))
    fits = fits and skip.shape == (heads, 1)
    fits = fits and fits_states(state, sequences, (heads, features, size))
    is_known = all(each._is(SINGLE) for each in operands)
    require(fits and is_known, "scan", *operands, state.stored)
    kernels = state.kernels_of(x)
    if kernels is None or decay.shape[1] > 1 or features % LANES or size % LANES:
        require(not state.has_parts, "parts without kernels", state.stored)
        return _selective_scan(x, b, c, step, decay, state) + x * skip
    context = x._context()
    sources = [each.pointer for each in (*operands, state.stored, state.read, state.written)]
    operation = kernels.operation("selective_scan")
    lengths = (features, heads, tokens, sequences)
    pointer = custom(context, gg.GGML_TYPE_F32, lengths, sources, operation)
    pointer.contents.op_params[OWN_PARAMS] = kernels.choice.deterministic
    pointer.contents.op_params[OWN_PARAMS + 1] = state.has_parts
    outputs = context.wrap(pointer, x.shape, GGMLType.F32)
    context.forward(outputs)  # before anything reads the rows that it writes
    return outputs


def _selective_scan(
    x: Tensor, b: Tensor, c: Tensor, step: Tensor, decay: Tensor, state: StateRows
) -> Tensor:
    """Compute it by ggml."""
    context, shape = x._context(), (x.shape[0], *state.shape)
    if state.before is not None:
        order = context.constant(np.arange(shape[0], dtype=np.float32))
        rows = order.strided(order.shape, (), context=context).cast(GGMLType.I32)
        before = state.before
    else:
        *lengths, size = (state.stored.shape[0], *state.shape)
        strides = tuple(4 * size * math.prod(lengths[at:]) for at in (1, 2, 3))
        before = state.stored.strided((*lengths, size), strides, context=context)
        rows = state.read
    given = [(each if each.is_contiguous else each.contiguous()) for each in (step, decay)]
    scan = gg.ggml_ssm_scan(
        context.arena,
        *(each.pointer for each in (before, x, *given, b, c, rows)),
    )
    # The states lie behind the outputs.
    outputs, states = math.prod(x.shape), math.prod(shape)
    both = context.wrap(scan, (outputs + states,), GGMLType.F32)
    state.store(both.strided((states,), (), 4 * outputs).reshape(*shape))
    return both.strided((outputs,), ()).reshape(*x.shape)
