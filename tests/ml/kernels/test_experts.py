"""Products with the experts that tokens chose, against float64 and against ggml's own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.kernels import KINDS, WITH_TILES, each, error, levels, normal

from tampu.ml import Backend, GGMLType
from tampu.ml.buffer_types import WeightUse
from tampu.ml.kernels import KernelChoice
from tampu.ml.moe import expert_linear, weighted_total
from tampu.ml.quantize import quantize


def choices(tokens: int, used: int, experts: int, seed: int = 0) -> npt.NDArray[Any]:
    """Each token's experts, all of them different."""
    source = np.random.default_rng(seed)
    rows = [source.permutation(experts)[:used] for _ in range(tokens)]
    return np.array(rows, np.int32)


def expected(
    x: npt.NDArray[np.float32], values: npt.NDArray[np.float32], choice: npt.NDArray[Any]
) -> Any:
    """In float64; x is (tokens, used or 1, inputs)."""
    x = np.broadcast_to(x, (*choice.shape, x.shape[-1])).astype(np.float64)
    return np.einsum("tui,tuoi->tuo", x, values[choice])


@pytest.fixture
def stack(load: Any) -> Callable[[Any, Any], Any]:
    """Store matrices (experts, outputs, inputs) as a type; return their values and a loader."""

    def write(matrices: npt.NDArray[np.float32], kind: GGMLType) -> Any:
        stored = quantize(matrices.reshape(-1, matrices.shape[-1]), kind)
        return load.stored(stored.reshape(*matrices.shape[:2], -1), kind, [WeightUse.EXPERTS])

    return write


@pytest.fixture
def multiply_experts() -> Callable[..., Any]:
    """Return x multiplied by each stack of weights, by one choice, in one graph."""

    def multiply(
        backend: Backend, x: npt.NDArray[np.float32], choice: npt.NDArray[Any], *weights: Any
    ) -> list[npt.NDArray[Any]] | npt.NDArray[Any]:
        context = backend.context(64)
        given = context.input("x", x.shape, GGMLType.F32)
        chosen = context.input("choice", choice.shape, GGMLType.I32)
        products = [context.output(expert_linear(given, weight, chosen)) for weight in weights]
        inputs = [(given, x), (chosen, choice)]
        found = backend.compute(context, inputs, products).outputs
        context.close()
        return found if len(weights) > 1 else found[0]

    return multiply


@each(KINDS)
def test_the_error_is_at_most_ggmls(
    level_backends: Callable[..., Any],
    stack: Callable[[Any, Any], Any],
    multiply_experts: Callable[..., Any],
    kind: GGMLType,
) -> None:
    values, bind = stack(normal(6, 40, 512), kind)
    weights = {level: bind(level_backends(level)) for level in ("ggml", *levels())}
    assert [level for level, weight in weights.items() if weight.packed is None] == ["ggml"]
    for tokens, used, shared in [(1, 3, True), (1, 3, False), (9, 2, True), (40, 3, False)]:
        x = normal(tokens, 1 if shared else used, 512, seed=tokens)
        choice = choices(tokens, used, 6)
        exact = expected(x, values, choice)
        theirs, *ours = (
            error(multiply_experts(level_backends(level), x, choice, weight), exact)
            for level, weight in weights.items()
        )
        assert max(ours) <= 1.1 * theirs + 1e-6


@pytest.mark.parametrize(
    ("level", "threads"), [*((level, 1) for level in levels()), (None, 2), (None, 3)]
)
@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "F16", "BF16"])
@pytest.mark.parametrize("rows", [1, 15, 33])
def test_any_number_of_rows_tokens_and_experts_works(
    level_backends: Callable[..., Any],
    stack: Callable[[Any, Any], Any],
    multiply_experts: Callable[..., Any],
    name: str,
    level: str | None,
    rows: int,
    threads: int,
) -> None:
    backend = level_backends(level, threads)
    values, bind = stack(normal(5, rows, 256), GGMLType[name])
    weight = bind(backend)
    for tokens, used in [(1, 1), (1, 5), (2, 3), (13, 5), (26, 1), (31, 2)]:
        x, choice = normal(tokens, 1, 256, seed=tokens), choices(tokens, used, 5, seed=used)
        found = multiply_experts(backend, x, choice, weight)
        assert found.shape == (tokens, used, rows)
        size = np.linalg.norm(x, axis=2)[:, :, None] * np.linalg.norm(values, axis=2)[choice]
        assert np.abs((found - expected(x, values, choice)) / size).max() < 2e-2


@pytest.mark.parametrize("name", ["F16", "BF16"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_floats_work_in_any_multiple_of_sixteen(
    level_backends: Callable[..., Any],
    stack: Callable[[Any, Any], Any],
    multiply_experts: Callable[..., Any],
    name: str,
    threads: int,
) -> None:
    values, bind = stack(normal(3, 20, 48), GGMLType[name])
    backend, x, choice = level_backends(None, threads), normal(7, 1, 48, seed=1), choices(7, 2, 3)
    assert (
        error(multiply_experts(backend, x, choice, bind(backend)), expected(x, values, choice))
        < 5e-3
    )


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("name", ["Q8_0", "F16"])
def test_one_expert_may_take_every_row_and_the_others_none(
    level_backends: Callable[..., Any],
    stack: Callable[[Any, Any], Any],
    multiply_experts: Callable[..., Any],
    level: str,
    name: str,
) -> None:
    """ggml too lets a token name an expert twice; more than sixteen of a token pass in parts."""
    values, bind = stack(normal(7, 20, 64), GGMLType[name])
    x, weight = normal(11, 1, 64, seed=1), bind(level_backends(level))
    for used in (1, 2, 17, 40):
        choice = np.full((11, used), 6, np.int32)
        found = multiply_experts(level_backends(level), x, choice, weight)
        assert error(found, expected(x, values, choice)) < 2e-2


@each(KINDS)
def test_a_row_does_not_depend_on_the_others(
    level_backends: Callable[..., Any],
    stack: Callable[[Any, Any], Any],
    multiply_experts: Callable[..., Any],
    kind: GGMLType,
) -> None:
    _, bind = stack(normal(4, 24, 256), kind)
    x, choice = normal(29, 1, 256), choices(29, 2, 4)
    for level in levels():
        weight = bind(level_backends(level))
        few = 6 if level in WITH_TILES else 29  # of no expert so many that it takes tiles
        together = multiply_experts(level_backends(level), x[:few], choice[:few], weight)
        for token in {0, 5, few - 1}:
            one = slice(token, token + 1)
            alone = multiply_experts(level_backends(level), x[one], choice[one], weight)
            assert np.array_equal(alone[0], together[token]), level


@pytest.mark.parametrize("level", [level for level in levels() if level in WITH_TILES])
@each(KINDS)
def test_experts_with_many_rows_and_with_few_are_each_as_exact_as_alone(
    level_backends: Callable[..., Any],
    stack: Callable[[Any, Any], Any],
    multiply_experts: Callable[..., Any],
    kind: GGMLType,
    level: str,
) -> None:
    """One expert has 2, one 13, one 40, one 77 rows: by tiles, but for the first."""
    values, bind = stack(normal(4, 40, 544 if kind.block_size <= 32 else 768), kind)
    counts = np.repeat(np.arange(4, dtype=np.int32), (2, 13, 40, 77))
    choice = np.random.default_rng(3).permutation(counts).reshape(-1, 1)
    x = normal(len(choice), 1, values.shape[2], seed=2)
    found = multiply_experts(level_backends(level), x, choice, bind(level_backends(level)))
    exact = np.einsum("ti,toi->to", x[:, 0].astype(np.float64), values[choice[:, 0]])
    for expert in range(4):
        rows = choice[:, 0] == expert
        assert error(found[rows, 0], exact[rows]) < 1e-2
    few = slice(60, 132)  # others there, the same rows for each expert: tiles either way
    kept = multiply_experts(level_backends(level), x[few], choice[few], bind(level_backends(level)))
    same = np.isin(choice[few, 0], [2, 3])
    assert np.array_equal(kept[same], found[few][same])


@pytest.mark.parametrize("name", ["Q4_K", "F16"])
def test_the_number_of_threads_changes_no_bit(
    level_backends: Callable[..., Any],
    stack: Callable[[Any, Any], Any],
    multiply_experts: Callable[..., Any],
    name: str,
) -> None:
    _, bind = stack(normal(6, 100, 512), GGMLType[name])
    x, choice = normal(7, 3, 512, seed=1), choices(7, 3, 6)
    one, *more = [
        multiply_experts(level_backends(None, n), x, choice, bind(level_backends(None, n)))
        for n in (1, 2, 3)
    ]
    assert all(np.array_equal(one, other) for other in more)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("name", ["Q4_0", "BF16"])
def test_a_token_that_is_not_finite_affects_itself_only(
    level_backends: Callable[..., Any],
    stack: Callable[[Any, Any], Any],
    multiply_experts: Callable[..., Any],
    level: str,
    name: str,
) -> None:
    _, bind = stack(normal(3, 16, 256), GGMLType[name])
    weight, x, choice = bind(level_backends(level)), normal(5, 1, 256), choices(5, 2, 3)
    good = multiply_experts(level_backends(level), x, choice, weight)
    for bad in (np.nan, np.inf, -np.inf):
        x[2, 0, 77] = bad
        found = multiply_experts(level_backends(level), x, choice, weight)
        assert not np.isfinite(found[2]).any()
        assert np.array_equal(np.delete(found, 2, 0), np.delete(good, 2, 0))


def test_gate_and_up_share_packed_activations(
    level_backends: Callable[..., Any], stack: Callable[[Any, Any], Any]
) -> None:
    """Another choice, or weights that are floats, get a packed form of their own."""
    backend = level_backends(None)
    quantized = [stack(normal(4, 16, 256, seed=i), GGMLType.Q4_0)[1](backend) for i in range(2)]
    _, bind = stack(normal(4, 16, 256), GGMLType.F16)
    context = backend.context(64)
    x = context.input("x", (3, 1, 256), GGMLType.F32)
    first, second = (context.input("choice", (3, 2), GGMLType.I32) for _ in range(2))
    for weight, choice in [
        *((weight, first) for weight in quantized),
        (bind(backend), first),
        (quantized[0], second),
    ]:
        context.output(expert_linear(x, weight, choice))
    assert [pack.uses for pack in x.activations.values()] == [2, 1, 1]
    context.close()


@pytest.mark.parametrize(
    ("word", "has_experts"), [("on", True), ("experts", True), ("products", False), ("off", False)]
)
def test_expert_kernels_have_a_switch(
    stack: Callable[[Any, Any], Any],
    multiply_experts: Callable[..., Any],
    word: str,
    has_experts: bool,
) -> None:
    values, bind = stack(normal(4, 16, 256), GGMLType.Q8_0)
    backend = Backend(threads=1, max_nodes=64, kernels=KernelChoice.from_word(word))
    weight = bind(backend)
    assert (weight.packed is not None) is has_experts
    x, choice = normal(3, 2, 256, seed=1), choices(3, 2, 4)
    found = multiply_experts(backend, x, choice, weight)
    assert error(found, expected(x, values, choice)) < 2e-2
    backend.close()


def test_experts_of_a_type_without_a_layout_are_ggmls(
    level_backends: Callable[..., Any],
    load: Any,
    multiply_experts: Callable[..., Any],
) -> None:
    values = normal(3, 8, 32)
    stored = values.view(np.uint8)
    _, bind = load.stored(stored, GGMLType.F32, [WeightUse.EXPERTS])
    backend, choice = level_backends(None), choices(4, 2, 3)
    weight = bind(backend)
    assert weight.packed is None
    x = normal(4, 1, 32, seed=1)
    assert error(multiply_experts(backend, x, choice, weight), expected(x, values, choice)) < 1e-6


@pytest.mark.parametrize(
    ("level", "threads"), [("ggml", 1), *((level, 1) for level in levels()), (None, 3)]
)
def test_rows_are_weighted_and_added(
    level_backends: Callable[..., Any],
    stack: Callable[[Any, Any], Any],
    level: str | None,
    threads: int,
) -> None:
    backend = level_backends(level, threads)
    weight = stack(normal(8, 32, 256), GGMLType.Q8_0)[1](backend)
    for features in (1, 16, 40, 600):
        for tokens, used in ((1, 8), (3, 1), (70, 5)):
            rows, weights = normal(tokens, used, features), normal(tokens, used, 1, seed=1)
            context = backend.context(64)
            given = [context.input("x", array.shape, GGMLType.F32) for array in (rows, weights)]
            sums = context.output(weighted_total(given[0], given[1], weight))
            assert bool(context.custom) == (level != "ggml")
            inputs = list(zip(given, (rows, weights), strict=True))
            found = np.array(backend.compute(context, inputs, [sums]).outputs[0])
            context.close()
            np.testing.assert_allclose(found, (rows * weights).sum(1), rtol=1e-5, atol=1e-5)
