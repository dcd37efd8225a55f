"""llama.cpp loads the encoders of sounds that `tampu convert --mmproj` writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support import llama_cpp
from support.checkpoints import HEARING, make_checkpoint
from support.checkpoints.encoders import MEDIA
from support.sounds import sound, wav

from tampu import Engine
from tampu.convert import convert

pytestmark = [pytest.mark.server, pytest.mark.slow]


def converted(folder: Path, name: str) -> tuple[Path, Path]:
    text, mmproj = folder / "text.gguf", folder / "mmproj.gguf"
    convert(make_checkpoint(name, folder / "checkpoint"), text, "F32", mmproj=mmproj)
    return text, mmproj


@pytest.mark.parametrize("name", [name for name in HEARING if name != "qwen3_omni"])
def test_an_encoder_of_sounds_is_loaded(tmp_path: Path, name: str) -> None:
    text, mmproj = converted(tmp_path, name)
    llama_cpp.heard(text, mmproj, b"", "", "")


def test_an_encoder_of_sounds_beside_one_that_adds_to_layers_is_refused(tmp_path: Path) -> None:
    """Qwen3-Omni's images have more features than its sounds, which llama.cpp does not take."""
    text, mmproj = converted(tmp_path, "qwen3_omni")
    with pytest.raises(AssertionError, match="mismatch between vision and audio mmproj"):
        llama_cpp.heard(text, mmproj, b"", "", "")


def test_a_sound_is_heard_as_here(tmp_path: Path) -> None:
    """With the epsilon of the published model: llama.cpp does not read the file's."""
    checkpoint = make_checkpoint("gemma4_unified_hearing", tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text())
    config["audio_config"]["rms_norm_eps"] = 1e-6
    (checkpoint / "config.json").write_text(json.dumps(config))
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    convert(checkpoint, text, "F32", mmproj=mmproj)
    file = wav(sound(1.5))
    theirs = llama_cpp.heard(text, mmproj, file, "user: ", " What?")
    assert len(theirs) > 500
    with Engine.load(text, projector=mmproj, context=256, threads=1, cache_type="f16") as engine:
        heard = engine.prepare_audio(file)
        before = engine.tokenize("user: ")
        after = engine.tokenize(" What?", add_special=False)
        row = engine.logits([*before, heard, *after])[-1].astype(np.float64)
    ours = row - row.max() - np.log(np.exp(row - row.max()).sum())
    assert max(abs(ours[token] - score) for token, score in theirs.items() if score > -50) < 0.05


def test_a_sound_has_the_same_embedding_as_here(tmp_path: Path) -> None:
    """Of EmbeddingGemma 2, whose text and encoders it loads from two files."""
    text, mmproj = converted(tmp_path, MEDIA)
    file = wav(sound(1.5))
    theirs = llama_cpp.embedded_sound(text, mmproj, file)
    with Engine.load(text, projector=mmproj, context=256, threads=1, cache_type="f32") as engine:
        [ours] = engine.embed([{"audio": [file]}])
    assert float(ours @ np.array(theirs)) > 0.9999
