"""What a model of a store has besides its weights reaches the process that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapters import write_adapter
from support.fork_server import FORK_SERVER
from support.tiny_model import Tiny, write_tiny

from tampu.convert.adapters import plan_adapter
from tampu.engine.load_options import LoadOptions
from tampu.engine.prompts import ChatPrompt
from tampu.engine.requests import Decode, Encode
from tampu.ml.gguf import read_gguf
from tampu.worker.main import load_model
from tampu.worker.protocol import Load

TEMPLATE = "{{ range .Messages }}al{{ .Content }}ou{{ end }}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "m.gguf", Tiny(context=64), template="{{ messages }}")


def test_a_template_of_the_load_options_replaces_the_files(model: Path) -> None:
    options = LoadOptions(template=TEMPLATE, context=32, threads=1, vocabulary_only=True)
    load = Load(str(model), options)
    prompt = ChatPrompt(messages=({"role": "user", "content": "the"},))
    with load_model(load, lambda _: None, lambda: False, FORK_SERVER) as loaded:
        tokens = loaded.ask(Encode(prompt)).tokens()
        assert loaded.ask(Decode(tuple(tokens))).text.strip() == "altheou"


def test_adapters(model: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    factors = {
        "model.layers.0.mlp.up_proj": (
            random.normal(size=(2, 32)).astype(np.float32),
            random.normal(size=(64, 2)).astype(np.float32),
        )
    }
    folder = write_adapter(tmp_path / "peft", factors)
    plan_adapter(folder, read_gguf(model)).write(tmp_path / "a.gguf")
    answers = []
    for adapters in ((), ((str(tmp_path / "a.gguf"), 1.0),)):
        options = LoadOptions(adapters=adapters, context=32, threads=1)
        load = Load(str(model), options)
        with load_model(load, lambda _: None, lambda: False, FORK_SERVER) as loaded:
            engine: Any = loaded
            answers.append(engine.logits([1, 270, 280]))
    assert np.abs(answers[0] - answers[1]).max() > 0.01


def test_repacked_weights_are_cached_in_a_folder(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "m.gguf", Tiny(context=64), types={"ffn_up.weight": "Q8_0"})
    options = LoadOptions(repack_cache=(str(tmp_path / "packed"), 10**9), context=32, threads=1)
    with load_model(Load(str(model), options), lambda _: None, lambda: False, FORK_SERVER):
        pass
    assert [path.suffix for path in (tmp_path / "packed").iterdir()] == [".packed"]
