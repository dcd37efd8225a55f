"""The layout of images in a sequence: rows, positions, groups, and removal of tokens."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.nn import MediaItem, Placeholders
from tampu.runner.layout import TEXT, NumberedMedia, as_one_group, lay_out


def text(*tokens: int) -> npt.NDArray[Any]:
    return np.array(tokens, np.int32)


def image(
    number: int,
    *,
    rows: int = 3,
    groups: tuple[tuple[int, int], ...] = ((1, 3),),
    positions: npt.NDArray[np.int32] | None = None,
    advance: int | None = None,
    is_cross: bool = False,
) -> NumberedMedia:
    """An image of a start token, its rows and an end token; one token if it is for crossing."""
    tokens = [50] if is_cross else [30, *[0] * rows, 31]
    embedded = [False] if is_cross else [False, *[True] * rows, False]
    placeholders = Placeholders(
        text(*tokens),
        np.array(embedded),
        () if is_cross else groups,
        advance=len(tokens) if advance is None else advance,
        is_bidirectional=True,
        positions=positions,
        is_cross=is_cross,
    )
    return NumberedMedia(MediaItem({}, "any", rows, placeholders), number)


def test_text_is_compared_by_its_tokens() -> None:
    inputs = lay_out([text(5, 6)])
    assert inputs.tokens is inputs.keys
    assert inputs.layout == TEXT
    assert inputs.layout.positions(3, 6).tolist() == [3, 4, 5]


@pytest.mark.seed("S46", "S53", "S55")
def test_an_image_is_compared_by_its_content_where_its_rows_are() -> None:
    inputs = lay_out([text(5), image(7), text(6)])
    assert inputs.tokens.tolist() == [5, 30, 0, 0, 0, 31, 6]
    assert inputs.keys.tolist() == [5, 30, -8, -8, -8, 31, 6]
    (placed,) = inputs.layout.media
    assert (placed.start, placed.end) == (1, 6)
    assert [(g.start, g.end) for g in inputs.layout.groups] == [(2, 5)]


@pytest.mark.seed("S17", "S20")
def test_a_part_of_an_image_takes_its_own_rows() -> None:
    (placed,) = lay_out([text(5), image(7), text(6)]).layout.media
    assert placed.embedded(0, 7).tolist() == [2, 3, 4]
    assert placed.rows(0, 7) == slice(0, 3)
    assert placed.embedded(3, 5).tolist() == [3, 4]
    assert placed.rows(3, 5) == slice(1, 3)
    assert len(placed.embedded(5, 7)) == 0


def test_a_text_in_one_batch_needs_all_its_media_from_its_beginning() -> None:
    layout = as_one_group(lay_out([text(5), image(7, groups=()), text(6), image(8)])).layout
    assert [(g.start, g.end, g.is_bidirectional) for g in layout.groups] == [(0, 12, True)]
    assert [layout.needed_from(placed) for placed in layout.media] == [0, 0]
    assert layout.whole(0) == 12


def test_a_causal_text_is_computed_up_to_the_group_of_an_image() -> None:
    layout = lay_out([text(5), image(7), text(6), image(8, groups=())]).layout
    assert [layout.needed_from(placed) for placed in layout.media] == [2, 8]


@pytest.mark.seed("S33", "S34")
@pytest.mark.parametrize(
    ("start", "count", "fitting", "whole"),
    [(0, 7, 7, 1), (0, 3, 2, 1), (2, 2, 0, 3), (2, 3, 3, 3), (3, 1, 0, 2), (5, 2, 2, 1)],
)
def test_a_group_is_never_split(start: int, count: int, fitting: int, whole: int) -> None:
    layout = lay_out([text(5), image(7), text(6)]).layout
    assert layout.fitting(start, count) == fitting
    assert layout.whole(start) == whole


@pytest.mark.seed("S43", "S44", "S45", "S46", "S60")
def test_a_cross_attention_image_is_visible_from_its_position_on() -> None:
    inputs = lay_out(
        [text(5, 6), image(1, is_cross=True), text(7), image(2, is_cross=True), text(8)]
    )
    layout = inputs.layout
    assert inputs.tokens.tolist() == [5, 6, 50, 7, 50, 8]
    seen = [layout.visible_media(position) for position in range(6)]
    assert [[each.number for each in images] for images in seen] == [[], [], [1], [1], [2], [2]]
    assert layout.bidirectional(0, 6) == ()
    left = layout.without(1, 3, 6)
    assert [(each.number, each.start) for each in left.media] == [(2, 2)]
    kept = layout.without(3, 4, 6)
    assert [(each.number, each.start) for each in kept.media] == [(1, 2), (2, 3)]


def test_adjacent_cross_attention_images_are_visible_together() -> None:
    beside = [image(number, is_cross=True) for number in range(1, 5)]
    layout = lay_out([text(5), beside[0], text(6), *beside[1:3], text(7), beside[3]]).layout
    seen = [[each.number for each in layout.visible_media(position)] for position in range(7)]
    assert seen == [[], [1], [1], [2], [2, 3], [2, 3], [4]]


def test_multidimensional_positions_continue_after_an_image() -> None:
    grid = np.array(
        [[0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 2, 1], [1, 2, 1, 1], [3, 3, 3, 3]], np.int32
    )
    layout = lay_out([text(5, 6), image(1, positions=grid, advance=4), text(7, 8)]).layout
    found = layout.positions(0, 9, 4)
    assert found[0].tolist() == [0, 1, 2, 3, 3, 3, 5, 6, 7]
    assert found[1].tolist() == [0, 1, 2, 3, 3, 4, 5, 6, 7]
    assert found[2].tolist() == [0, 1, 2, 3, 4, 3, 5, 6, 7]
    assert found[3].tolist() == found[0].tolist()  # the fourth is the time
    assert layout.positions(9, 11, 4).tolist() == [[8, 9]] * 4


@given(st.data())
def test_removing_inputs_gives_the_layout_of_the_rest(data: st.DataObject) -> None:
    numbers = iter(range(100))
    pieces: list[Any] = []
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            pieces.append(image(next(numbers), rows=data.draw(st.integers(1, 4)), groups=()))
        else:
            pieces += [text(data.draw(st.integers(1, 9))) for _ in range(3)]
    first = data.draw(st.integers(0, len(pieces) - 1))
    last = data.draw(st.integers(first + 1, len(pieces)))
    sizes = [len(piece) for piece in pieces]
    start, end = sum(sizes[:first]), sum(sizes[:last])
    left = lay_out(pieces).without(start, end)
    if first == 0 and last == len(pieces):
        assert len(left.tokens) == 0
        return
    expected = lay_out(pieces[:first] + pieces[last:])
    assert left.tokens.tolist() == expected.tokens.tolist()
    assert left.keys.tolist() == expected.keys.tolist()
    length = len(left.tokens)
    assert left.layout.positions(0, length + 3).tolist() == list(range(length + 3))
    for one, other in zip(left.layout.media, expected.layout.media, strict=True):
        assert (one.number, one.start, one.end) == (other.number, other.start, other.end)
