"""The best logits of a row, found in the graph."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.graphs import floats

from tampu.errors import ShapeError
from tampu.ml import Backend, Context, GGMLType
from tampu.ml.device_tokens import DeviceTokens
from tampu.ml.top_k import TopK, divide, find_best, find_top_k, unpack, with_logits, with_rows


@pytest.fixture
def best(backend: Backend, context: Context) -> Callable[..., list[TopK]]:
    def best(logits: Any, count: int) -> list[TopK]:
        rows = context.input("logits", logits.shape, GGMLType.F32)
        result = context.output(with_logits(find_top_k(rows, count), rows))
        found = backend.compute(context, [(rows, logits)], [result]).outputs[0]
        return [unpack(row) for row in found]

    return best


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 7, 64, 300, 400])
def test_the_best_of_each_row_are_found(best: Callable[..., Any], rows: int, count: int) -> None:
    logits = floats(rows, 300, seed=count)
    for row, found in zip(logits, best(logits, count), strict=True):
        order = np.argsort(-row, kind="stable")[:count]
        assert sorted(found.tokens) == sorted(order)
        assert (found.logits == row[found.tokens]).all()
        assert found.total == pytest.approx(float(row.sum()), abs=1e-3)


@pytest.mark.parametrize("bad", [0.0, math.nan])
def test_the_best_can_be_looked_up_in_the_same_graph(
    backend: Backend, context: Context, bad: float
) -> None:
    logits = floats(3, 300, seed=1)
    logits[2] += bad
    rows = context.input("logits", logits.shape, GGMLType.F32)
    tokens, best = find_best(rows)
    outputs = [context.output(tokens), context.output(best)]
    found, same = backend.compute(context, [(rows, logits)], outputs).outputs
    assert found[:2].tolist() == logits[:2].argmax(axis=1).tolist()
    assert 0 <= found[2] < 300
    assert same[:2, 0].tolist() == found[:2].tolist()
    assert same[:2, 1].tolist() == logits[:2].max(axis=1).tolist()


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_sum_tells_of_a_logit_that_is_no_number(
    best: Callable[..., Any], count: int, bad: float
) -> None:
    logits = floats(2, 100)
    logits[0, 7] = bad
    first, second = best(logits, count)
    assert not first.total < math.inf
    assert second.total < math.inf


@pytest.mark.parametrize("count", [1, 5])
def test_forbidden_tokens_are_not_the_best(best: Callable[..., Any], count: int) -> None:
    logits = floats(1, 100)
    logits[0, 10:] = -math.inf
    [found] = best(logits, count)
    assert found.tokens.max() < 10
    assert found.total == -math.inf


@pytest.mark.parametrize("rows", [[0], [4, 1], [2, 2, 2, 0]])
def test_some_rows_come_in_full_beside_the_best_of_all(
    backend: Backend, context: Context, rows: list[int]
) -> None:
    logits = floats(5, 100)
    given = context.input("logits", logits.shape, GGMLType.F32)
    chosen = context.input("chosen", (len(rows),), GGMLType.I32)
    result = context.output(with_rows(with_logits(find_top_k(given, 7), given), given, chosen))
    inputs = [(given, logits), (chosen, np.array(rows, np.int32))]
    best, full = divide(backend.compute(context, inputs, [result]).outputs[0], 5, 7, len(rows))
    assert (full == logits[rows]).all()
    for row, found in zip(logits, best, strict=True):
        assert sorted(unpack(found).tokens) == sorted(np.argsort(-row)[:7])


def test_wrong_operands_are_refused(context: Context) -> None:
    with pytest.raises(ShapeError, match="the 0 largest"):
        find_top_k(context.input("x", (2, 3), GGMLType.F32), 0)
    with pytest.raises(ShapeError, match="the 2 largest"):
        find_top_k(context.input("x", (2, 3), GGMLType.F16), 2)


def test_tokens_on_a_device_are_tokens_whatever_a_device_chose(backend: Backend) -> None:
    kept = DeviceTokens(backend, 6)
    writing, reading = backend.context(), backend.context()
    chosen = writing.input("chosen", (4, 1), GGMLType.I32)
    writing.forward(kept.store(chosen, 100))
    backend.compute(writing, [(chosen, np.array([[-1], [7], [99], [2**30]], np.int32))], [])
    given = reading.input("given", (3,), GGMLType.I32)
    sources = reading.input("sources", (3,), GGMLType.I32)
    tokens = reading.output(kept.select(given, sources))
    for wanted, places in (([0, 7, 99], [3, 4, 5]), ([99, 21, 20], [6, 1, 0])):
        data = [(given, np.array([20, 21, 22], np.int32)), (sources, np.array(places, np.int32))]
        found = backend.compute(reading, data, [tokens]).outputs[0]
        assert found.tolist() == wanted
    for each in (writing, reading, kept):
        each.close()
