"""What Whisper's encoder and its projectors refuse, and how they cut sounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import make_checkpoint
from support.sounds import sound

from tampu import nn
from tampu.convert import convert
from tampu.errors import RequestError
from tampu.gguf_compat import read_model
from tampu.ml import Weights
from tampu.models import bind_model

HOURS = 16_000 * 3600


@pytest.fixture(scope="module", params=["ultravox", "voxtral"])
def audio(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> nn.AudioModel:
    folder = tmp_path_factory.mktemp(request.param)
    convert(make_checkpoint(request.param, folder / "checkpoint"), folder / "m.gguf", "F16")
    with Weights(read_model(folder / "m.gguf")) as weights:
        model = bind_model(weights)
    assert model.audio is not None
    return model.audio


@pytest.mark.parametrize("length", [0, 2 * HOURS + 1])
def test_a_sound_that_is_empty_or_lasts_for_hours_is_refused(
    audio: nn.AudioModel, length: int
) -> None:
    with pytest.raises(RequestError, match="at least one sample and at most 7200 seconds"):
        audio.prepare(np.zeros(length, np.float32))


@pytest.mark.parametrize("length", [1, 160, 161, 32_000, 32_001])
def test_every_sample_is_in_a_window_of_frames(audio: nn.AudioModel, length: int) -> None:
    """Windows have 200 frames here: two seconds."""
    prepared = audio.prepare(sound(3.0)[:length])
    parts = [part for part in prepared if isinstance(part, nn.MediaItem)]
    frames = [len(part.arrays["frames"]) for part in parts]
    assert all(count == 200 for count in frames[:-1])
    assert sum(frames) * 160 >= length
    assert len(parts) == -(-length // 32_000)
    assert [part.rows for part in parts] == [len(part.placeholders.tokens) for part in parts]


def test_the_quantized_file_keeps_what_ggml_does_not_multiply_quantized(tmp_path: Path) -> None:
    checkpoint = make_checkpoint("voxtral", tmp_path / "checkpoint")
    convert(checkpoint, tmp_path / "m.gguf", "Q8_0")
    types = {
        name: info.type.name
        for name, info in read_model(tmp_path / "m.gguf").tensors.items()
        if name.startswith(("a.", "mm.a."))
    }
    assert {types[f"a.conv1d.{index}.weight"] for index in (1, 2)} == {"F16"}
    assert types["a.position_embd.weight"] == "F32"
    assert set(types.values()) == {"F16", "F32"}


@pytest.mark.parametrize(
    ("name", "biases"),
    [
        ("voxtral", {f"a.conv1d.{index}.bias": (64, 1) for index in (1, 2)}),
        ("qwen3_asr", {f"a.conv2d.{index}.bias": (24, 1, 1) for index in (1, 2, 3)}),
    ],
)
def test_biases_have_the_shape_that_llama_cpp_adds_to_maps(
    tmp_path: Path, name: str, biases: dict[str, tuple[int, ...]]
) -> None:
    checkpoint = make_checkpoint(name, tmp_path / "checkpoint")
    convert(checkpoint, tmp_path / "m.gguf", "F16", mmproj=tmp_path / "mmproj.gguf")
    file = read_model(tmp_path / "mmproj.gguf")
    assert {each: file.tensors[each].shape for each in biases} == biases
    assert file.metadata["clip.has_audio_encoder"] is True
    assert "clip.has_vision_encoder" not in file.metadata
    assert file.metadata["clip.projector_type"] == {"qwen3_asr": "qwen3a"}.get(name, name)
