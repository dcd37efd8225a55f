"""Attention over cells in the order of positions: the same bits wherever the cells are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.kernels import WITH_TILES, levels, normal

from tampu.errors import ShapeError
from tampu.ml import Backend, GGMLType
from tampu.ml.attention import CellTable, flash_attention

HEADS, KV_HEADS, FEATURES, CELLS = 8, 2, 64, 512
WITHOUT_TILES = [level for level in levels() if level not in WITH_TILES]
HALVES, FLOATS = np.float16, np.float32


@dataclass(frozen=True, slots=True)
class Part:
    """Some tokens of a sequence.

    Attributes:
        seed: of its queries, keys and values.
        start: the position of the first.
        end: the position after the last.
        cells: where its positions are; those that its tokens do not see may be anywhere.
    """

    seed: int
    start: int
    end: int
    cells: npt.NDArray[np.int32]


def attend(
    backend: Backend,
    parts: list[Part],
    *,
    window: int,
    kind: type[np.floating] = HALVES,
    sinks: npt.NDArray[np.float32] | None = None,
    blank: float = 0.0,
) -> list[npt.NDArray[np.float32]]:
    """Return what the tokens of each part attend to; cells of nothing hold `blank`."""
    k, v = (np.full((KV_HEADS, CELLS, FEATURES), blank, np.float32) for _ in range(2))
    table = np.full((len(parts), 256), -1, np.int32)
    queries, masks = [], []
    for own, part in zip(table, parts, strict=True):
        seen = slice(max(part.start - window + 1, 0), part.end)
        begin = seen.start // 64 * 64
        own[seen.start - begin : seen.stop - begin] = part.cells[seen]
        for side, seed in ((k, 1), (v, 2)):
            every = normal(KV_HEADS, 256, FEATURES, seed=seed + 10 * part.seed)
            side[:, part.cells[seen]] = every[:, seen]
        queries.append(normal(HEADS, 256, FEATURES, seed=10 * part.seed)[:, part.start : part.end])
        position = np.arange(begin, begin + 256)
        last = np.arange(part.start, part.end)[:, None]
        is_seen = (position <= last) & (position > last - window)
        masks.append(np.where(is_seen, 0, -np.inf).astype(np.float16))
    sequences = np.repeat(np.arange(len(parts)), [part.end - part.start for part in parts])
    q, mask = np.concatenate(queries, axis=1), np.concatenate(masks)
    arrays = [q, k.astype(kind), v.astype(kind), mask, table, sequences[:, None].astype(np.int32)]
    if sinks is not None:
        arrays.append(sinks)
    types = {FLOATS: GGMLType.F32, HALVES: GGMLType.F16, np.int32: GGMLType.I32}
    context = backend.context(64)
    given = [context.input("x", each.shape, types[each.dtype.type]) for each in arrays]
    queries_, keys, values, hidden, cells, owners, *extra = given
    mixed = flash_attention(
        queries_, keys, values, hidden, 0.125,
        sinks=extra[0] if extra else None, table=CellTable(cells, owners),
    )  # fmt: skip
    data = [(t, np.ascontiguousarray(a)) for t, a in zip(given, arrays, strict=True)]
    found = backend.compute(context, data, [context.output(mixed)]).outputs[0]
    context.close()
    ends = np.cumsum([part.end - part.start for part in parts])
    return np.split(found, ends[:-1])


def exact(part: Part, window: int, sinks: npt.NDArray[np.float32] | None) -> npt.NDArray[Any]:
    """Return the same in float64, of keys and values in half precision."""
    group = HEADS // KV_HEADS
    q = normal(HEADS, 256, FEATURES, seed=10 * part.seed).astype(np.float64)
    k, v = (
        np.repeat(
            normal(KV_HEADS, 256, FEATURES, seed=seed + 10 * part.seed).astype(HALVES), group, 0
        ).astype(np.float64)
        for seed in (1, 2)
    )
    rows = []
    for position in range(part.start, part.end):
        seen = slice(max(position - window + 1, 0), position + 1)
        scores = np.einsum("hf,hcf->hc", q[:, position], k[:, seen]) * 0.125
        weights = np.exp(scores)
        total = weights.sum(-1) + (0 if sinks is None else np.exp(sinks))
        rows.append(np.einsum("hc,hcf->hf", weights, v[:, seen]) / total[:, None])
    return np.array(rows)


def scattered(seed: int) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).permutation(CELLS).astype(np.int32)


@pytest.mark.parametrize("window", [256, 40])
def test_every_level_attends_to_the_positions_that_the_table_names(
    level_backends: Callable[..., Backend], window: int
) -> None:
    own, sinks = scattered(0), np.linspace(-2, 2, HEADS).astype(np.float32)
    parts = [Part(0, 0, 100, own[:256]), Part(1, 70, 71, own[256:])]
    for level in levels():
        for extra in (None, sinks):
            found = attend(level_backends(level), parts, window=window, sinks=extra)
            for rows, part in zip(found, parts, strict=True):
                expected = exact(part, window, extra)
                np.testing.assert_allclose(rows, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", [HALVES, FLOATS])
@pytest.mark.parametrize("window", [256, 40])
def test_neither_places_nor_other_tokens_change_a_bit(
    level_backends: Callable[..., Backend], window: int, kind: type[np.floating]
) -> None:
    in_order = np.arange(CELLS, dtype=np.int32)
    for level in WITHOUT_TILES:
        backend = level_backends(level)
        [whole] = attend(backend, [Part(0, 0, 150, in_order)], window=window, kind=kind)
        for start, end, blank in ((0, 1, 0.0), (39, 41, 1.0), (63, 66, np.nan), (140, 150, 9.0)):
            places = scattered(end)
            parts = [
                Part(1, 60, 66, places[256:]),
                Part(0, start, end, places[:256]),
                Part(2, 3, 4, places[416:]),
            ]
            found = attend(backend, parts, window=window, kind=kind, blank=blank)
            assert np.array_equal(found[1], whole[start:end]), (level, start)


def test_ggml_has_no_attention_by_a_table(level_backends: Callable[..., Backend]) -> None:
    with pytest.raises(ShapeError, match="by a table"):
        attend(level_backends("ggml"), [Part(0, 0, 1, scattered(0))], window=8)
