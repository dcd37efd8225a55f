"""A Modelfile's PARSER decides how answers are read, and RENDERER whose template makes prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fork_server import FORK_SERVER
from support.tiny_model import Tiny, write_tiny

from tampu import Engine
from tampu.cli.show import show_command
from tampu.engine.load_options import LoadOptions
from tampu.server.serving.model_defaults import with_model_files
from tampu.store import ModelName
from tampu.store.catalog import Catalog, prepare
from tampu.store.create import CreateSpec, create
from tampu.store.library import Library
from tampu.store.modelfile import parse_modelfile
from tampu.worker.main import load_model
from tampu.worker.protocol import Load


@pytest.mark.parametrize("is_whole", [False, True])
def test_the_parser_reaches_the_worker(tmp_path: Path, *, is_whole: bool) -> None:
    model = write_tiny(tmp_path / "m.gguf", Tiny(context=64), template="{{ messages }}")
    options = LoadOptions(parser="harmony", context=32, threads=1, vocabulary_only=not is_whole)
    load = Load(str(model), options)
    with load_model(load, lambda _: None, lambda: False, FORK_SERVER) as loaded:
        prompts = loaded.requests.prompts
    assert prompts is not None
    assert prompts.style.name == "harmony"


def test_the_parser_comes_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "models"))
    write_tiny(tmp_path / "m.gguf", Tiny(context=64), template="{{ messages }}")
    library = Library(tmp_path / "models")
    spec = CreateSpec(modelfile=parse_modelfile("FROM m.gguf\nPARSER qwen3-coder"), folder=tmp_path)
    create(library, ModelName.parse("mine"), spec)
    assert prepare("mine").parser == "qwen3-coder"
    entry = Catalog(library=library).describe("mine")
    assert with_model_files(LoadOptions(), entry).parser == "qwen3-coder"


JINJA = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RENDERER qwen3-coder\nTEMPLATE {{ .Prompt }}", JINJA),
        ("RENDERER of-tomorrow\nTEMPLATE {{ .Prompt }}", JINJA),
        ("RENDERER qwen3-coder", JINJA),
        ("RENDERER qwen3-coder\nTEMPLATE <u>{{ .Prompt }}</u>", "<u>{{ .Prompt }}</u>"),
        ("TEMPLATE {{ .Prompt }}", "{{ .Prompt }}"),
    ],
)
def test_a_renderer_selects_the_template_of_the_weights(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    text: str,
    expected: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "models"))
    write_tiny(tmp_path / "m.gguf", Tiny(context=64), template=JINJA)
    library = Library(tmp_path / "models")
    spec = CreateSpec(modelfile=parse_modelfile(f"FROM m.gguf\n{text}"), folder=tmp_path)
    create(library, ModelName.parse("mine"), spec)
    entry = Catalog(library=library).describe("mine")
    assert entry.info.template == expected
    given = with_model_files(LoadOptions(), entry).template
    assert (given or JINJA) == expected
    with Engine.load("mine", context=32, threads=1) as engine:
        assert engine.template is not None
        assert engine.template.source == expected
    caplog.clear()
    show_command("mine")
    assert ("RENDERER" in caplog.text) == ("of-tomorrow" in text or "<u>" in text)
