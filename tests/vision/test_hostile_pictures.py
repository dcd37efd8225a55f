"""Pictures that were made to break a decoder: refused with a plain reason or taken, and quickly."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from support.cost import cost, yardstick_by_the_clock
from support.hostile_pictures import EITHER, PLAIN, REFUSED, TAKEN, encoded

from tampu.errors import RequestError
from tampu.runner.encoder_cache import EncoderCache
from tampu.vision.decoding import decode

MOST = 100.0  # yardsticks, with what it takes to start a process that decodes
# What Pillow or Python would say of an error, and of this machine.
DETAILS = re.compile(r"0x|<|object|driver|Pillow|PngImagePlugin|line \d|truncated \(|b'")


def assert_quick(action: Callable[[], Any] | Callable[[], None]) -> None:
    """Do something of which the work is in another process."""
    assert cost(action, 1, time.perf_counter) < MOST * yardstick_by_the_clock()


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_image_is_refused_with_our_message(name: str) -> None:
    make, words = REFUSED[name]
    data = make()
    caught = []

    def refuse() -> None:
        with pytest.raises(RequestError, match=words) as refused:
            decode(data)
        caught.append(str(refused.value))

    assert_quick(refuse)
    assert not DETAILS.search(caught[0])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("name", TAKEN)
def test_an_unusual_but_valid_image_is_decoded(name: str) -> None:
    data = TAKEN[name]()
    shapes = []
    assert_quick(lambda: shapes.append(decode(data).shape))
    assert shapes[0][2] == 3


@pytest.mark.parametrize("name", EITHER)
def test_tokenizing_takes_linear_time(name: str) -> None:
    data = EITHER[name]()

    def take() -> None:
        with suppress(RequestError):
            decode(data)

    assert_quick(take)


def test_equal_bytes_of_another_shape_are_another_image() -> None:
    wide = decode(encoded(PLAIN, "PNG"))
    high = wide.reshape(wide.shape[1], wide.shape[0], 3)
    assert hashlib.sha256(wide.tobytes()).digest() == hashlib.sha256(high.tobytes()).digest()
    store = EncoderCache(1 << 20)
    assert store.number(wide) != store.number(high)
    assert store.number(wide) == store.number(wide.copy())
