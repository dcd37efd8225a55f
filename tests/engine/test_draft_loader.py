"""A model and its draft model: which ones fit, and that the model runs without those that don't."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.drafting import Cheap, Free
from support.engines import GREEDY, PROMPT, SMALL
from support.tiny_model import Tiny, write_tiny

from tampu.engine import draft_loader, model_loader
from tampu.engine.engine import Engine
from tampu.errors import LoadCancelledError, ModelNotFoundError, OutOfMemoryError
from tampu.runner.speculation import Speculation

OPTIONS: dict[str, Any] = {**SMALL, "spec_type": "auto", "slots": 2}
TARGET = Tiny(layers=3)
_PARTS = ("q", "k", "v", "output", "gate", "up", "down", "embd")
TEMPLATE = "<s>{{ messages[0]['content'] }}"
QUANTIZED = {f"{end}.weight": "Q8_0" for end in _PARTS}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "target.gguf", TARGET, template=TEMPLATE)


@pytest.fixture
def answer(target: Path) -> list[int]:
    """The model's answer without a draft model."""
    with Engine.load(target, **OPTIONS) as engine:
        return list(engine.generate(PROMPT, max_tokens=30, **GREEDY).tokens)


@pytest.mark.parametrize("spec_type", ["auto", "draft-simple"])
def test_its_guesses_make_the_same_answer_in_fewer_steps(
    tmp_path: Path, target: Path, answer: list[int], spec_type: str
) -> None:
    draft = write_tiny(tmp_path / "draft.gguf", TARGET, types=QUANTIZED)
    with Engine.load(target, draft=draft, **OPTIONS | {"spec_type": spec_type}) as engine:
        source = engine.model.scheduler.drafts.source
        assert isinstance(source, Speculation)
        assert source.model is not None
        source.times, source.model.times = Cheap(), Free()
        found = engine.generate(PROMPT, max_tokens=30, **GREEDY)
    assert list(found.tokens) == answer
    assert found.usage.accepted_tokens > 10
    assert found.usage.drafts < 20


def test_with_the_type_none_it_is_not_loaded(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = write_tiny(tmp_path / "draft.gguf")
    monkeypatch.setattr(draft_loader, "check_draft", lambda *_: pytest.fail("it was opened"))
    with Engine.load(target, draft=draft, **OPTIONS | {"spec_type": "none"}) as engine:
        assert engine.model.scheduler.drafts.source is None


def other_words(path: Path) -> Path:
    return write_tiny(path, Tiny(layers=1), pieces=("another",))


def other_size(path: Path) -> Path:
    return write_tiny(path, Tiny(layers=1, vocabulary=600))


def other_tokenizer(path: Path) -> Path:
    content = write_tiny(path, Tiny(layers=1)).read_bytes()
    key, name = b"tokenizer.ggml.model", (5).to_bytes(8, "little") + b"llama"
    place = content.index(name, content.index(key))
    path.write_bytes(content[:place] + name.replace(b"llama", b"plamo") + content[place + 13 :])
    return path


def other_template(path: Path) -> Path:
    return write_tiny(path, Tiny(layers=1), template="</s>{{ messages[0]['content'] }}")


def larger(path: Path) -> Path:
    return write_tiny(path, Tiny(layers=4))


def unknown(path: Path) -> Path:
    return write_tiny(path, Tiny(architecture="unheard-of", layers=1))


def damaged(path: Path) -> Path:
    path.write_bytes(write_tiny(path, Tiny(layers=1)).read_bytes()[:-1000])
    return path


def no_model(path: Path) -> Path:
    path.write_text("hello")
    return path


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (other_words, "it has another vocabulary than the model: token "),
        (other_size, "it has another vocabulary than the model: 600 tokens, not "),
        (other_tokenizer, "it has another tokenizer than the model: plamo, not llama"),
        (other_template, "it has another chat template than the model: with </s>, not <s>"),
        (larger, "it is not smaller than the model: "),
        (unknown, "unheard-of"),
        (damaged, "blk."),
        (no_model, "not a GGUF file"),
    ],
)
def test_one_that_does_not_fit_is_named_and_the_model_runs_without(
    tmp_path: Path,
    target: Path,
    answer: list[int],
    make: Callable[[Path], Path],
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    draft = make(tmp_path / "draft.gguf")
    with Engine.load(target, draft=draft, **OPTIONS) as engine:
        found = engine.generate(PROMPT, max_tokens=30, **GREEDY)
    assert list(found.tokens) == answer
    [warning] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert warning.getMessage().startswith(f"the draft model {draft} is not used: ")
    assert told in warning.getMessage()


def test_one_that_does_not_exist_is_an_error(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nothing\.gguf: no such file"):
        Engine.load(target, draft=tmp_path / "nothing.gguf", **OPTIONS)


def test_a_model_that_does_not_fit_beside_it_is_loaded_alone(
    tmp_path: Path,
    target: Path,
    answer: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    draft, load, tried = write_tiny(tmp_path / "draft.gguf"), model_loader.load_model, []

    def loaded(path: Path, *given: Any, **options: Any) -> Any:
        tried.append(path)
        if tried == [draft, target]:
            raise OutOfMemoryError("there is too little")
        return load(path, *given, **options)

    monkeypatch.setattr(draft_loader, "load_model", loaded)
    with Engine.load(target, draft=draft, **OPTIONS) as engine:
        found = engine.generate(PROMPT, max_tokens=30, **GREEDY)
    assert list(found.tokens) == answer
    assert tried == [draft, target, target]
    assert f"the draft model {draft} is not used: with it there is too little" in caplog.text


def test_loading_can_be_cancelled(tmp_path: Path, target: Path) -> None:
    draft = write_tiny(tmp_path / "draft.gguf")
    with pytest.raises(LoadCancelledError):
        Engine.load(target, draft=draft, cancelled=lambda: True, **OPTIONS)
