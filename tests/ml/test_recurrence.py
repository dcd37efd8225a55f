"""Operations of recurrent layers against the recurrence written out in NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import floats
from support.reference import delta_rule
from support.reference import selective_scan as scan_by_numpy
from support.states import row_arrays, state_rows, written_states

from tampu.errors import ShapeError
from tampu.ml import Tensor
from tampu.ml.recurrence import gated_delta_rule, repeat_heads, slide, softplus, unit_vectors
from tampu.ml.selective_scan import selective_scan

Arrays = list[npt.NDArray[np.float32]]

delta: Callable[..., Tensor] = gated_delta_rule
scan_each: Callable[..., Tensor] = selective_scan
reference_scan: Callable[..., tuple[npt.NDArray[Any], npt.NDArray[Any]]] = scan_by_numpy
reference: Callable[..., tuple[npt.NDArray[Any], npt.NDArray[Any]]] = delta_rule


def operands(
    sequences: int = 2,
    tokens: int = 5,
    key_heads: int = 2,
    heads: int = 4,
    features: int = 16,
    *,
    each: bool = False,
) -> Arrays:
    """Return queries, keys, values, logarithms of decays, betas and states."""
    vectors = (sequences, tokens, key_heads, features)
    k = floats(*vectors, seed=1)
    gates = floats(2, sequences, tokens, heads, seed=3)
    decays = floats(sequences, tokens, heads, features, seed=6) if each else gates[0]
    return [
        floats(*vectors),
        k / np.linalg.norm(k, axis=-1, keepdims=True),
        floats(sequences, tokens, heads, features, seed=2),
        -np.abs(decays),
        1 / (1 + np.exp(-gates[1])),
        floats(sequences, heads, features, features, seed=4),
    ]


def in_rows(arrays: Arrays, steps: int = 1) -> list[npt.NDArray[Any]]:
    """Return operands with the states in rows of a tensor."""
    return [*arrays[:-1], *row_arrays(arrays[-1], steps)]


def rule(*tensors: Tensor) -> list[Tensor]:
    """Compute all tokens; return the outputs and the states after them."""
    *operands, stored, read, written = tensors
    heads, features = operands[2].shape[2:]
    state = state_rows((heads, features, features), stored, read, written)
    return [delta(*operands, state), written_states(state)]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("tokens", [1, 2, 70])
@pytest.mark.parametrize(("key_heads", "heads"), [(1, 1), (2, 4), (3, 3), (2, 6)])
def test_the_delta_rule_is_the_recurrence(
    compute: Callable[..., Any],
    sequences: int,
    tokens: int,
    key_heads: int,
    heads: int,
    *,
    each: bool,
) -> None:
    given = operands(sequences, tokens, key_heads, heads, each=each)
    outputs, states = compute(rule, *in_rows(given))
    expected, after = delta_rule(*given)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    np.testing.assert_allclose(states, after, atol=1e-5)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("features", [32, 64, 128])
def test_heads_of_any_size(compute: Callable[..., Any], features: int, *, each: bool) -> None:
    given = operands(1, 3, 1, 2, features, each=each)
    outputs, states = compute(rule, *in_rows(given))
    expected, after = delta_rule(*given)
    np.testing.assert_allclose(outputs, expected, atol=2e-5)
    np.testing.assert_allclose(states, after, atol=2e-5)


def test_the_state_after_some_tokens_continues_with_the_others(
    compute: Callable[..., Any],
) -> None:
    *streams, state = operands(2, 7)

    def in_two(*tensors: Tensor) -> list[Tensor]:
        *halves, stored, read, written, read_next, written_next = tensors
        shape = state.shape[1:]
        first = state_rows(shape, stored, read, written)
        y = delta(*halves[:5], first)
        second = state_rows(shape, stored, read_next, written_next)
        second.before = first.after
        return [y, delta(*halves[5:], second), written_states(second, 2)]

    halves = [part for cut in (slice(0, 4), slice(4, 7)) for part in (s[:, cut] for s in streams)]
    first, second, end = compute(in_two, *in_rows([*halves, state], 2))
    expected, after = reference(*streams, state)
    np.testing.assert_allclose(np.concatenate([first, second], 1), expected, atol=1e-5)
    np.testing.assert_allclose(end, after, atol=1e-5)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("index", range(6))
def test_operands_of_other_shapes_are_refused(
    given: Callable[[npt.NDArray[Any]], Tensor], index: int, *, each: bool
) -> None:
    arrays = operands(each=each)
    arrays[index] = np.concatenate([arrays[index]] * 2, axis=0)
    with pytest.raises(ShapeError, match="delta rule"):
        rule(*map(given, in_rows(arrays)))


def test_value_heads_that_are_no_multiple_of_the_key_heads_are_refused(
    given: Callable[[npt.NDArray[Any]], Tensor],
) -> None:
    with pytest.raises(ShapeError, match="delta rule"):
        rule(*map(given, in_rows(operands(key_heads=3))))


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("sequences", "tokens", "features", "width"),
    [(1, 1, 16, 4), (2, 2, 24, 4), (3, 9, 32, 3), (2, 16, 24, 4), (1, 70, 16, 2), (1, 20, 16, 7)],
)
def test_the_convolution_slides_over_the_tokens_before(
    compute: Callable[..., Any],
    sequences: int,
    tokens: int,
    features: int,
    width: int,
    *,
    has_bias: bool,
) -> None:
    x, kernel = floats(sequences, tokens, features), floats(features, width, seed=1)
    past, bias = floats(sequences, features, width - 1, seed=2), floats(features, seed=3) * has_bias

    def build(x: Tensor, kernel: Tensor, bias: Tensor, *rows: Tensor) -> list[Tensor]:
        state = state_rows((features, width - 1), *rows)
        y = slide(x, state, kernel, bias=bias if has_bias else None)
        return [y, written_states(state)]

    found, last = compute(build, x, kernel, bias, *row_arrays(past))
    window = np.concatenate([past, x.swapaxes(1, 2)], 2).astype(np.float64)
    expected = [(window[:, :, t : t + width] * kernel).sum(-1) + bias for t in range(tokens)]
    np.testing.assert_allclose(found, np.stack(expected, 1), atol=1e-5)
    np.testing.assert_array_equal(last, window[:, :, tokens:].astype(np.float32))


def test_softplus(compute: Callable[..., Any]) -> None:
    x = np.array([[-30, -1, 0, 2, 19, 21, 90]], np.float32)
    np.testing.assert_allclose(compute(softplus, x), np.logaddexp(0, x), rtol=1e-5, atol=1e-7)


def test_unit_vectors_have_the_epsilon_under_the_root(compute: Callable[..., Any]) -> None:
    x = floats(3, 2, 8) * np.array([1e-3, 1, 30], np.float32)[:, None, None]
    length = np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(
        compute(lambda x: unit_vectors(x, 1e-6), x), x / length, rtol=1e-5, atol=1e-7
    )


def test_heads_are_repeated_next_to_one_another(compute: Callable[..., Any]) -> None:
    x = floats(2, 3, 2, 4)
    assert np.array_equal(compute(lambda x: repeat_heads(x, 3), x), np.repeat(x, 3, axis=2))


_SCANNED = [  # sequences, tokens, heads, groups, features, size, whether each element has a decay
    (1, 1, 4, 2, 16, 16, False),
    (2, 3, 2, 1, 48, 32, False),
    (1, 70, 4, 4, 64, 128, False),
    (3, 20, 4, 1, 16, 16, False),
    (2, 17, 3, 1, 5, 8, False),
    (2, 5, 32, 1, 1, 16, True),
]


def scanned(
    sequences: int, tokens: int, heads: int, groups: int, features: int, size: int, each: bool
) -> Arrays:
    """Return inputs, b, c, steps, decays, skips and states; some decays leave nothing."""
    per = (sequences, tokens)
    return [
        floats(*per, heads, features),
        floats(*per, groups, size, seed=1),
        floats(*per, groups, size, seed=2),
        floats(*per, heads, seed=3),
        -np.exp(2 * floats(heads, size if each else 1, seed=4)),
        floats(heads, 1, seed=5),
        floats(sequences, heads, features, size, seed=6),
    ]


def scan(*tensors: Tensor) -> list[Tensor]:
    """Compute all tokens; return the outputs and the states after them."""
    *operands, stored, read, written = tensors
    state = state_rows((*operands[0].shape[2:], operands[1].shape[3]), stored, read, written)
    return [scan_each(*operands, state), written_states(state)]


@pytest.mark.parametrize("shape", _SCANNED)
def test_the_selective_scan_is_the_recurrence(compute: Callable[..., Any], shape: Any) -> None:
    given = scanned(*shape)
    outputs, states = compute(scan, *in_rows(given))
    expected, after = reference_scan(*given)
    np.testing.assert_allclose(outputs, expected, atol=5e-5)
    np.testing.assert_allclose(states, after, atol=5e-5)


@pytest.mark.parametrize("features", [16, 5])  # by the kernels, and by ggml
def test_a_scan_continues_from_states_in_the_same_graph(
    compute: Callable[..., Any], features: int
) -> None:
    *streams, decay, skip, state = scanned(2, 7, 4, 2, features, 16, each=False)

    def in_two(*tensors: Tensor) -> list[Tensor]:
        *halves, decay, skip, stored, read, written, read_next, written_next = tensors
        first = state_rows(state.shape[1:], stored, read, written)
        y = scan_each(*halves[:4], decay, skip, first)
        second = state_rows(state.shape[1:], stored, read_next, written_next)
        second.before = first.after
        z = scan_each(*halves[4:], decay, skip, second)
        return [y, z, written_states(second, 2)]

    halves = [part for cut in (slice(0, 4), slice(4, 7)) for part in (s[:, cut] for s in streams)]
    first, second, end = compute(in_two, *in_rows([*halves, decay, skip, state], 2))
    expected, after = reference_scan(*streams, decay, skip, state)
    np.testing.assert_allclose(np.concatenate([first, second], 1), expected, atol=2e-5)
    np.testing.assert_allclose(end, after, atol=2e-5)


@pytest.mark.parametrize("index", range(7))
def test_a_scan_refuses_operands_of_other_shapes(
    given: Callable[[npt.NDArray[Any]], Tensor], index: int
) -> None:
    arrays = scanned(2, 3, 4, 2, 16, 16, each=False)
    arrays[index] = np.concatenate([arrays[index]] * 2, axis=0)
    with pytest.raises(ShapeError, match="scan"):
        scan(*map(given, in_rows(arrays)))
