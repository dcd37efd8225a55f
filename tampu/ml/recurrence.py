"""Operations of recurrent layers: gates, unit vectors, and the gated delta rule.

Shapes are slowest dimension first: (sequences, tokens, heads, features).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tampu.ml.checks import SINGLE, require
from tampu.ml.kernels.library import OWN_PARAMS, Kernels
from tampu.ml.kernels.matmul import custom
from tampu.ml.library import gg
from tampu.ml.moe import repeat
from tampu.ml.tensor import Shape, Tensor
from tampu.ml.types import GGMLType

LANES = 16  # of the package's kernels
PART_NUMBERS = 6
"""Numbers that describe a part; see `StateRows.written`."""

_MAX_WIDTH = 8
_MAX_DECAYS = 256  # features that may have a decay each in the package's kernels
_MAX_OF_PARTS = 256  # features of a row of a state, with parts
# ggml's convolution is slower than sums of whole rows, from so many tokens on, for short kernels.
_MANY_TOKENS = 16
_SHORT = 4


@dataclass(slots=True)
class StateRows:
    """Where the states of some sequences are: rows of a tensor.

    With parts the operands have one list of tokens instead of as many for each sequence:
    (1, tokens, ...). The first ones are replayed: the states lack them, though an earlier graph
    had them. Only the package's kernels can do that.

    Attributes:
        stored: F32, (rows, features): all states.
        shape: of one state.
        read: I32, (sequences,): the rows of the states before the next tokens.
        written: I64, (sequences,): the rows of the states after them, none of which is read. Or
            parts, I32, (sequences, PART_NUMBERS): the first token that is replayed, how many are,
            the first new one, after how many of these the state is written (0: it is not), how many
            there are, the row of the state after. All that are replayed lie before all new ones, in
            the order of the sequences.
        before: the states before, if they were just computed; None: they are only in the rows.
        after: the states after, once `store` was called.
    """

    stored: Tensor
    shape: Shape
    read: Tensor
    written: Tensor
    before: Tensor | None = None
    after: Tensor | None = None

    @property
    def has_parts(self) -> bool:
        """Whether there are parts instead of rows that are written."""
        return len(self.written.shape) == 2

    def load(self) -> Tensor:
        """Return the states before the next tokens, (sequences, *shape)."""
        require(not self.has_parts, "parts without kernels", self.stored)
        if self.before is not None:
            return self.before
        return self.stored.rows(self.read).reshape(self.read.shape[0], *self.shape)

    def store(self, states: Tensor) -> None:
        """Write the states after the tokens, (sequences, *shape)."""
        flat = states.reshape(-1, self.stored.shape[1])
        flat._context().forward(self.stored.set_rows(flat, self.written))
        self.after = states

    def kernels_of(self, x: Tensor) -> Kernels | None:
        """Return the package's kernels if they can read and write these rows from a graph."""
        kernels = x._context().kernels_for(self.stored)
        has = kernels is not None and kernels.choice.recurrence
        return kernels if has and self.stored.is_contiguous and self.before is None else None


def fits_parts(channels: int, width: int, row: int = LANES) -> bool:
    """Return whether the package's kernels can compute parts of any lengths.

    Args:
        channels: of the convolution.
        width: inputs of a channel that it sees.
        row: features of a row of the state.
    """
    fits = not (channels % LANES or row % LANES)
    return fits and width <= _MAX_WIDTH and row <= _MAX_OF_PARTS


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
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: StateRows
) -> Tensor:
    """Compute tokens of some sequences one after the other (arXiv:2412.06464).

    For each token and head: S ← S · exp(log_decay), then S ← S + β (v - S k) kᵀ, and the output is
    S q / sqrt(features). Value head h has the query and the key of head h modulo their number.
    With a decay of each feature of the keys, the columns of S have one each (arXiv:2510.26692).

    Args:
        q: F32, (sequences, tokens, key_heads, features).
        k: as q, of length 1.
        v: F32, (sequences, tokens, heads, features).
        log_decay: F32, (sequences, tokens, heads) or (sequences, tokens, heads, features), at
            most 0.
        beta: F32, (sequences, tokens, heads).
        state: of shape (heads, features, features): values' features by keys' features. The states
            after the tokens are stored.

    Returns:
        The outputs (sequences, tokens, heads, features).

    Raises:
        ShapeError: for operands that do not fit.
    """
    operands = (q, k, v, log_decay, beta)
    ranks, has_each = [len(each.shape) for each in operands], len(log_decay.shape) == 4
    require(ranks == [4, 4, 4, 3 + has_each, 3], "delta rule", *operands)
    sequences, tokens, heads, features = v.shape
    key_heads = q.shape[2]
    fits = q.shape == k.shape == (sequences, tokens, key_heads, features) and not heads % key_heads
    fits = fits and beta.shape == v.shape[:3]
    fits = fits and log_decay.shape == (v.shape if has_each else beta.shape)
    fits = fits and fits_states(state, sequences, (heads, features, features))
    is_known = all(each._is(SINGLE) for each in operands)
    require(fits and is_known, "delta rule", *operands, state.stored)
    kernels = state.kernels_of(q)
    most = _MAX_OF_PARTS if state.has_parts else _MAX_DECAYS if has_each else features
    if kernels is None or features % LANES or features > most:
        return _gated_delta_rule(q, k, v, log_decay, beta, state)
    context = q._context()
    sources = [each.pointer for each in (*operands, state.stored, state.read, state.written)]
    lengths = (features, heads, tokens, sequences)
    operation = kernels.operation("delta_rule")
    pointer = custom(context, gg.GGML_TYPE_F32, lengths, sources, operation)
    pointer.contents.op_params[OWN_PARAMS] = kernels.choice.deterministic
    pointer.contents.op_params[OWN_PARAMS + 1] = has_each
    pointer.contents.op_params[OWN_PARAMS + 2] = state.has_parts
    outputs = context.wrap(pointer, v.shape, GGMLType.F32)
    context.forward(outputs)  # before anything reads the rows that it writes
    return outputs


def _gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, rows: StateRows
) -> Tensor:
    """Compute it by ggml."""
    sequences, tokens, heads, features = v.shape
    context, state = q._context(), rows.load()
    width = heads * features
    gates = [each.reshape(sequences, tokens, heads, -1).pointer for each in (log_decay, beta)]
    pointer = gg.ggml_gated_delta_net(
        context.arena, q.pointer, k.pointer, v.pointer, *gates, state.pointer, 1
    )
    # The states lie behind the outputs.
    both = context.wrap(pointer, (sequences * (tokens + features), width), GGMLType.F32)
    step = both.strides[0]
    outputs = both.strided(v.shape, (tokens * step, step, features * 4))
    head = features * features * 4
    steps = (heads * head, head, features * 4)
    rows.store(both.strided(state.shape, steps, sequences * tokens * step))
    return outputs


def slide(
    x: Tensor,
    past: StateRows,
    kernel: Tensor,
    *,
    bias: Tensor | None = None,
    has_silu: bool = False,
) -> Tensor:
    """Convolve the tokens of each feature, and those just before them, with its own kernel.

    Args:
        x: F32, (sequences, tokens, features).
        past: of shape (features, width - 1): the last inputs before. Those after are stored.
        kernel: F32, (features, width).
        bias: F32, (features,): added to the sums.
        has_silu: whether SiLU follows.

    Returns:
        (sequences, tokens, features).

    Raises:
        ShapeError: for operands that do not fit.
    """
    require([len(each.shape) for each in (x, kernel)] == [3, 2], "slide", x, kernel)
    (sequences, tokens, features), width = x.shape, kernel.shape[1]
    fits = kernel.shape[0] == features and width > 1
    fits = fits and fits_states(past, sequences, (features, width - 1))
    given = (x, past.stored, kernel, *((bias,) if bias is not None else ()))
    fits = fits and (bias is None or bias.shape == (features,))
    require(fits and all(each._is(SINGLE) for each in given), "slide", *given)
    kernels = past.kernels_of(x)
    can = width <= _MAX_WIDTH and features % LANES == 0 and kernel.is_contiguous
    if kernels is None or not can:
        is_long = tokens >= _MANY_TOKENS and width <= _SHORT
        is_long = is_long and not x._context().is_deterministic
        y = (_sum_rows if is_long else _slide)(x, past, kernel)
        y = y + bias if bias is not None else y
        return y.silu() if has_silu else y
    context = x._context()
    sources = [each.pointer for each in (x, past.stored, kernel, past.read, past.written)]
    sources += [bias.pointer] if bias is not None else []
    lengths = (features, tokens, sequences, 1)
    operation = kernels.operation("convolution")
    pointer = custom(context, gg.GGML_TYPE_F32, lengths, sources, operation)
    pointer.contents.op_params[OWN_PARAMS] = has_silu
    pointer.contents.op_params[OWN_PARAMS + 1] = past.has_parts
    y = context.wrap(pointer, x.shape, GGMLType.F32)
    context.forward(y)  # before anything reads the rows that it writes
    return y


def token_before(x: Tensor, past: StateRows) -> Tensor:
    """Return the token before each: a convolution of two inputs, of which the first counts.

    Args:
        x: F32, (sequences, tokens, features).
        past: of shape (features, 1): the token before the first. The last one is stored.

    Returns:
        (sequences, tokens, features).

    Raises:
        ShapeError: for operands that do not fit.
    """
    kernel = np.tile(np.array([1, 0], np.float32), (x.shape[-1], 1))
    return slide(x, past, x._context().constant(kernel))


def fits_states(state: StateRows, sequences: int, shape: Shape) -> bool:
    """Return whether states of this shape are those of so many sequences, or of parts."""
    if state.has_parts:
        rows = sequences == 1 and state.written.shape == (*state.read.shape, PART_NUMBERS)
        rows = rows and state.written.type is GGMLType.I32
    else:
        rows = state.read.shape == state.written.shape == (sequences,)
    return rows and tuple(state.shape) == shape and state.stored._is(SINGLE)


def _slide(x: Tensor, past: StateRows, kernel: Tensor) -> Tensor:
    """Convolve by ggml."""
    before, tokens = past.load(), x.shape[1]
    window = before.concat(x.transpose(0, 2, 1).contiguous(), 2)
    step = window.strides[1]
    offset = tokens * step // window.shape[2]
    past.store(window.strided(before.shape, window.strides[:2], offset).contiguous())
    context = window._context(kernel)
    pointer = gg.ggml_ssm_conv(context.arena, window.pointer, kernel.pointer)
    return context.wrap(pointer, x.shape, GGMLType.F32)


def _sum_rows(x: Tensor, past: StateRows, kernel: Tensor) -> Tensor:
    """Convolve by adding up the tokens' rows, each times the kernels' values for its place."""
    before = past.load().transpose(0, 2, 1).contiguous()
    window = before.concat(x, 1)
    kernels = kernel.strided(kernel.shape, kernel.strides[:1], context=x.context)
    columns, steps = kernels.transpose(1, 0).contiguous(), window.strides[:2]

    def term(place: int) -> Tensor:
        column = columns.strided(columns.shape[1:], (), place * columns.strides[0])
        return window.strided(x.shape, steps, place * steps[1]) * column

    y = term(0)
    for place in range(1, kernel.shape[1]):  # one after another: a term's memory is free then
        y = y + term(place)
    last = window.strided(before.shape, steps, x.shape[1] * steps[1])
    past.store(last.transpose(0, 2, 1).contiguous())
    return y
