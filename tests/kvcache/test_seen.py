"""Columns of attention weights: the cells of sequences by position, and the masks of attention."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tampu.kvcache import KVCacheSpec, SeenTokens, Segment
from tampu.kvcache.masks import CellRange, attention_mask
from tampu.kvcache.seen import seen_cells

CELLS = 96


@st.composite
def segments(draw: st.DrawFn) -> list[Segment]:
    """Parts of one to three sequences, whose cells lie anywhere."""
    cells = draw(st.permutations(range(CELLS)))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, 24))
        own, cells = cells[:length], cells[length:]
        start = draw(st.integers(0, length - 1))
        found.append(Segment(np.array([own], np.int32), start))
    return found


@given(
    segments(),
    st.sampled_from(
        [KVCacheSpec(), KVCacheSpec(window=5), KVCacheSpec(chunk=4), KVCacheSpec(has_alibi=True)]
    ),
    st.data(),
)
def test_a_token_sees_the_same_cells_as_in_attention(
    parts: list[Segment], spec: KVCacheSpec, data: st.DataObject
) -> None:
    chosen = [
        data.draw(st.sets(st.integers(part.start, part.end - 1), min_size=1)) for part in parts
    ]
    seen = [
        SeenTokens(part, np.array(sorted(each), np.int32))
        for part, each in zip(parts, chosen, strict=True)
    ]
    cells, mask = seen_cells(seen, 0, spec, CELLS + 8)
    every = attention_mask(parts, 0, spec, CellRange(0, CELLS))
    rows = iter(mask)
    first = column = 0
    for part, tokens in zip(parts, seen, strict=True):
        for position in tokens.positions:
            own, wanted = next(rows), every[first + position - part.start]
            assert np.isneginf(own[:column]).all()
            assert np.isneginf(own[column + part.end :]).all()
            by_cell = np.full(CELLS, -np.inf, np.float16)
            visible = np.flatnonzero(~np.isneginf(own))
            by_cell[cells[visible]] = own[visible]
            assert np.array_equal(by_cell, wanted)
            assert (visible - column <= position).all()
        first, column = first + part.end - part.start, column + part.end
