"""How many connections a download has."""

from tampu.store.registry.download import FAST_PER_SECOND, FIRST, RAMP_S, Ramp


def test_connections_are_added_while_each_is_slow() -> None:
    ramp = Ramp(8)
    assert [ramp.count(turn * RAMP_S, turn * 1000) for turn in range(5)] == [FIRST, 2, 4, 8, 8]


def test_no_connections_are_added_if_each_is_fast() -> None:
    ramp = Ramp(8)
    step = int(FAST_PER_SECOND * FIRST * RAMP_S) + 1
    assert [ramp.count(turn * RAMP_S, turn * step) for turn in range(4)] == [FIRST] * 4


def test_the_number_of_connections_is_limited() -> None:
    assert Ramp(1).count(0, 0) == 1
    ramp = Ramp(3)
    assert [ramp.count(turn * RAMP_S, 0) for turn in range(4)] == [1, 2, 3, 3]
