"""`tampu create`, and `show` and `run` with its models, end to end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.piped import piped
from support.tiny_model import Tiny, write_tiny

from tampu.engine.engine import Engine
from tampu.engine.load_options import LoadOptions
from tampu.store import ModelName, Store
from tampu.store.create import CreateSpec, Progress, create
from tampu.store.library import Library
from tampu.store.modelfile import parse_modelfile
from tests.cli.conftest import Run

MODELFILE = '''\
FROM ./m.gguf
TEMPLATE """{{ if .System }}al{{ .System }}ou{{ end }}[{{ .Prompt }}]{{ .Response }}"""
SYSTEM the it
PARAMETER temperature 0
PARAMETER num_predict 5
PARAMETER num_ctx 48
PARAMETER stop "<x>"
LICENSE MIT
MESSAGE user he
MESSAGE assistant in
'''


@pytest.fixture(autouse=True)
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands run in a folder with a model and a Modelfile."""
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("TAMPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TAMPU_THREADS", "1")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    work = tmp_path / "work"
    work.mkdir()
    write_tiny(work / "m.gguf", Tiny(embedding=256, feed_forward=256, context=64))
    (work / "Modelfile").write_text(MODELFILE)
    monkeypatch.chdir(work)


def test_model_is_created_and_shown(run: Run) -> None:
    code, out, err = run("create", "mine")
    assert (code, out) == (0, "created 'mine:latest'\n"), err
    assert "writing manifest\nsuccess" in err
    code, out, _ = run("show", "mine")
    assert code == 0
    assert 'stop                           "<x>"' in out
    assert "the it" in out
    assert run("show", "mine", "--system")[1] == "the it\n"
    assert run("show", "mine", "--license")[1] == "MIT\n"
    assert run("show", "mine", "--template")[1].startswith("{{ if .System }}al")
    assert run("show", "mine", "--parameters")[1].split()[:2] == ["temperature", "0"]
    assert run("show", "mine", "--system", "--license")[0] == 2


def test_shown_modelfile_creates_the_same_model(run: Run) -> None:
    run("create", "mine")
    text = run("show", "mine", "--modelfile")[1]
    assert "# FROM mine:latest" in text
    shown = parse_modelfile(text)
    assert shown.messages == parse_modelfile(MODELFILE).messages
    Path("Again").write_text(text)
    assert run("create", "again", "-f", "Again")[0] == 0
    again = parse_modelfile(run("show", "again", "--modelfile")[1])
    assert again == shown


def test_quantize_with_modelfile_from_standard_input(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", piped("FROM m.gguf"))
    assert run("create", "small", "-f", "-", "-q", "q8_0")[0] == 0
    assert "Q8_0" in run("show", "small")[1]


def test_missing_base_model_is_pulled_first(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def pulling(store: Store, name: ModelName, _: object) -> Iterator[Progress]:
        asked.append(name.short)
        spec = CreateSpec(modelfile=parse_modelfile("FROM m.gguf"), folder=tmp_path / "work")
        create(Library(store.root), name, spec)
        yield Progress("pulling manifest")
        yield Progress("success")

    monkeypatch.setattr("tampu.store.registry.pull.pull", pulling)
    Path("Modelfile").write_text("FROM far:1b\nSYSTEM x")
    code, _, err = run("create", "mine")
    assert code == 0, err
    assert asked == ["far:1b"]
    assert err.count("success") == 1
    assert run("show", "mine", "--system")[1] == "x\n"


def test_invalid_modelfile_prints_one_line(run: Run) -> None:
    Path("Bad").write_text("FROM m.gguf\nPARAMETER heat 1")
    code, _, err = run("create", "bad", "-f", "Bad")
    assert code == 2
    assert err.startswith("Error: Modelfile line 2: PARAMETER: unknown parameter 'heat'")
    assert run("create", "bad", "-f", "nothing")[2].startswith("Error: nothing: cannot be read")
    assert run("create", "../bad")[0] == 2


def test_engine_applies_the_modelfile(run: Run) -> None:
    run("create", "mine")
    with Engine.load("mine") as engine:
        assert engine.context == 48
        said = [{"role": "user", "content": "th"}]
        prompt = engine.detokenize(
            [token for token in engine.chat_prompt(said) if isinstance(token, int)]
        )
        assert prompt.strip() == "althe itou[he]in[th]"
        answer = engine.chat(said)
        assert answer.usage.generated_tokens <= 5
        assert answer.text == engine.chat(said).text  # temperature 0
        own = [{"role": "system", "content": "or"}, *said]
        prompt = engine.detokenize(
            [token for token in engine.chat_prompt(own) if isinstance(token, int)]
        )
        assert "the it" not in prompt


def test_run_applies_the_modelfile(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("create", "mine")
    seen: list[LoadOptions] = []
    load = Engine.load

    def spying(path: Any, options: LoadOptions, **more: Any) -> Engine:
        seen.append(options)
        return load(path, options, **more)

    monkeypatch.setattr(Engine, "load", spying)
    code, out, err = run("run", "mine", "th")
    assert code == 0, err
    assert seen[0].context == 48
    with load("mine", context=48) as engine:
        expected = engine.chat([{"role": "user", "content": "th"}]).text
    assert out.rstrip("\n") == expected.rstrip("\n")


def test_what_a_later_line_replaces_is_printed(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "work" / "Modelfile").open("a") as file:
        file.write("SYSTEM in the\nPARAMETER temperature 1\n")
    code, _, err = run("create", "mine")
    assert code == 0
    assert "warning: SYSTEM of line 3 has no effect, that of line 11 counts\n" in err
    assert "warning: PARAMETER temperature of line 4 has no effect, that of line 12 counts\n" in err
    _, out, _ = run("show", "mine", "--system")
    assert out == "in the\n"


def test_without_a_modelfile_the_option_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "work" / "Modelfile").unlink()
    code, _, err = run("create", "mine")
    assert (code, err) == (
        2,
        "Error: there is no Modelfile in this folder: name one with -f FILE\n",
    )
