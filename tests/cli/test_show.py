"""What `tampu show` says of a model's engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_gguf import write_gguf

from tampu.cli import show
from tampu.store.model_info import read_model_info
from tampu.store.modelfile import Modelfile


def test_an_engine_that_is_not_installed_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = read_model_info(write_gguf(tmp_path / "m.gguf", general__architecture="deci"))
    assert "engine              llamacpp\n" in show.as_text(info, Modelfile())
    monkeypatch.setattr(show, "find_spec", lambda _: None)
    shown = show.as_text(info, Modelfile())
    assert "llamacpp (not installed: pip install 'tampu[llamacpp]')" in shown
