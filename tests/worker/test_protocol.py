"""Frames come out whole, however the bytes of a connection are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.worker.frames import HEADER, MAX_FRAME, take_frames


@given(st.lists(st.binary(max_size=20), max_size=8), st.lists(st.integers(1, 30), min_size=1))
def test_frames_are_complete_however_they_are_split(bodies: list[Any], cuts: list[Any]) -> None:
    sent = b"".join(HEADER.pack(len(body)) + body for body in bodies)
    buffer, found, start = bytearray(), [], 0
    for index in range(len(sent)):
        end = start + cuts[index % len(cuts)]
        buffer += sent[start:end]
        found += take_frames(buffer)
        start = end
    assert found == bodies
    assert not buffer


def test_a_frame_that_is_too_long_is_refused_from_its_header() -> None:
    with pytest.raises(ConnectionError, match=str(MAX_FRAME + 1)):
        take_frames(bytearray(HEADER.pack(MAX_FRAME + 1)))
