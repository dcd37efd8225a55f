"""Towers load from a file of their own, as llama.cpp has them, and see the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.laboratory import Laboratory
from support.projectors import SEEING, take_apart
from support.seeing import Seer, picture

from tampu.convert import convert
from tampu.engine.engine import Engine
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.gguf_compat import read_model
from tampu.ml import Backend, Weights
from tampu.ml.gguf import read_gguf
from tampu.models import bind_model

pytestmark = [pytest.mark.parity, pytest.mark.slow]


@pytest.mark.parametrize("name", SEEING)
def test_text_and_projector_files_equal_one_model(
    laboratory: Laboratory, backend: Backend, tmp_path: Path, name: str
) -> None:
    text, projector = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    take_apart(laboratory.file(name), text, projector)
    parts: list[list[int] | np.ndarray] = [[1, 33, 34], picture(100, 150), [11, 57, 200]]
    whole, apart = Seer(backend, laboratory.file(name)), Seer(backend, text, projector)
    try:
        expected, found = whole.logits(parts), apart.logits(parts)
    finally:
        whole.close()
        apart.close()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SEEING)
def test_without_its_projector_a_model_has_no_vision(
    laboratory: Laboratory, tmp_path: Path, name: str
) -> None:
    text, projector = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    take_apart(laboratory.file(name), text, projector)
    with Weights(read_model(text)) as weights:
        assert bind_model(weights).vision is None
    with Weights(read_model(text)) as weights, Weights(read_model(projector)) as second:
        assert bind_model(weights, second).vision is not None


@pytest.mark.parametrize(
    ("text", "tower", "message"),
    [
        ("qwen3vl", "qwen35_seeing", "'v.deepstack': of 0 layers, the text model takes 2"),
        ("qwen35_seeing", "qwen3vl", "'v.deepstack': of 2 layers, the text model takes 0"),
    ],
)
def test_a_tower_of_a_model_with_other_additions_is_refused(
    laboratory: Laboratory, tmp_path: Path, text: str, tower: str, message: str
) -> None:
    files = {}
    for name in (text, tower):
        files[name] = (tmp_path / f"{name}.gguf", tmp_path / f"{name}-mmproj.gguf")
        take_apart(laboratory.file(name), *files[name])
    with pytest.raises(ModelFileError, match=message):
        Engine.load(files[text][0], projector=files[tower][1], context=64, threads=1)


def test_a_projector_that_does_not_fit_is_refused(laboratory: Laboratory, tmp_path: Path) -> None:
    files = {}
    for name in ("gemma3_vision", "qwen25vl"):
        files[name] = (tmp_path / f"{name}.gguf", tmp_path / f"{name}-mmproj.gguf")
        take_apart(laboratory.file(name), *files[name])
    with (
        Weights(read_model(files["gemma3_vision"][0])) as text,
        Weights(read_model(files["qwen25vl"][1])) as other,
        pytest.raises(
            UnsupportedModelError,
            match=r"Gemma3 does not support a projector of type 'qwen2\.5vl_merger'",
        ),
    ):
        bind_model(text, other)
    with (
        Weights(read_model(laboratory.file("llava"))) as words,
        Weights(read_model(files["gemma3_vision"][1])) as tower,
        pytest.raises((UnsupportedModelError, ModelFileError)),
    ):
        bind_model(words, tower)


@pytest.mark.parametrize("name", ["gemma3_vision", "mistral3_vision", "qwen3vl", "qwen25vl"])
def test_a_checkpoint_is_converted_into_two_files(
    laboratory: Laboratory, tmp_path: Path, name: str
) -> None:
    divided = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    take_apart(laboratory.file(name), *divided)
    made = tmp_path / "t.gguf", tmp_path / "m.gguf"
    convert(laboratory.checkpoint(name), made[0], "F32", mmproj=made[1])
    for ours, expected in zip(made, divided, strict=True):
        assert stored(ours) == stored(expected)
    kind = read_gguf(made[1]).metadata
    assert (kind.architecture, kind.string("general.type")) == ("clip", "mmproj")
    with Weights(read_model(made[0])) as text, Weights(read_model(made[1])) as second:
        assert bind_model(text, second).vision is not None


def test_a_checkpoint_without_encoders_is_not_divided(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    with pytest.raises(
        UnsupportedModelError, match="no encoder of images or sounds: leave out --mmproj"
    ):
        convert(laboratory.checkpoint("llama"), tmp_path / "t", "F32", mmproj=tmp_path / "m")
    assert [*tmp_path.iterdir()] == []


def stored(path: Path) -> dict[str, bytes]:
    """Return the bytes of each tensor."""
    data, tensors = path.read_bytes(), read_gguf(path).tensors
    return {name: data[info.offset :][: info.size_bytes] for name, info in tensors.items()}
