"""The delta rule, the scan and the convolution on each level and by ggml, against float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import TYPES, floats
from support.kernels import levels
from support.reference import delta_rule, silu
from support.reference import selective_scan as reference_scan
from support.states import row_arrays, state_rows, written_states

from tampu.ml import Backend, Tensor
from tampu.ml.kernels import KernelChoice
from tampu.ml.recurrence import gated_delta_rule, slide
from tampu.ml.selective_scan import selective_scan

WAYS = [("ggml", 1), *((level, 1) for level in levels()), (None, 2), (None, 3)]
Array = npt.NDArray[Any]

delta: Callable[..., Tensor] = gated_delta_rule
scan_each: Callable[..., Tensor] = selective_scan
reference: Callable[..., tuple[Array, Array]] = delta_rule


def run(backend: Backend, build: Callable[..., Any], *arrays: Array) -> tuple[list[Array], bool]:
    """Compute in a graph; return also whether the package's kernels did."""
    context = backend.context()
    inputs = [context.input("x", array.shape, TYPES[array.dtype]) for array in arrays]
    outputs = [context.output(tensor) for tensor in build(*inputs)]
    data = [(t, np.ascontiguousarray(a)) for t, a in zip(inputs, arrays, strict=True)]
    found = [np.array(each) for each in backend.compute(context, data, outputs).outputs]
    used = bool(context.custom)
    context.close()
    return found, used


def rule(*tensors: Tensor) -> list[Tensor]:
    """Return the outputs, the states after them, and the rows of those before."""
    *operands, stored, read, written = tensors
    heads, features = operands[2].shape[2:]
    state = state_rows((heads, features, features), stored, read, written)
    return [delta(*operands, state), written_states(state), written_states(state, 0)]


@pytest.mark.parametrize(("level", "threads"), WAYS)
@pytest.mark.parametrize(
    ("sequences", "tokens", "key_heads", "heads", "features"),
    [
        (1, 1, 1, 2, 16), (2, 5, 2, 6, 48), (3, 1, 2, 4, 128), (1, 70, 1, 1, 64), (2, 20, 1, 2, 48),
        (1, 17, 2, 2, 128), (1, 16, 1, 1, 272),
    ],
)  # fmt: skip
@pytest.mark.parametrize("each", [False, True])
def test_the_delta_rule(
    level_backends: Callable[..., Backend],
    level: str | None,
    threads: int,
    sequences: int,
    tokens: int,
    key_heads: int,
    heads: int,
    features: int,
    *,
    each: bool,
) -> None:
    shape = (sequences, tokens, key_heads, features)
    gates = (sequences, tokens, heads)
    k = floats(*shape, seed=1)
    given: list[Any] = [
        floats(*shape),
        k / np.linalg.norm(k, axis=-1, keepdims=True),
        floats(sequences, tokens, heads, features, seed=2),
        -np.abs(floats(*gates, features, seed=3) if each else floats(*gates, seed=3)),
        1 / (1 + np.exp(-floats(*gates, seed=4))),
        floats(sequences, heads, features, features, seed=5),
    ]
    backend = level_backends(level, threads)
    *operands, before = given
    (outputs, states, unchanged), used = run(backend, rule, *operands, *row_arrays(before))
    assert used == (level != "ggml" and not (each and features > 256))
    expected, after = delta_rule(*given)
    np.testing.assert_allclose(outputs, expected, atol=2e-5)
    np.testing.assert_allclose(states, after, atol=2e-5)
    np.testing.assert_array_equal(unchanged, before[::-1])


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("decay", [0.0, -1e-4, -0.7, -20.0, -80.0])
def test_many_tokens_with_decays_of_any_size(
    level_backends: Callable[..., Backend], decay: float, *, each: bool
) -> None:
    k = floats(1, 200, 1, 64, seed=1)
    decays = np.full((1, 200, 2), decay, np.float32)
    decays[:, 120, 1] = -1e4  # which leaves nothing
    if each:
        decays = decays[..., None] * np.linspace(0, 1, 64, dtype=np.float32)
    given: list[Any] = [
        floats(1, 200, 1, 64), k / np.linalg.norm(k, axis=-1, keepdims=True),
        floats(1, 200, 2, 64, seed=2), decays, np.full((1, 200, 2), 0.5, np.float32),
        floats(1, 2, 64, 64, seed=5),
    ]  # fmt: skip
    *operands, before = given
    (outputs, states, _), _ = run(level_backends(None), rule, *operands, *row_arrays(before))
    expected, after = delta_rule(*given)
    np.testing.assert_allclose(outputs, expected, atol=2e-5)
    np.testing.assert_allclose(states, after, atol=5e-5)


def scan(*tensors: Tensor) -> list[Tensor]:
    """Return the outputs, the states after them, and the rows of those before."""
    *operands, stored, read, written = tensors
    state = state_rows((*operands[0].shape[2:], operands[1].shape[3]), stored, read, written)
    y = scan_each(*operands, state)
    return [y, written_states(state), written_states(state, 0)]


@pytest.mark.parametrize(("level", "threads"), WAYS)
@pytest.mark.parametrize("decay", [1e-4, 1.0, 30.0])
@pytest.mark.parametrize(
    ("sequences", "tokens", "heads", "groups", "features", "size"),
    [
        (1, 1, 4, 2, 16, 16),
        (3, 5, 2, 1, 48, 32),
        (1, 70, 4, 4, 64, 128),
        (2, 16, 2, 1, 80, 48),
        (1, 20, 1, 1, 16, 272),
    ],
)
def test_the_selective_scan(
    level_backends: Callable[..., Backend],
    level: str | None,
    threads: int,
    sequences: int,
    tokens: int,
    heads: int,
    groups: int,
    features: int,
    size: int,
    decay: float,
) -> None:
    per = (sequences, tokens)
    given: list[Any] = [
        floats(*per, heads, features),
        *(floats(*per, groups, size, seed=seed) / 4 for seed in (1, 2)),
        3 * floats(*per, heads, seed=3),
        np.linspace(-decay, -2 * decay, heads, dtype=np.float32)[:, None],
        floats(heads, 1, seed=4),
        floats(sequences, heads, features, size, seed=5),
    ]
    *operands, before = given
    found, used = run(level_backends(level, threads), scan, *operands, *row_arrays(before))
    assert used == (level != "ggml")
    expected, after = reference_scan(*given)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], after, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found[2], before[::-1])


@pytest.mark.parametrize("tokens", [1, 16])
def test_a_decay_to_nothing_forgets(level_backends: Callable[..., Backend], tokens: int) -> None:
    given: list[Any] = [floats(1, tokens, 1, 16, seed=seed) for seed in range(3)]
    given += [np.full((1, tokens, 1), -1e4, np.float32), np.zeros((1, tokens, 1), np.float32)]
    given += row_arrays(floats(1, 1, 16, 16, seed=3))
    (outputs, states, _), _ = run(level_backends(None), rule, *given)
    assert np.abs(outputs).max() < 1e-30
    assert np.abs(states).max() < 1e-30


@pytest.mark.parametrize(("level", "threads"), WAYS)
@pytest.mark.parametrize("has_silu", [False, True])
@pytest.mark.parametrize(
    ("sequences", "tokens", "features", "width"),
    [(1, 1, 16, 2), (2, 1, 48, 4), (1, 2, 272, 4), (3, 9, 528, 3), (1, 40, 256, 8), (1, 5, 24, 4)],
)
def test_the_convolution(
    level_backends: Callable[..., Backend],
    level: str | None,
    threads: int,
    *,
    has_silu: bool,
    sequences: int,
    tokens: int,
    features: int,
    width: int,
) -> None:
    x, kernel = floats(sequences, tokens, features), floats(features, width, seed=1)
    past = floats(sequences, features, width - 1, seed=2)

    def build(x: Tensor, kernel: Tensor, *rows: Tensor) -> list[Tensor]:
        state = state_rows((features, width - 1), *rows)
        return [slide(x, state, kernel, has_silu=has_silu), written_states(state)]

    arrays = (x, kernel, *row_arrays(past))
    (found, last), used = run(level_backends(level, threads), build, *arrays)
    assert used == (level != "ggml" and features % 16 == 0)
    window = np.concatenate([past, x.swapaxes(1, 2)], 2).astype(np.float64)
    expected = np.stack([(window[:, :, t : t + width] * kernel).sum(-1) for t in range(tokens)], 1)
    np.testing.assert_allclose(found, silu(expected) if has_silu else expected, atol=1e-5)
    np.testing.assert_array_equal(last, window[:, :, tokens:].astype(np.float32))


def test_sequences_continue_from_rows_that_the_same_graph_wrote(
    level_backends: Callable[..., Backend],
) -> None:
    k = floats(2, 7, 1, 32, seed=1)
    streams = [
        floats(2, 7, 1, 32),
        k / np.linalg.norm(k, axis=-1, keepdims=True),
        floats(2, 7, 2, 32, seed=2),
        -np.abs(floats(2, 7, 2, seed=3)),
        np.full((2, 7, 2), 0.4, np.float32),
    ]
    state = floats(2, 2, 32, 32, seed=5)

    def in_two(*tensors: Tensor) -> list[Tensor]:
        *halves, stored, read, written, read_next, written_next = tensors
        first = state_rows((2, 32, 32), stored, read, written)
        second = state_rows((2, 32, 32), stored, read_next, written_next)
        y, z = delta(*halves[:5], first), delta(*halves[5:], second)
        return [y, z, written_states(second, 2)]

    halves = [part[:, cut] for cut in (slice(0, 4), slice(4, 7)) for part in streams]
    (y, z, end), used = run(level_backends(None, 3), in_two, *halves, *row_arrays(state, 2))
    assert used
    expected, after = reference(*streams, state)
    np.testing.assert_allclose(np.concatenate([y, z], 1), expected, atol=2e-5)
    np.testing.assert_allclose(end, after, atol=2e-5)


def test_kernels_of_other_operations_alone_leave_it_to_ggml() -> None:
    assert KernelChoice.from_word("on").recurrence
    assert KernelChoice.from_word("recurrence") == KernelChoice(
        products=False, experts=False, attention=False
    )
    assert not KernelChoice.from_word("attention").recurrence
