"""A full context moves its keys: what is in the cache then is what positions there would give."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import floats
from support.running import TinyModel, load_tiny, relative_error
from support.tiny_model import Tiny

from tampu.ml import Backend, GGMLType, RopeMode, RopeScaling
from tampu.nn import Rope

F32, I32 = GGMLType.F32, GGMLType.I32
YARN = RopeScaling(frequency_scale=0.25, original_context=32, extrapolation=1.0)


@pytest.mark.seed("S80", "S97")
@pytest.mark.parametrize("mode", [RopeMode.INTERLEAVED, RopeMode.HALVES])
@pytest.mark.parametrize("scaling", [RopeScaling(), RopeScaling(frequency_scale=0.5), YARN])
def test_a_key_that_was_moved_is_the_key_at_the_new_position(
    backend: Backend, mode: RopeMode, scaling: RopeScaling
) -> None:
    context = backend.context()
    rope = Rope(16, 10_000.0, mode, scaling)
    x = context.input("x", (3, 2, 16), F32)
    old, new, moves = (context.input(name, (3,), I32) for name in ("old", "new", "moves"))
    moved = context.output(rope.move(rope(x, old), moves))
    there = context.output(rope(x, new))
    places = {old: [40, 41, 90], new: [7, 8, 57], moves: [-33, -33, -33]}
    data = [(tensor, np.array(values, np.int32)) for tensor, values in places.items()]
    found = backend.compute(context, [(x, floats(3, 2, 16)), *data], [moved, there]).outputs
    np.testing.assert_allclose(found[0], found[1], atol=2e-5)
    context.close()


@pytest.mark.seed("S80")
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3"])
def test_shifted_keys_of_the_first_layer_equal_recomputed_ones(
    backend: Backend, tmp_path: Path, architecture: str
) -> None:
    """In the first layer, keys depend on a token and its position alone."""
    text = [1, 259, 286, 264, 7, 7, 300, 12]
    moved = load_tiny(backend, tmp_path, Tiny(architecture=architecture))
    moved.logits(text)
    cells = np.arange(5, 8, dtype=np.int32)
    moved.graphs.shift_keys([cells] * len(moved.cache.specs), -3)
    fresh = load_tiny(backend, tmp_path, Tiny(architecture=architecture))
    fresh.logits([1, 259, *text[5:]])
    expected = keys_of(backend, fresh)[2:5]
    assert relative_error(keys_of(backend, moved)[5:8], expected) < 1e-5
    untouched = keys_of(backend, moved)[:5]
    assert relative_error(untouched[:2], keys_of(backend, fresh)[:2]) < 1e-5
    moved.close()
    fresh.close()


@pytest.mark.seed("S80")
@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_keys_of_a_smaller_type_are_moved_too(
    backend: Backend, tmp_path: Path, cache_type: str
) -> None:
    text = [1, 259, 286, 264, 7, 7, 300, 12]
    tiny = Tiny(head_dim=32)
    moved = load_tiny(backend, tmp_path, tiny, cache_type=cache_type)
    moved.logits(text)
    moved.graphs.shift_keys([np.arange(5, 8, dtype=np.int32)], -3)
    fresh = load_tiny(backend, tmp_path, tiny, cache_type=cache_type)
    fresh.logits([1, 259, *text[5:]])
    found, expected = keys_of(backend, moved)[5:8], keys_of(backend, fresh)[2:5]
    assert relative_error(found, expected) < {"f16": 1e-3, "q8_0": 2e-2}[cache_type]
    moved.close()
    fresh.close()


def keys_of(backend: Backend, model: TinyModel) -> npt.NDArray[Any]:
    """Return the keys of the first layer, (8, width)."""
    context = backend.context()
    rows = context.input("rows", (8,), I32)
    _, layer = next(iter(model.cache.stored_layers(0)))
    read = context.output(layer.keys.rows(rows))
    found = backend.compute(context, [(rows, np.arange(8, dtype=np.int32))], [read]).outputs[0]
    context.close()
    return found
