"""Pictures that were made to break a decoder: refused with a plain reason or taken, and quickly."""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import suppress

import pytest
from support.hostile_pictures import EITHER, PLAIN, REFUSED, TAKEN, encoded

from tampu.errors import RequestError
from tampu.runner.images import ImageStore
from tampu.vision import decode

SECONDS = 4.0
# What Pillow or Python would say of an error, and of this machine.
DETAILS = re.compile(r"0x|<|object|driver|Pillow|PngImagePlugin|line \d|truncated \(|b'")


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_words_of_our_own(name):
    data, words = REFUSED[name]
    began = time.monotonic()
    with pytest.raises(RequestError, match=words) as caught:
        decode(data)
    assert not DETAILS.search(str(caught.value))
    assert time.monotonic() - began < SECONDS


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("name", TAKEN)
def test_it_is_a_picture_all_the_same(name):
    began = time.monotonic()
    assert decode(TAKEN[name]).shape[2] == 3
    assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize("name", EITHER)
def test_it_does_not_take_long(name):
    began = time.monotonic()
    with suppress(RequestError):
        decode(EITHER[name])
    assert time.monotonic() - began < SECONDS


def test_bytes_in_another_shape_are_another_picture():
    wide = decode(encoded(PLAIN, "PNG"))
    high = wide.reshape(wide.shape[1], wide.shape[0], 3)
    assert hashlib.sha256(wide.tobytes()).digest() == hashlib.sha256(high.tobytes()).digest()
    store = ImageStore(1 << 20)
    assert store.number(wide) != store.number(high)
    assert store.number(wide) == store.number(wide.copy())
