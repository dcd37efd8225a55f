"""Gemma 3 with images: the built-in model has a vision encoder."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tampu
from tampu.gguf_compat import read_model
from tampu.ml import Weights
from tampu.models import bind_model
from tampu.nn.media import VisionModel

DEMO = Path(tampu.__file__).parent / "data" / "demo.gguf"
START, END, SOFT = 6, 7, 8


@pytest.fixture(scope="module")
def vision() -> Iterator[VisionModel | None]:
    with Weights(read_model(DEMO)) as weights:
        yield bind_model(weights).vision


def test_every_image_becomes_a_square_of_patches(vision: VisionModel | None) -> None:
    for size in [(10, 300), (64, 64), (700, 200)]:
        prepared = vision.prepare(np.full((*size, 3), 255, np.uint8))
        assert prepared.arrays["patches"].shape == (64, 3 * 8 * 8)
        assert prepared.rows == 16
        assert np.all(prepared.arrays["patches"] == 1)


def test_all_images_use_one_graph(vision: VisionModel | None) -> None:
    one = vision.prepare(np.zeros((10, 300, 3), np.uint8))
    largest = vision.largest()
    assert one.key == largest.key
    assert {n: a.shape for n, a in one.arrays.items()} == {
        n: a.shape for n, a in largest.arrays.items()
    }


@pytest.mark.seed("S33", "S53", "S54", "S55", "S61")
def test_a_group_starts_with_the_images_own_inputs(vision: VisionModel | None) -> None:
    lies = vision.prepare(np.zeros((8, 8, 3), np.uint8)).placeholders
    ((first, length),) = lies.groups
    assert length == 16
    assert lies.tokens[first - 1] == START
    assert lies.tokens[first : first + length].tolist() == [SOFT] * 16
    assert lies.tokens[first + length] == END
    assert np.flatnonzero(lies.embedded).tolist() == list(range(first, first + length))
    assert lies.is_bidirectional
    assert not lies.is_cross
    assert lies.advance == len(lies.tokens)
