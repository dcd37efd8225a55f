"""Attention over a cache in tiles, against float64, on each level."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.kernels import WITH_TILES, each, exact, levels, normal

from tampu.errors import ShapeError
from tampu.ml import Backend, GGMLType, Tensor
from tampu.ml.attention import flash_attention, reads_in_place
from tampu.ml.quantize import quantize

CACHE = {GGMLType.F32: np.float32, GGMLType.F16: np.float16}
CACHED = [GGMLType.F16, GGMLType.Q8_0]


def causal(tokens: int, history: int) -> npt.NDArray[Any]:
    """The mask of the last tokens of a history."""
    cells = np.arange(history)
    visible = cells[None, :] <= (history - tokens + np.arange(tokens))[:, None]
    return np.where(visible, 0, -np.inf).astype(np.float16)


def reference(
    q: npt.NDArray[np.floating],
    k: npt.NDArray[np.floating],
    v: npt.NDArray[np.floating],
    mask: npt.NDArray[np.float16] | None,
    scale: float,
    cap: float | None = None,
    sinks: npt.NDArray[np.float32] | None = None,
    slopes: Sequence[float] | None = None,
) -> Any:
    """Attention in float64; q is (heads, tokens, n), k and v are (kv heads, history, n)."""
    group = len(q) // len(k)
    k, v = (np.repeat(side.astype(np.float64), group, axis=0) for side in (k, v))
    scores = q.astype(np.float64) @ k.transpose(0, 2, 1) * scale
    if cap is not None:
        scores = cap * np.tanh(scores / cap)
    if mask is not None:
        slope = np.ones(len(q)) if slopes is None else np.array(slopes)
        scores = scores + mask.astype(np.float64) * slope[:, None, None]
    highest = scores.max(-1, keepdims=True)
    if sinks is not None:
        highest = np.maximum(highest, sinks[:, None, None])
    weights = np.exp(scores - highest)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - highest)
    return (weights / total @ v).transpose(1, 0, 2)


def stored(
    array: npt.NDArray[np.float32], kind: GGMLType
) -> npt.NDArray[np.float64] | npt.NDArray[Any]:
    """What a cache of this type has of these numbers."""
    if kind is GGMLType.Q8_0:
        return exact(quantize(array, kind), kind).reshape(array.shape)
    return array.astype(CACHE[kind])


@pytest.fixture
def attend() -> Callable[..., Any]:
    """Compute attention in a graph on a backend."""

    def attend(
        backend: Backend,
        q: npt.NDArray[np.float32],
        k: npt.NDArray[np.float32],
        v: npt.NDArray[np.float32],
        mask: npt.NDArray[np.float16] | npt.NDArray[Any] | None,
        *,
        kind: GGMLType = GGMLType.F32,
        scale: float = 0.125,
        cap: float | None = None,
        sinks: npt.NDArray[np.float32] | None = None,
        max_bias: float = 0.0,
    ) -> npt.NDArray[Any]:
        context = backend.context(64)
        data: list[tuple[Tensor, npt.NDArray[Any]]] = []

        def given(array: npt.NDArray[Any] | npt.NDArray[np.float32], type_: GGMLType) -> Tensor:
            shape = array.shape
            if type_ is GGMLType.Q8_0:
                array = quantize(array, type_)
            tensor = context.host.empty(shape, type_)
            _fill(tensor, array)
            return tensor

        queries = context.input("q", q.shape, GGMLType.F32)
        data.append((queries, q))
        hidden = None
        if mask is not None:
            hidden = context.input("mask", mask.shape, GGMLType.F16)
            data.append((hidden, mask))
        keys, values = (given(side.astype(CACHE.get(kind, np.float32)), kind) for side in (k, v))
        assert reads_in_place(queries, keys, values) is (backend.kernels is not None)
        extra = given(sinks, GGMLType.F32) if sinks is not None else None
        options: dict[str, Any] = {"cap": cap, "sinks": extra, "max_bias": max_bias}
        mixed = flash_attention(queries, keys, values, hidden, scale, **options)
        found = backend.compute(context, data, [context.output(mixed)]).outputs[0]
        context.close()
        return found

    return attend


@pytest.fixture
def attend_at(
    level_backends: Callable[..., Any], attend: Callable[..., Any]
) -> Callable[..., Iterator[npt.NDArray[Any]]]:
    """Compute it on each level in turn."""

    def attend_at(
        *arrays: Any, at: Sequence[str] = levels(), **options: Any
    ) -> Iterator[npt.NDArray[Any]]:
        for level in at:
            yield attend(level_backends(level), *arrays, **options)

    return attend_at


def _fill(tensor: Tensor, array: npt.NDArray[Any] | npt.NDArray[np.float32]) -> None:
    from tampu.ml.library import gg

    data = np.ascontiguousarray(array)
    gg.ggml_backend_tensor_set(tensor.pointer, data.ctypes.data, 0, data.nbytes)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (7, 1), (80, 1)])
def test_attention_is_softmax_of_products(
    attend_at: Callable[..., Any], heads: int, kv_heads: int
) -> None:
    mask = causal(5, 70)
    for features in (4, 16, 64, 72, 96, 128, 192, 260, 512, 576):
        q, k = normal(heads, 5, features), normal(kv_heads, 70, features, seed=1)
        v = normal(kv_heads, 70, features, seed=2)
        expected = reference(q, k, v, mask, 0.125)
        for found in attend_at(q, k, v, mask):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@each(CACHED)
@pytest.mark.parametrize("tokens", [1, 70])
def test_the_error_is_at_most_ggmls(
    attend_at: Callable[..., Any], kind: GGMLType, tokens: int
) -> None:
    mask, sinks = causal(tokens, 200), np.arange(8, dtype=np.float32)
    options: list[dict[str, Any]] = [{}, {"cap": 3.0}, {"sinks": sinks}]
    for features, extras in zip((64, 128, 256, 512, 64, 64), options * 2, strict=True):
        q = normal(8, tokens, features)
        k, v = normal(2, 200, features, seed=1), normal(2, 200, features, seed=2)
        exact = reference(q, k, v, mask, 0.125, **extras)
        both = attend_at(q, k, v, mask, kind=kind, at=["ggml", *levels()], **extras)
        theirs, *ours = (np.linalg.norm(found - exact) for found in both)
        assert max(ours) <= 1.1 * theirs, (features, extras)


@each(CACHED)
@pytest.mark.parametrize("cap", [None, 5.0])
def test_caches_of_every_type_are_read_exactly(
    attend_at: Callable[..., Any], kind: GGMLType, cap: float | None
) -> None:
    """With values of another size than keys, sinks, and two sequences whose cells alternate."""
    q, sinks = normal(6, 9, 192), np.array([-9, 0, 0.5, 1, 3, 30], np.float32)
    k, v = normal(2, 150, 192, seed=1), normal(2, 150, 128, seed=2)
    is_seen = np.arange(9)[:, None] % 2 == np.arange(150)[None, :] % 2
    mask = np.where(is_seen, 0, -np.inf).astype(np.float16)
    expected = reference(q, stored(k, kind), stored(v, kind), mask, 0.125, cap=cap, sinks=sinks)
    for found in attend_at(q, k, v, mask, kind=kind, cap=cap, sinks=sinks):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@each(CACHED)
@pytest.mark.parametrize("tokens", [1, 9, 40])
def test_latent_rows_are_keys_and_their_first_features_values(
    attend_at: Callable[..., Any], kind: GGMLType, tokens: int
) -> None:
    """The shape of DeepSeek's latent attention: 576 features of one key, 512 of them its value."""
    q, k = normal(16, tokens, 576), normal(1, 150, 576, seed=1)
    mask = causal(tokens, 150)
    expected = reference(q, stored(k, kind), stored(k, kind)[..., :512], mask, 0.07)
    for found in attend_at(q, k, k[..., :512], mask, kind=kind, scale=0.07):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@each([GGMLType.F16, GGMLType.F32])
def test_many_tokens_attend_to_one_another(attend_at: Callable[..., Any], kind: GGMLType) -> None:
    """As in towers: heads of 72 features, so many rows that tasks are larger than usual."""
    q, k, v = normal(4, 300, 72), normal(4, 300, 72, seed=1), normal(4, 300, 72, seed=2)
    expected = reference(q, k.astype(CACHE[kind]), v.astype(CACHE[kind]), None, 0.125)
    for found in attend_at(q, k, v, None, kind=kind):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("tokens", [1, 2, 9, 33])
def test_any_history_and_number_of_tokens_works(attend_at: Callable[..., Any], tokens: int) -> None:
    for history in (1, 15, 16, 17, 63, 64, 65, 256):
        q, k = normal(4, tokens, 32), normal(2, history, 32, seed=1)
        v = normal(2, history, 32, seed=2)
        for found in attend_at(q, k, v, None):
            expected = reference(q, k, v, None, 0.125)
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_scores_are_capped(attend_at: Callable[..., Any]) -> None:
    q, k, v = 9 * normal(4, 3, 64), normal(2, 100, 64, seed=1), normal(2, 100, 64, seed=2)
    mask = causal(3, 100)
    for found in attend_at(q, k, v, mask, scale=1.0, cap=20.0):
        expected = reference(q, k, v, mask, 1.0, cap=20.0)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_alibi_multiplies_the_mask_by_the_slope_of_each_head(attend_at: Callable[..., Any]) -> None:
    """Slopes of six heads: those of four, and every second one of eight (arXiv:2108.12409)."""
    slopes = [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    for tokens in (3, 40):
        q, k = normal(6, tokens, 64), normal(2, 100, 64, seed=1)
        v, distance = (
            normal(2, 100, 64, seed=2),
            np.arange(100)[None] - 60 - np.arange(tokens)[:, None],
        )
        mask = np.where(distance > 0, -np.inf, distance).astype(np.float16)
        expected = reference(q, k, v, mask, 0.125, slopes=slopes)
        for found in attend_at(q, k, v, mask, max_bias=8.0, at=["ggml", *levels()]):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cap", [None, 5.0])
def test_sinks_take_their_share(attend_at: Callable[..., Any], cap: float | None) -> None:
    q, k, v = normal(4, 3, 64), normal(2, 100, 64, seed=1), normal(2, 100, 64, seed=2)
    sinks, mask = np.array([-30, 0.5, 3, 30], np.float32), causal(3, 100)
    for found in attend_at(q, k, v, mask, cap=cap, sinks=sinks):
        expected = reference(q, k, v, mask, 0.125, cap=cap, sinks=sinks)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_sequences_in_one_batch_see_their_own_cells(attend_at: Callable[..., Any]) -> None:
    """Eight sequences of 64 cells each, one token each, and one that sees scattered cells."""
    source = np.random.default_rng(0)
    mask = np.full((9, 512), -np.inf, np.float16)
    for token in range(8):
        mask[token, 64 * token : 64 * token + 1 + 7 * token] = 0
    mask[8, source.choice(512, 40, replace=False)] = 0
    q, k, v = normal(8, 9, 64), normal(2, 512, 64, seed=1), normal(2, 512, 64, seed=2)
    for found in attend_at(q, k, v, mask):
        expected = reference(q, k, v, mask, 0.125)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_extreme_scores_neither_overflow_nor_vanish(attend_at: Callable[..., Any]) -> None:
    q, k, v = normal(2, 2, 64), normal(2, 200, 64, seed=1), normal(2, 200, 64, seed=2)
    for factor in (1e-30, 1e-3, 1e3, 1e15):
        scaled = (q * np.float64(factor)).astype(np.float32)
        expected = reference(scaled, k, v, None, 0.125)
        for found in attend_at(scaled, k, v, None):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_a_token_that_sees_nothing_gets_zeros(attend_at: Callable[..., Any]) -> None:
    q, k, v = normal(2, 3, 64), normal(2, 64, 64, seed=1), normal(2, 64, 64, seed=2)
    mask = np.zeros((3, 64), np.float16)
    mask[1] = -np.inf
    expected = reference(q[:, ::2], k, v, mask[::2], 0.125)
    for found in attend_at(q, k, v, mask):
        assert not found[1].any()
        np.testing.assert_allclose(found[::2], expected, rtol=2e-5, atol=2e-5)


def test_a_nan_query_affects_its_own_token_only(attend_at: Callable[..., Any]) -> None:
    q, k, v = normal(2, 3, 64), normal(1, 64, 64, seed=1), normal(1, 64, 64, seed=2)
    q[:, 1, 7] = np.nan
    expected = reference(q[:, ::2], k, v, None, 0.125)
    for found in attend_at(q, k, v, None):
        assert np.isnan(found[1]).all()
        np.testing.assert_allclose(found[::2], expected, rtol=2e-5, atol=2e-5)


@each([GGMLType.F16, GGMLType.F32])
@pytest.mark.parametrize("tokens", [2, 40])
def test_cells_that_are_hidden_may_hold_anything(
    attend_at: Callable[..., Any], kind: GGMLType, tokens: int
) -> None:
    """What another sequence spoilt does not change a bit of those that do not see it."""
    q, k, v = normal(8, tokens, 64), normal(2, 150, 64, seed=1), normal(2, 150, 64, seed=2)
    mask = np.zeros((tokens, 150), np.float16)
    mask[:-1, [9, 77, 149]] = -np.inf
    unspoilt = [*attend_at(q, k, v, mask, kind=kind)]
    for bad in (np.nan, -np.inf):
        k[0, 9], k[1, 77], v[0, 77], v[1, 149] = (bad,) * 4
        for found, good in zip(attend_at(q, k, v, mask, kind=kind), unspoilt, strict=True):
            assert np.array_equal(found[:-1], good[:-1])
            assert not np.isfinite(found[-1]).all(-1).any()


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("tokens", [1, 40])
def test_the_number_of_threads_changes_no_bit(
    level_backends: Callable[..., Any], attend: Callable[..., Any], threads: int, tokens: int
) -> None:
    q, k, v = normal(8, tokens, 64), normal(2, 128, 64, seed=1), normal(2, 128, 64, seed=2)
    mask = causal(tokens, 128)
    one = attend(level_backends(None), q, k, v, mask)
    assert np.array_equal(attend(level_backends(None, threads), q, k, v, mask), one)


def test_sinks_that_do_not_fit_the_heads_are_refused(
    level_backends: Callable[..., Any], attend: Callable[..., Any]
) -> None:
    q, k, v = normal(2, 3, 64), normal(1, 64, 64, seed=1), normal(1, 64, 64, seed=2)
    with pytest.raises(ShapeError, match="sinks"):
        attend(level_backends(None), q, k, v, None, sinks=np.zeros(3, np.float32))


@each([GGMLType.F16, GGMLType.Q8_0])
def test_a_token_does_not_depend_on_its_neighbours(
    level_backends: Callable[..., Any], attend: Callable[..., Any], kind: GGMLType
) -> None:
    """Eight tokens of four heads are 32 rows: by tiles, where there are any."""
    k, v = normal(2, 192, 64, seed=1), normal(2, 192, 64, seed=2)
    for level in levels():
        for many, some in ((7 if level in WITH_TILES else 9, 1), (21, 8)):
            if some == 8 and level not in WITH_TILES:
                continue
            q, mask = normal(8, many, 64), causal(many, 192)
            together = attend(level_backends(level), q, k, v, mask, kind=kind)
            for first in {0, (many - some) // 2, many - some}:
                part = slice(first, first + some)
                queries = np.ascontiguousarray(q[:, part])
                alone = attend(level_backends(level), queries, k, v, mask[part], kind=kind)
                assert np.array_equal(alone, together[part]), (level, many, first)


def test_other_cells_change_only_the_last_bits(
    level_backends: Callable[..., Any], attend: Callable[..., Any]
) -> None:
    """The price of tiles: the same cells, but sixty behind other sequences' cells."""
    q, k, v = normal(8, 1, 64), normal(2, 100, 64, seed=1), normal(2, 100, 64, seed=2)
    first = attend(level_backends(None), q, k, v, np.zeros((1, 100), np.float16))
    k, v = (np.concatenate([normal(2, 60, 64, seed=3), side], axis=1) for side in (k, v))
    mask = np.zeros((1, 160), np.float16)
    mask[:, :60] = -np.inf
    moved = attend(level_backends(None), q, k, v, mask)
    assert not np.array_equal(moved, first)
    np.testing.assert_allclose(moved, first, rtol=1e-5, atol=1e-6)
