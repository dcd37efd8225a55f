"""Keys that moved all alike give the same answer: attention sees how far apart tokens are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.checkpoints import (
    DECODERS,
    HYBRIDS,
    SEEING_HYBRIDS,
    VOCABULARY,
    layer_norm,
)
from support.laboratory import Laboratory, exact, tokens
from support.running import TinyModel, relative_error

from tampu.kvcache import Segment
from tampu.ml import Backend
from tampu.runner.step_inputs import StepInputs

pytestmark = [pytest.mark.parity, pytest.mark.slow]

NAMES = [name for name in DECODERS if name not in (*HYBRIDS, *SEEING_HYBRIDS)]
NAMES += ["afmoe", "laguna", "mellum"]  # whose layers rotate differently
LENGTH, OFFSET = 12, 5  # Llama 4's queries are at 10 to 19 before and after
TEXT = tokens(LENGTH + 1)
ROTATED = [name for name in layer_norm.RECIPES if name not in layer_norm.UNROTATED]


@pytest.fixture
def model(laboratory: Laboratory, backend: Backend, name: str) -> Iterator[TinyModel]:
    model = TinyModel(backend, laboratory.file(name))
    yield model
    model.close()


def read(model: TinyModel, text: list[int], begin: int, position: int) -> np.ndarray:
    """Return the last logits of a text that goes on behind `begin` tokens, from a position on."""
    count = len(text)
    positions = np.arange(position, position + count, dtype=np.int32)
    if model.model.positions_per_token > 1:
        positions = np.stack([positions] * 4)
    cells = np.arange(begin + count, dtype=np.int32)
    segment = Segment(np.stack([cells] * len(model.cache.specs)), begin)
    step = StepInputs(
        np.array(text, np.int32), positions, np.array([count - 1], np.int32), [segment]
    )
    logits = np.array(model.graphs.submit(step).result().outputs[0])
    return logits[:, :VOCABULARY]


@pytest.mark.seed("S80", "S97")
@pytest.mark.parametrize("name", [*NAMES, *ROTATED])
def test_an_answer_after_keys_that_moved_together(model: TinyModel, name: str) -> None:
    """Also with YaRN, whose factor is in the keys already, and on layers that rotate nothing."""
    assert model.graphs.can_shift_keys
    read(model, TEXT[:-1], 0, 0)
    expected = read(model, TEXT[-1:], LENGTH, LENGTH)
    cells = [np.arange(LENGTH, dtype=np.int32)] * len(model.cache.specs)
    model.graphs.shift_keys(cells, OFFSET)
    limit = exact(name)
    moved = read(model, TEXT[-1:], LENGTH, LENGTH + OFFSET)
    assert relative_error(moved, expected) < limit
    elsewhere = read(model, TEXT[-1:], LENGTH, LENGTH + 2 * OFFSET)
    assert relative_error(elsewhere, expected) > 3 * limit
