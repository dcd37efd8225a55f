"""Recurrent layers with parts: sequences of any lengths, tokens that are replayed, and drafts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import TYPES, floats
from support.kernels import levels
from support.reference import delta_rule, silu
from support.reference import selective_scan as reference_scan

from tampu.errors import ShapeError
from tampu.ml import Backend, Tensor
from tampu.ml.recurrence import StateRows, fits_parts, gated_delta_rule, slide, token_before
from tampu.ml.selective_scan import selective_scan

Array = npt.NDArray[Any]
rule: Callable[..., tuple[Array, Array]] = delta_rule
scan: Callable[..., tuple[Array, Array]] = reference_scan
WAYS = [*((level, 1) for level in levels()), (None, 2), (None, 3)]
_UNUSED = 2  # places for replayed tokens


class Part(NamedTuple):
    """One sequence: how many tokens are replayed, how many new ones are known, and are drafts."""

    replayed: int
    known: int
    drafts: int


PARTS = [
    [Part(0, 1, 0)],
    [Part(3, 1, 2)],
    [Part(0, 1, 0), Part(2, 1, 3), Part(1, 0, 1), Part(0, 9, 4), Part(5, 3, 0)],
]


class Rows:
    """Where the tokens and states of some parts are.

    Attributes:
        each: the tokens of each, in their order.
        before: of each the row of its state.
        count: the number of all tokens.
        first: that of the first new one.
    """

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        replayed = [0, *accumulate(part.replayed for part in parts)]
        self.first = replayed[-1] + _UNUSED
        new = [self.first, *accumulate((p.known + p.drafts for p in parts), initial=self.first)][1:]
        self.count = new[-1]
        self.numbers = np.array(
            [
                (old, part.replayed, start, part.known, part.known + part.drafts, after)
                for part, old, start, after in zip(
                    parts, replayed, new, range(len(parts), 2 * len(parts)), strict=False
                )
            ],
            np.int32,
        )
        self.each = [
            [*range(old, old + again), *range(start, start + count)]
            for old, again, start, _, count, _ in self.numbers.tolist()
        ]
        self.before = np.arange(len(parts), dtype=np.int32)[::-1]

    def stored(self, width: int) -> Array:
        """Return all rows of states, with those before."""
        return floats(2 * len(self.parts), width, seed=9)

    def compare(
        self,
        found: list[Array],
        stored: Array,
        expect: Callable[[list[int], Array], tuple[Array, Array]],
    ) -> None:
        """Compare outputs and states with what `expect` has for tokens and the state before."""
        outputs, states = found
        wanted_states = stored.copy()
        for number, (part, tokens) in enumerate(zip(self.parts, self.each, strict=True)):
            before = stored[self.before[number]]
            wanted, _ = expect(tokens, before)
            np.testing.assert_allclose(outputs[tokens], wanted, rtol=1e-4, atol=2e-5)
            if part.known:
                _, after = expect(tokens[: part.replayed + part.known], before)
                wanted_states[self.numbers[number, 5]] = after.reshape(-1)
        np.testing.assert_allclose(states, wanted_states, rtol=1e-4, atol=2e-5)
        assert not outputs[self.first - _UNUSED : self.first].any()


def computed(
    backend: Backend,
    rows: Rows,
    shape: tuple[int, ...],
    build: Callable[..., Tensor],
    *arrays: Array,
) -> tuple[list[Array], Array]:
    """Return the outputs and all states after them; and all states before."""
    context = backend.context()
    stored = rows.stored(int(np.prod(shape)))
    every = [stored, rows.before, rows.numbers, *arrays]
    tensors = [context.input("x", each.shape, TYPES[each.dtype]) for each in every]
    kept, read, parts, *operands = tensors
    state = StateRows(kept, shape, read, parts)
    outputs = context.output(build(*operands, state))
    states = context.output(kept.strided(kept.shape, kept.strides[:1]).contiguous())
    data = [(t, np.ascontiguousarray(a)) for t, a in zip(tensors, every, strict=True)]
    found = [np.array(each) for each in backend.compute(context, data, [outputs, states]).outputs]
    context.close()
    return [found[0][0], found[1]], stored


@pytest.mark.parametrize(("level", "threads"), WAYS)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("key_heads", "heads", "features"), [(1, 2, 16), (2, 2, 80), (1, 1, 256)])
def test_the_delta_rule(
    level_backends: Callable[..., Backend],
    level: str | None,
    threads: int,
    parts: list[Part],
    key_heads: int,
    heads: int,
    features: int,
    *,
    each: bool,
) -> None:
    rows = Rows(parts)
    k = floats(1, rows.count, key_heads, features, seed=1)
    gates = (1, rows.count, heads)
    streams = [
        floats(1, rows.count, key_heads, features),
        k / np.linalg.norm(k, axis=-1, keepdims=True),
        floats(*gates, features, seed=2),
        -np.abs(floats(*gates, features, seed=3) if each else floats(*gates, seed=3)),
        1 / (1 + np.exp(-floats(*gates, seed=4))),
    ]
    shape = (heads, features, features)
    found, stored = computed(
        level_backends(level, threads), rows, shape, gated_delta_rule, *streams
    )

    def expect(tokens: list[int], before: Array) -> tuple[Array, Array]:
        outputs, state = rule(*(x[:, tokens] for x in streams), before.reshape(1, *shape))
        return outputs[0], state

    rows.compare(found, stored, expect)


@pytest.mark.parametrize(("level", "threads"), WAYS)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(("heads", "groups", "features", "size"), [(2, 1, 48, 32), (4, 2, 16, 256)])
def test_the_selective_scan(
    level_backends: Callable[..., Backend],
    level: str | None,
    threads: int,
    parts: list[Part],
    heads: int,
    groups: int,
    features: int,
    size: int,
) -> None:
    rows = Rows(parts)
    per = (1, rows.count)
    streams: list[Array] = [
        floats(*per, heads, features),
        *(floats(*per, groups, size, seed=seed) / 4 for seed in (1, 2)),
        floats(*per, heads, seed=3),
    ]
    fixed = np.linspace(-1, -2, heads, dtype=np.float32)[:, None], floats(heads, 1, seed=4)
    shape = (heads, features, size)
    backend = level_backends(level, threads)
    found, stored = computed(backend, rows, shape, selective_scan, *streams, *fixed)

    def expect(tokens: list[int], before: Array) -> tuple[Array, Array]:
        own = (x[:, tokens] for x in streams)
        outputs, state = scan(*own, *fixed, before.reshape(1, *shape))
        return outputs[0], state

    rows.compare(found, stored, expect)


@pytest.mark.parametrize(("level", "threads"), WAYS)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("features", "width"), [(16, 2), (272, 4), (48, 8)])
def test_the_convolution(
    level_backends: Callable[..., Backend],
    level: str | None,
    threads: int,
    parts: list[Part],
    features: int,
    width: int,
    *,
    has_bias: bool,
) -> None:
    rows = Rows(parts)
    x, kernel = floats(1, rows.count, features), floats(features, width, seed=1)
    bias = [floats(features, seed=2)] if has_bias else []

    def build(x: Tensor, kernel: Tensor, *rest: Any) -> Tensor:
        *biases, past = rest
        return slide(x, past, kernel, bias=biases[0] if biases else None, has_silu=has_bias)

    backend = level_backends(level, threads)
    shape = (features, width - 1)
    found, stored = computed(backend, rows, shape, build, x, kernel, *bias)

    def expect(tokens: list[int], before: Array) -> tuple[Array, Array]:
        window = np.concatenate([before.reshape(shape), x[0, tokens].T], 1).astype(np.float64)
        y = np.stack([(window[:, t : t + width] * kernel).sum(-1) for t in range(len(tokens))])
        return silu(y + bias[0]) if bias else y, window[:, len(tokens) :]

    rows.compare(found, stored, expect)


def test_the_token_before_each(level_backends: Callable[..., Backend]) -> None:
    rows = Rows(PARTS[2])
    x = floats(1, rows.count, 32)
    found, stored = computed(level_backends(None), rows, (32, 1), token_before, x)

    def expect(tokens: list[int], before: Array) -> tuple[Array, Array]:
        every = np.concatenate([before[None], x[0, tokens]])
        return every[:-1], every[-1]

    rows.compare(found, stored, expect)


def test_replaying_gives_the_same_bits_as_computing_one_by_one(
    level_backends: Callable[..., Backend],
) -> None:
    k = floats(1, 6, 1, 64, seed=1)
    streams = [
        floats(1, 6, 1, 64), k / np.linalg.norm(k, axis=-1, keepdims=True),
        floats(1, 6, 2, 64, seed=2), -np.abs(floats(1, 6, 2, seed=3)),
        np.full((1, 6, 2), 0.4, np.float32),
    ]  # fmt: skip
    backend, shape = level_backends(None, 2), (2, 64, 64)
    found = []
    for part in (Part(3, 1, 0), Part(0, 4, 0)):
        rows = Rows([part])
        padded = [np.zeros((1, rows.count, *x.shape[2:]), np.float32) for x in streams]
        for own, x in zip(padded, streams, strict=True):
            own[:, rows.each[0]] = x[:, :4]
        (outputs, states), _ = computed(backend, rows, shape, gated_delta_rule, *padded)
        found.append((outputs[rows.each[0][-1]], states[1]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_ggml_cannot_compute_parts(plain_backend: Backend) -> None:
    rows = Rows(PARTS[1])
    x = floats(1, rows.count, 32)
    with pytest.raises(ShapeError, match="parts without kernels"):
        computed(plain_backend, rows, (32, 1), token_before, x)
    scanned = [x[..., None].reshape(1, rows.count, 2, 16), *(x[:, :, None, :16],) * 2]
    fixed = x[..., :2], np.full((2, 1), -1, np.float32), np.ones((2, 1), np.float32)
    with pytest.raises(ShapeError, match="parts without kernels"):
        computed(plain_backend, rows, (2, 16, 16), selective_scan, *scanned, *fixed)


@pytest.mark.parametrize(
    ("channels", "width", "row", "fits"),
    [(16, 2, 16, True), (8192, 8, 256, True), (24, 2, 16, False), (16, 9, 16, False),
     (16, 2, 272, False), (16, 2, 8, False)],
)  # fmt: skip
def test_which_layers_fit(channels: int, width: int, row: int, *, fits: bool) -> None:
    assert fits_parts(channels, width, row) is fits
