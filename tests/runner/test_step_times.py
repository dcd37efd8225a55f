"""How many drafts win, by the times of steps."""

import pytest

from tampu.runner.step_times import StepTimes


def times(**seconds: float) -> StepTimes:
    """Return times of steps with r1, r2, ... rows, each measured five times."""
    made = StepTimes()
    for name, each in seconds.items():
        for _ in range(5):
            made.add(int(name[1:]), each)
    return made


@pytest.mark.parametrize(
    ("known", "rows", "expected"),
    [
        ({"r1": 1.0, "r3": 2.0}, 2, 1.5),
        ({"r1": 1.0, "r3": 2.0}, 5, 3.0),
        ({"r2": 1.0, "r4": 1.2}, 1, 0.9),
        ({"r1": 1.0, "r8": 0.5}, 16, 1.0),  # more rows do not take less time
        ({"r1": 2.0}, 1, 2.0),
    ],
)
def test_times_of_other_rows_lie_on_a_line(
    known: dict[str, float], rows: int, expected: float
) -> None:
    assert times(**known).at(rows) == pytest.approx(expected)


def test_one_step_that_was_disturbed_changes_nothing() -> None:
    found = times(r1=1.0)
    found.add(1, 50.0)
    assert found.at(1) == 1.0


def test_a_time_is_forgotten_when_it_is_old() -> None:
    found = times(r1=1.0, r2=9.0)
    assert not found.can_win(1, 15)
    for _ in range(600):
        found.add(1, 1.0)
    assert found.can_win(1, 15)


CHEAP = {"r1": 1.0, "r2": 1.05, "r4": 1.1, "r8": 1.2}
DEAR = {"r1": 1.0, "r2": 2.0, "r4": 4.0, "r8": 8.0}


@pytest.mark.parametrize(
    ("known", "rows", "guesses", "counts"),
    [
        (CHEAP, 1, [(0.99, 15)], [11]),
        (CHEAP, 1, [(0.99, 5)], [5]),  # six rows
        (CHEAP, 1, [(0.99, 6)], [5]),  # seven are no rung
        (CHEAP, 1, [(0.6, 15)], [5]),
        (CHEAP, 1, [(0.01, 15)], [0]),
        (DEAR, 1, [(0.99, 15)], [0]),
        (CHEAP, 2, [(0.95, 4), (0.02, 4)], [4, 0]),
        (CHEAP, 2, [(0.99, 1), (0.9, 15)], [1, 9]),
        ({}, 1, [(0.99, 15)], [1]),  # nothing is known: one draft
    ],
)
def test_the_drafts_that_give_the_most_tokens_a_second(
    known: dict[str, float], rows: int, guesses: list[tuple[float, int]], counts: list[int]
) -> None:
    assert times(**known).best(rows, 47, guesses) == counts


@pytest.mark.parametrize(
    ("rows", "rates", "cost", "found"),
    [
        (1, [0.99], 0.01, (1, 11)),  # as many as `best` takes
        (1, [0.9], 0.3, (1, 5)),
        (1, [0.9], 0.9, (0, 0)),
        (4, [0.9] * 4, 0.1, (4, 2)),
        (4, [0.9, 0.9, 0.1, 0.1], 0.1, (2, 3)),
    ],
)
def test_how_far_a_draft_model_guesses(
    rows: int, rates: list[float], cost: float, found: tuple[int, int]
) -> None:
    known = times(**CHEAP)
    assert known.depth(rows, 47, rates, lambda _: cost) == found


def test_without_steps_of_more_rows_some_are_tried() -> None:
    """Few streams were slow for each row: that does not show what drafts beside eight take."""
    few = {"r1": 1.0, "r8": 3.0}
    assert sum(times(**few).best(8, 8, [(0.9, 1)] * 8)) == 4
    assert sum(times(**few, r12=4.6).best(8, 8, [(0.9, 1)] * 8)) == 0


def test_drafts_do_not_make_a_step_faster() -> None:
    """The machine was slow when steps of eight rows were measured."""
    assert sum(times(r8=3.0, r12=2.0).best(8, 4, [(0.05, 1)] * 8)) == 0


def test_no_more_drafts_than_allowed() -> None:
    assert times(**CHEAP).best(1, 2, [(0.99, 15)]) == [2]


def test_where_rows_cost_as_much_as_steps_nothing_can_win() -> None:
    assert times(**CHEAP).can_win(1, 15)
    assert not times(**DEAR).can_win(1, 15)
    assert not times(**CHEAP).can_win(1, 0)
