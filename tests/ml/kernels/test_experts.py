"""Products with the experts that tokens chose, against float64 and against ggml's own."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
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


def multiply_experts(
    backend: Backend, weight: Any, x: npt.NDArray[np.float32], choice: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Return x multiplied by the chosen matrices of a stack of weights."""
    context = backend.context(64)
    given = context.input("x", x.shape, GGMLType.F32)
    chosen = context.input("choice", choice.shape, GGMLType.I32)
    outputs = [context.output(expert_linear(given, weight, chosen))]
    found = backend.compute(context, [(given, x), (chosen, choice)], outputs).outputs[0]
    context.close()
    return found


@pytest.fixture
def products(level_backends: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """For each level and number of threads, what multiplies by a stack that `stack` has stored."""

    def products(
        bind: Callable[[Any], Any],
        at: Sequence[str | None] = levels(),
        threads: Sequence[int] = (1,),
    ) -> Iterator[tuple[str | None, Callable[..., npt.NDArray[Any]]]]:
        for level, count in product(at, threads):
            backend = level_backends(level, count)
            weight = bind(backend)
            assert (weight.packed is None) == (level == "ggml")
            yield level, partial(multiply_experts, backend, weight)

    return products


@each(KINDS)
def test_the_error_is_at_most_ggmls(stack: Any, products: Any, kind: GGMLType) -> None:
    values, bind = stack(normal(6, 40, 512), kind)
    (_, ggml), *own = products(bind, ["ggml", *levels()])
    for tokens, used, shared in [(1, 3, True), (1, 3, False), (9, 2, True), (40, 3, False)]:
        x = normal(tokens, 1 if shared else used, 512, seed=tokens)
        choice = choices(tokens, used, 6)
        exact = expected(x, values, choice)
        theirs = error(ggml(x, choice), exact)
        for level, multiply in own:
            assert error(multiply(x, choice), exact) <= 1.1 * theirs + 1e-6, level


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "F16", "BF16"])
@pytest.mark.parametrize("rows", [1, 15, 33])
def test_any_number_of_rows_tokens_and_experts_works(
    stack: Any, products: Any, name: str, rows: int
) -> None:
    values, bind = stack(normal(5, rows, 256), GGMLType[name])
    for level, multiply in [*products(bind), *products(bind, [None], [2, 3])]:
        for tokens, used in [(1, 1), (1, 5), (2, 3), (13, 5), (26, 1), (31, 2)]:
            x, choice = normal(tokens, 1, 256, seed=tokens), choices(tokens, used, 5, seed=used)
            found = multiply(x, choice)
            assert found.shape == (tokens, used, rows)
            size = np.linalg.norm(x, axis=2)[:, :, None] * np.linalg.norm(values, axis=2)[choice]
            assert np.abs((found - expected(x, values, choice)) / size).max() < 2e-2, level


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_floats_work_in_any_multiple_of_sixteen(stack: Any, products: Any, name: str) -> None:
    values, bind = stack(normal(3, 20, 48), GGMLType[name])
    x, choice = normal(7, 1, 48, seed=1), choices(7, 2, 3)
    for _, multiply in products(bind, [None], [1, 2, 3]):
        assert error(multiply(x, choice), expected(x, values, choice)) < 5e-3


@pytest.mark.parametrize("name", ["Q8_0", "F16"])
def test_one_expert_may_take_every_row_and_the_others_none(
    stack: Any, products: Any, name: str
) -> None:
    """ggml too lets a token name an expert twice; more than sixteen of a token pass in parts."""
    values, bind = stack(normal(7, 20, 64), GGMLType[name])
    x = normal(11, 1, 64, seed=1)
    for level, multiply in products(bind):
        for used in (1, 2, 17, 40):
            choice = np.full((11, used), 6, np.int32)
            assert error(multiply(x, choice), expected(x, values, choice)) < 2e-2, level


@each(KINDS)
def test_a_row_does_not_depend_on_the_others(stack: Any, products: Any, kind: GGMLType) -> None:
    _, bind = stack(normal(4, 24, 256), kind)
    x, choice = normal(29, 1, 256), choices(29, 2, 4)
    for level, multiply in products(bind):
        few = 6 if level in WITH_TILES else 29  # of no expert so many that it takes tiles
        together = multiply(x[:few], choice[:few])
        for token in {0, 5, few - 1}:
            one = slice(token, token + 1)
            assert np.array_equal(multiply(x[one], choice[one])[0], together[token]), level


@pytest.mark.parametrize("level", [level for level in levels() if level in WITH_TILES])
@each(KINDS)
def test_experts_with_many_rows_and_with_few_are_each_as_exact_as_alone(
    stack: Any, products: Any, kind: GGMLType, level: str
) -> None:
    """One expert has 2, one 33, one 90, one 150 rows: by tiles, but for the first."""
    values, bind = stack(normal(4, 40, 544 if kind.block_size <= 32 else 768), kind)
    counts = np.repeat(np.arange(4, dtype=np.int32), (2, 33, 90, 150))
    choice = np.random.default_rng(3).permutation(counts).reshape(-1, 1)
    x = normal(len(choice), 1, values.shape[2], seed=2)
    [(_, multiply)] = products(bind, [level])
    found = multiply(x, choice)
    exact = np.einsum("ti,toi->to", x[:, 0].astype(np.float64), values[choice[:, 0]])
    for expert in range(4):
        rows = choice[:, 0] == expert
        assert error(found[rows, 0], exact[rows]) < 1e-2
    few = slice(100, 260)  # others there, the same rows for each expert: tiles either way
    same = np.isin(choice[few, 0], [2, 3])
    assert np.array_equal(multiply(x[few], choice[few])[same], found[few][same])


@pytest.mark.parametrize("name", ["Q4_K", "F16"])
def test_the_number_of_threads_changes_no_bit(stack: Any, products: Any, name: str) -> None:
    _, bind = stack(normal(6, 100, 512), GGMLType[name])
    x, choice = normal(7, 3, 512, seed=1), choices(7, 3, 6)
    one, *more = [multiply(x, choice) for _, multiply in products(bind, [None], [1, 2, 3])]
    assert all(np.array_equal(one, other) for other in more)


@pytest.mark.parametrize("name", ["Q4_0", "BF16"])
def test_a_token_that_is_not_finite_affects_itself_only(
    stack: Any, products: Any, name: str
) -> None:
    _, bind = stack(normal(3, 16, 256), GGMLType[name])
    for level, multiply in products(bind):
        x, choice = normal(5, 1, 256), choices(5, 2, 3)
        good = multiply(x, choice)
        for bad in (np.nan, np.inf, -np.inf):
            x[2, 0, 77] = bad
            found = multiply(x, choice)
            assert not np.isfinite(found[2]).any(), level
            assert np.array_equal(np.delete(found, 2, 0), np.delete(good, 2, 0)), level


def test_gate_and_up_share_packed_activations(
    level_backends: Callable[..., Any], stack: Any
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
def test_expert_kernels_have_a_switch(stack: Any, word: str, has_experts: bool) -> None:
    values, bind = stack(normal(4, 16, 256), GGMLType.Q8_0)
    backend = Backend(threads=1, max_nodes=64, kernels=KernelChoice.from_word(word))
    weight = bind(backend)
    assert (weight.packed is not None) is has_experts
    x, choice = normal(3, 2, 256, seed=1), choices(3, 2, 4)
    found = multiply_experts(backend, weight, x, choice)
    assert error(found, expected(x, values, choice)) < 2e-2
    backend.close()


def test_experts_of_a_type_without_a_layout_are_ggmls(
    level_backends: Callable[..., Any], load: Any
) -> None:
    values = normal(3, 8, 32)
    stored = values.view(np.uint8)
    _, bind = load.stored(stored, GGMLType.F32, [WeightUse.EXPERTS])
    backend, choice = level_backends(None), choices(4, 2, 3)
    weight = bind(backend)
    assert weight.packed is None
    x = normal(4, 1, 32, seed=1)
    assert error(multiply_experts(backend, weight, x, choice), expected(x, values, choice)) < 1e-6


@pytest.mark.parametrize(
    ("level", "threads"), [("ggml", 1), *((level, 1) for level in levels()), (None, 3)]
)
def test_rows_are_weighted_and_added(
    level_backends: Callable[..., Any], stack: Any, level: str | None, threads: int
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
