"""How Qwen2.5-Omni cuts sounds, and what the Omni models refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import make_checkpoint
from support.sounds import sound
from support.videos import scene, video

from tampu import nn
from tampu.convert import convert
from tampu.convert.divided import plan_part
from tampu.engine.engine import Engine
from tampu.errors import RequestError
from tampu.gguf_compat import read_model
from tampu.ml import Weights
from tampu.ml.gguf import read_gguf
from tampu.ml.metadata import Metadata
from tampu.models import bind_model

HOURS = 16_000 * 3600


def converted(folder: Path, name: str) -> Path:
    convert(make_checkpoint(name, folder / "checkpoint"), folder / "m.gguf", "F16")
    return folder / "m.gguf"


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> nn.AudioModel:
    with Weights(read_model(converted(tmp_path_factory.mktemp("omni"), "qwen25_omni"))) as weights:
        model = bind_model(weights)
    assert model.audio is not None
    return model.audio


@pytest.mark.parametrize("length", [0, 2 * HOURS + 1])
def test_a_sound_that_is_empty_or_lasts_for_hours_is_refused(
    audio: nn.AudioModel, length: int
) -> None:
    with pytest.raises(RequestError, match="at least one sample and at most 7200 seconds"):
        audio.prepare(np.zeros(length, np.float32))


@pytest.mark.parametrize(
    ("length", "tokens"),
    [
        (1, [1]),  # filled with silence
        (480, [1]),
        (960, [1]),  # six frames: of three positions one has no partner
        (961, [2]),
        (32_000, [50]),
        (32_001, [50]),  # a frame, and two, are no token
        (32_321, [50, 1]),
        (80_000, [50, 50, 25]),
    ],
)
def test_a_token_is_forty_milliseconds_and_a_part_two_seconds(
    audio: nn.AudioModel, length: int, tokens: list[int]
) -> None:
    prepared = audio.prepare(sound(5.0)[:length])
    parts = [part for part in prepared if isinstance(part, nn.MediaItem)]
    assert [part.rows for part in parts] == tokens
    assert [len(part.placeholders.tokens) for part in parts] == tokens
    assert len(prepared) == len(parts) + 2  # between two marks


def test_a_longer_sound_has_the_same_first_parts(audio: nn.AudioModel) -> None:
    samples = sound(5.0) * np.float32(0.5)
    samples[1000:1200] = 0.9  # the loudest moment, which bounds the spectrogram
    first, second = (
        [
            part.digest()
            for part in audio.prepare(samples[:length])
            if isinstance(part, nn.MediaItem)
        ]
        for length in (70_000, 80_000)
    )
    assert first[:2] == second[:2]
    assert first[2] != second[2]


def test_the_old_name_of_both_projectors_is_read(tmp_path: Path) -> None:
    """llama.cpp's first files of Qwen2.5-Omni have one kind for both encoders."""
    checkpoint = make_checkpoint("qwen25_omni", tmp_path / "checkpoint")
    text, mmproj, old = (tmp_path / f"{name}.gguf" for name in ("text", "mmproj", "old"))
    convert(checkpoint, text, "F16", mmproj=mmproj)
    file = read_gguf(mmproj)
    kept = {key: value for key, value in file.metadata.items() if "projector_type" not in key}
    assert len(kept) == len(file.metadata) - 2
    metadata = Metadata({**kept, "clip.projector_type": "qwen2.5o"})
    plan_part(replace(file, metadata=metadata)).write(old)
    with Weights(read_model(text)) as weights, Weights(read_model(old)) as projector:
        model = bind_model(weights, projector)
    assert model.vision is not None
    assert model.audio is not None


@pytest.mark.parametrize("name", ["qwen25_omni", "qwen3_omni"])
def test_videos_are_refused(tmp_path: Path, name: str) -> None:
    with (
        Engine.load(converted(tmp_path, name), context=128, threads=1) as engine,
        pytest.raises(RequestError, match="takes no videos, only images"),
    ):
        engine.prepare_file(video(scene(9)))
