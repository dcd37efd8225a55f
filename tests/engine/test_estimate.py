"""What a model would take of memory: as loading finds it, without loading."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_model import Tiny, write_tiny

from tampu.engine.engine import Engine
from tampu.engine.estimate import estimate_memory
from tampu.engine.load_options import load_options
from tampu.engine.memory import CPU
from tampu.errors import ModelFileError, OutOfMemoryError
from tampu.ml.gguf import read_gguf


def test_an_estimate_is_what_loading_takes(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    options = load_options({"context": 512, "slots": 3, "threads": 1, "gpu_layers": 0})
    found = estimate_memory(path, options)
    with Engine.load(path, options) as engine:
        assert found.devices[-1].cache == engine.slot_bytes * 3
    [cpu] = found.devices
    assert cpu.name == CPU
    assert cpu.weights == sum(each.size_bytes for each in read_gguf(path).tensors.values())
    assert cpu.graphs > 0
    assert cpu.available > cpu.weights + cpu.cache + cpu.graphs
    assert found.fits
    assert found.message == ""
    assert (found.context, found.slots) == (512, 3)


def test_an_estimate_says_what_loading_would_say(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(context=1 << 30))
    options = load_options({"context": 1 << 30, "threads": 1, "gpu_layers": 0})
    found = estimate_memory(path, options)
    assert not found.fits
    with pytest.raises(OutOfMemoryError) as error:
        Engine.load(path, options)
    # The free memory may have changed in between.
    assert found.message.partition(";")[0] == str(error.value).partition(";")[0]
    assert "Choose a context of at most" in found.message
    assert found.devices[-1].cache > found.devices[-1].available


def test_a_file_that_cannot_be_loaded_has_no_estimate(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelFileError):
        estimate_memory(tmp_path / "x.gguf", load_options({}))
