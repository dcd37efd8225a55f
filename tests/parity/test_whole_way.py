"""A checkpoint of each architecture goes the whole way, by the commands, and answers as before.

convert -> quantize -> create -> push to Debian's docker-registry -> rm -> pull -> run
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import checkpoints
from support.checkpoints import HYBRIDS, RECIPES
from support.laboratory import Laboratory, answer, relative_error, tokens
from support.registries import DockerRegistry
from support.seeing import picture
from support.sights import SIGHTS

from tampu.cli import app
from tampu.convert import FAMILIES
from tampu.engine.engine import Engine
from tampu.errors import ModelNotFoundError
from tampu.models import architectures

pytestmark = [pytest.mark.parity, pytest.mark.registry, pytest.mark.slow]

# One of each architecture, and of each kind of checkpoint that becomes one.
NAMES = [
    "llama_rope_llama3",
    "mistral_window",
    "mistral3",
    "mixtral",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "gptoss",
    *HYBRIDS,
    "llama4_text",
    "gemma2",
    "gemma3_text",
    "gemma4_small",
    "bert",
    *SIGHTS,
]
# Of checkpoints whose architecture depends on more than their class, and of a test of its own.
OF_VARIANTS = {"nemotron_h_moe", "nomic-bert-moe", "bailingmoe2"}
OTHER_NAMES = {"gptoss", "qwen2vl"}  # what other programs call two of them
TYPE = "Q8_0"
ROUNDING = 0.3  # 0.03, where it does not move a token to another expert
PROMPT = tokens(30)
COUNT = 12


class Answers(NamedTuple):
    """What a model says to a text, and to one with a picture if it sees."""

    logits: tuple[np.ndarray[Any, Any], ...]
    tokens: tuple[list[int], ...]


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("TAMPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TAMPU_HOST", "127.0.0.1:1")  # no server of the user's is asked
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tampu(*arguments: object) -> None:
    assert app.run([str(argument) for argument in arguments]) == 0


def answers(model: str, name: str) -> Answers:
    """Load a model by its name or path, and return what it says."""
    with Engine.load(model, context=RECIPES[name].pictures_context, threads=1) as engine:
        if name == "bert":
            return Answers((engine.embed([PROMPT]),), ())
        prompts: list[list[Any]] = [list(PROMPT)]
        if name in SIGHTS:
            prompts.append([engine.prepare_image(picture(100, 150)), *PROMPT])
        said = [
            engine.generate(prompt, temperature=0.0, max_tokens=COUNT, ignore_eos=True).tokens
            for prompt in prompts
        ]
        return Answers(tuple(map(engine.logits, prompts)), tuple(said))


def test_all_architectures_are_compared() -> None:
    compared = [*NAMES, *checkpoints.FAMILIES, *checkpoints.ENCODERS]
    here = {FAMILIES[RECIPES[name].checkpoint].architecture for name in compared}
    assert here | OF_VARIANTS == architectures().keys() - OTHER_NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_converted_stored_and_quantized_checkpoint_gives_the_same_answers(
    laboratory: Laboratory, registry: DockerRegistry, own_folder: Path, name: str
) -> None:
    model = f"{registry.host}/whole/{name.replace('_', '-')}:{TYPE.lower()}"
    (own_folder / "Modelfile").write_text("FROM small.gguf\nPARAMETER temperature 0\nSYSTEM Short.")

    tampu("convert", laboratory.checkpoint(name), "-o", "full.gguf", "--type", "F16")
    tampu("quantize", "full.gguf", "small.gguf", TYPE, "--threads", 1)
    before = answers("small.gguf", name)
    tampu("create", model)
    tampu("push", "--insecure", model)
    tampu("rm", model)
    (own_folder / "small.gguf").unlink()
    assert not list((own_folder / "models" / "blobs").iterdir())
    with pytest.raises(ModelNotFoundError):
        Engine.load(model)
    tampu("pull", "--insecure", model)
    after = answers(model, name)

    for ours, theirs in zip(after.logits, before.logits, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert after.tokens == before.tokens
    assert all(len(each) == COUNT for each in after.tokens)
    if name != "bert":  # and the file is the checkpoint's, but for the rounding of the weights
        expected = answer(laboratory.reference(name), PROMPT)
        assert relative_error(after.logits[0][:, : expected.shape[1]], expected) < ROUNDING
