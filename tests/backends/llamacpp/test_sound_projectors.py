"""llama.cpp loads the encoders of sounds that `tampu convert --mmproj` writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import llama_cpp
from support.checkpoints import HEARING, make_checkpoint
from support.sounds import sound, wav

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


def test_a_sound_is_heard(tmp_path: Path) -> None:
    """Two sounds lead to other tokens, the same sound to the same ones."""
    text, mmproj = converted(tmp_path, "gemma4_unified_hearing")
    first, again, other = (
        llama_cpp.heard(text, mmproj, wav(sound(1.5, seed)), "user: ", " What?")
        for seed in (0, 0, 1)
    )
    assert len(first) > 500
    assert first == again
    assert first != other
