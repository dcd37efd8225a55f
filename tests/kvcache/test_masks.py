"""Attention masks over cells."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.kvcache import CellRange, KVCacheSpec, Segment
from tampu.kvcache.masks import PositionRange, attention_mask, cells_by_position, first_read

SIX = CellRange(0, 6)


def segment(cells: str, start: int, *groups: tuple[int, int]) -> Segment:
    """Write the cells of a sequence as a text: "0 1 2" is its tokens' cells in order."""
    return Segment(np.array([[*map(int, cells.split())]], np.int32), start, groups)


def rows_of(mask: npt.NDArray[np.float16]) -> list[Any]:
    """Return a mask as text: a row for each token, x where it attends."""
    assert mask.dtype == np.float16
    assert set(np.unique(mask)) <= {np.float16(0), np.float16(-np.inf)}
    return ["".join("x" if cell == 0 else "." for cell in row) for row in mask]


def unstored(cells: str) -> Segment:
    """Return a token that has no cell, after those of a sequence."""
    stored = segment(cells, 0).cells
    return Segment(stored, stored.shape[1], unstored=1)


@pytest.mark.parametrize(
    ("segments", "window", "rows"),
    [
        pytest.param([unstored("0 2 5")], None, ["x.x..x"], id="a token without a cell"),
        pytest.param([unstored("0 2 5"), unstored("4 1")], 2,
                     [".....x", ".x...."], id="windows of tokens without cells"),
        pytest.param([segment("0 1 2", 0)], None, ["x.....", "xx....", "xxx..."], id="prompt"),
        pytest.param([segment("0 1 2 3", 3)], None, ["xxxx.."], id="next token"),
        pytest.param([segment("0 1 2 3", 2)], None, ["xxx...", "xxxx.."], id="rest of a prompt"),
        pytest.param([segment("4 1 5 0", 0)], None,
                     ["....x.", ".x..x.", ".x..xx", "xx..xx"], id="scattered cells"),
        pytest.param([segment("0 1", 0), segment("2 3 4", 0)], None,
                     ["x.....", "xx....", "..x...", "..xx..", "..xxx."], id="two prompts"),
        pytest.param([segment("0 1 2 5", 3), segment("3 4", 0)], None,
                     ["xxx..x", "...x..", "...xx."], id="a token and a prompt"),
        pytest.param([segment("0 1 2", 2), segment("0 1 3", 2)], None,
                     ["xxx...", "xx.x.."], id="a shared prefix"),
        pytest.param([segment("0 1 2 3", 0)], 1,
                     ["x.....", ".x....", "..x...", "...x.."], id="window of one"),
        pytest.param([segment("0 1 2 3", 0)], 2,
                     ["x.....", "xx....", ".xx...", "..xx.."], id="window of two"),
        pytest.param([segment("5 4 3 2 1", 3)], 3, ["..xxx.", ".xxx.."], id="scattered window"),
        pytest.param([segment("0 1 2", 0)], 3, ["x.....", "xx....", "xxx..."], id="full window"),
        pytest.param([segment("0 1 2 3", 3), segment("4 5", 1)], 2,
                     ["..xx..", "....xx"], id="windows of two sequences"),
    ],
)  # fmt: skip
@pytest.mark.seed("S78")
def test_a_token_attends_to_its_own_sequence_up_to_itself(
    segments: list[Any], window: int | None, rows: list[str]
) -> None:
    assert rows_of(attention_mask(segments, 0, KVCacheSpec(window), SIX)) == rows


@pytest.mark.parametrize(
    ("segments", "window", "rows"),
    [
        pytest.param([segment("0 1 2 3 4", 0)], None,
                     ["x.....", "xx....", "..x...", "..xx..", "....x."], id="prompt"),
        pytest.param([segment("5 4 3 2", 3)], None, ["..xx.."], id="next token"),
        pytest.param([segment("0 1 2 3", 0)], 1,
                     ["x.....", ".x....", "..x...", "...x.."], id="with a window"),
        pytest.param([segment("0 1 2", 2), segment("3 4 5", 0)], None,
                     ["..x...", "...x..", "...xx.", ".....x"], id="two sequences"),
    ],
)  # fmt: skip
@pytest.mark.seed("S95")
def test_with_chunks_a_token_attends_to_its_own_chunk(
    segments: list[Any], window: int | None, rows: list[str]
) -> None:
    assert rows_of(attention_mask(segments, 0, KVCacheSpec(window, 2), SIX)) == rows


def test_cells_without_an_owner_are_masked() -> None:
    mask = attention_mask([segment("0 255", 1)], 0, KVCacheSpec(), CellRange(0, 256))
    assert np.flatnonzero(mask[0] == 0).tolist() == [0, 255]


def test_a_mask_starts_at_the_first_cell_read() -> None:
    mask = attention_mask([segment("258 257", 0)], 0, KVCacheSpec(), CellRange(256, 4))
    assert rows_of(mask) == ["..x.", ".xx."]


def test_cells_outside_the_window_may_be_missing() -> None:
    mask = attention_mask([segment("-1 -1 3 4", 3)], 0, KVCacheSpec(window=2), SIX)
    assert rows_of(mask) == ["...xx."]


@pytest.mark.seed("S34")
def test_inputs_of_a_group_attend_to_one_another_both_ways() -> None:
    mask = attention_mask([segment("0 1 2 3 4", 0, (1, 4))], 0, KVCacheSpec(), SIX)
    assert rows_of(mask) == ["x.....", "xxxx..", "xxxx..", "xxxx..", "xxxxx."]
    mask = attention_mask([segment("0 1 2 3 4", 0, (1, 4))], 0, KVCacheSpec(window=2), SIX)
    assert rows_of(mask) == ["x.....", "xxxx..", ".xxx..", "..xx..", "...xx."]


def test_a_symmetric_window_ends_as_far_after_a_token_as_it_begins_before_it() -> None:
    spec = KVCacheSpec(window=2, is_symmetric=True)
    mask = attention_mask([segment("0 1 2 3 4", 0, (0, 5))], 0, spec, SIX)
    assert rows_of(mask) == ["xx....", "xxx...", ".xxx..", "..xxx.", "...xx."]
    mask = attention_mask([segment("3 4", 0, (0, 2)), segment("0", 0, (0, 1))], 0, spec, SIX)
    assert rows_of(mask) == ["...xx.", "...xx.", "x....."]


def test_inputs_of_a_group_attend_to_earlier_ones_only_in_causal_layers() -> None:
    mask = attention_mask([segment("0 1 2 3", 0, (1, 4))], 0, KVCacheSpec(is_causal=True), SIX)
    assert rows_of(mask) == ["x.....", "xx....", "xxx...", "xxxx.."]


def test_with_alibi_a_mask_has_the_distances_of_what_a_token_attends_to() -> None:
    mask = attention_mask([segment("4 0 5", 1, (1, 3))], 0, KVCacheSpec(has_alibi=True), SIX)
    never = -np.inf
    assert mask.dtype == np.float16
    assert mask.tolist() == [
        [0, never, never, never, -1, -1],
        [-1, never, never, never, -2, 0],
    ]


def test_distances_beyond_half_precision_are_its_largest_number() -> None:
    cells = Segment(np.arange(70_000, dtype=np.int32)[None], 69_999)
    mask = attention_mask([cells], 0, KVCacheSpec(has_alibi=True), CellRange(0, 70_000))
    assert mask[0, [0, 1, 69_998, 69_999]].tolist() == [-65504, -65504, -1, 0]


@given(st.data())
def test_masks_match_the_definition(data: st.DataObject) -> None:
    window = data.draw(st.none() | st.integers(1, 9))
    chunk = data.draw(st.none() | st.integers(1, 9))
    cells = data.draw(st.permutations(range(20)))
    length = data.draw(st.integers(1, 20))
    start = data.draw(st.integers(0, length - 1))
    mask = attention_mask(
        [Segment(np.array([cells[:length]], np.int32), start)],
        0,
        KVCacheSpec(window, chunk),
        CellRange(0, 20),
    )
    for row, position in enumerate(range(start, length)):
        for cell in range(20):
            at = cells.index(cell)
            sees = at <= position and at < length
            sees = sees and (window is None or position - at < window)
            sees = sees and (chunk is None or at // chunk == position // chunk)
            assert (mask[row, cell] == 0) == sees


@given(
    st.lists(st.tuples(st.integers(0, 150), st.integers(1, 40)), min_size=1, max_size=4),
    st.sampled_from([KVCacheSpec(), KVCacheSpec(window=30), KVCacheSpec(chunk=48)]),
    st.randoms(use_true_random=False),
)
def test_by_position_the_same_cells_are_visible(
    parts: list[tuple[int, int]], spec: KVCacheSpec, random: Any
) -> None:
    """In the order of positions, each from its own multiple of 64 on, wherever the cells are."""
    free = list(range(1024))
    random.shuffle(free)
    segments = []
    for start, count in parts:
        cells = [free.pop() for _ in range(start + count)]
        segments.append(Segment(np.array([cells], np.int32), start, ((start, start + count),)))
    read = PositionRange(len(segments) + 1, 256)
    table, owners, mask = cells_by_position(segments, 0, spec, read)
    expected = attention_mask(segments, 0, spec, CellRange(0, 1024))
    assert (table[-1] == -1).all()
    tokens = [(own, at) for own, (start, n) in enumerate(parts) for at in range(start, start + n)]
    for row, (own, _) in enumerate(tokens):
        segment = segments[own]
        begin = first_read(segment, 0, spec)
        assert begin % 64 == 0
        assert owners[row] == own
        seen = np.flatnonzero(mask[row] == 0)
        assert set(table[own][seen]) == set(np.flatnonzero(expected[row] == 0))
        assert np.array_equal(table[own][seen], segment.cells[0][seen + begin])


def test_a_token_without_a_cell_is_at_no_position_of_the_cache() -> None:
    asked, spec = unstored("0 2 5"), KVCacheSpec(None)
    table, _, mask = cells_by_position([asked], 0, spec, PositionRange(1, 6))
    assert table.tolist() == [[0, 2, 5, -1, -1, -1]]
    assert rows_of(mask) == ["xxx..."]
    assert asked.end == 4
    assert asked.written(0).tolist() == [5]
    assert segment("0 2 5", 1).written(0).tolist() == [2, 5]
