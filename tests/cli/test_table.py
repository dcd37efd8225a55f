"""Tables, sizes and times in words."""

import pytest

from tampu.cli.table import human_age, human_bytes, human_span, table

DAY = 86_400


def test_columns_are_as_wide_as_they_need_to_be() -> None:
    assert table(("NAME", "ID"), [("a", "1"), ("longer", "22")]) == (
        "NAME      ID\na         1\nlonger    22"
    )


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (4.7e9, "4.7 GB"), (815e6, "815 MB"),
        (2e12, "2.0 TB"),
    ],
)  # fmt: skip
def test_sizes_are_decimal(count: float, shown: str) -> None:
    assert human_bytes(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1, "1 second"), (59, "59 seconds"), (60, "About a minute"), (120, "2 minutes"),
        (3599, "59 minutes"), (3600, "About an hour"), (7200, "2 hours"), (47 * 3600, "47 hours"),
        (2 * DAY, "2 days"), (14 * DAY, "2 weeks"), (59 * DAY, "8 weeks"), (60 * DAY, "2 months"),
        (729 * DAY, "24 months"), (730 * DAY, "2 years"),
    ],
)  # fmt: skip
def test_durations_are_worded_like_dockers(seconds: int, shown: str) -> None:
    assert human_span(seconds) == shown
    assert human_age(seconds) == f"{shown} ago"


def test_age_of_new_and_future_times() -> None:
    assert human_age(0.5) == human_age(-100) == "Less than a second ago"
