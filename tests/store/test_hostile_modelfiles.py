"""Modelfiles that nobody should write; models that are made at once, given up, of each other."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.cost import cost, yardstick
from support.stores import files as files_of
from support.tiny_model import Tiny, write_tiny

from tampu.cli import app
from tampu.errors import TampuError
from tampu.store import ModelName
from tampu.store.create import CreateSpec, create, creating
from tampu.store.library import Library
from tampu.store.model import StoredModel
from tampu.store.modelfile import parse_modelfile
from tampu.store.verify import verify_store

pytestmark = pytest.mark.slow

NAME = ModelName.parse("mine")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    write_tiny(folder / "m.gguf", Tiny(embedding=32, layers=1))
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "leads-out").symlink_to("/etc/passwd")
    (folder / "text.gguf").write_text("Once upon a time")
    return folder


def made(
    library: Library, text: str, folder: Path, name: ModelName = NAME, **more: Any
) -> StoredModel:
    return create(library, name, CreateSpec(modelfile=parse_modelfile(text), folder=folder, **more))


REFUSED = {
    "nothing": "",
    "only remarks": "# a\n# b\n",
    "no FROM": "SYSTEM a",
    "a NUL": "FROM m.gguf\nSYSTEM a\0b",
    "an open quote": 'FROM m.gguf\nSYSTEM """a',
    "an instruction that is not known": "FROM m.gguf\nRUN rm -rf /",
    "a line of 17 MB": "FROM m.gguf\nSYSTEM " + "a" * (17 << 20),
    "a license of 100 MB": "FROM m.gguf\nLICENSE " + "a" * (100 << 20),
    "a parameter that is not known": "FROM m.gguf\nPARAMETER heat 1",
    "num_ctx -1": "FROM m.gguf\nPARAMETER num_ctx -1",
    "num_ctx 0": "FROM m.gguf\nPARAMETER num_ctx 0",
    "num_ctx 10^12": "FROM m.gguf\nPARAMETER num_ctx 1000000000000",
    "num_ctx 1e12": "FROM m.gguf\nPARAMETER num_ctx 1e12",
    "num_ctx abc": "FROM m.gguf\nPARAMETER num_ctx abc",
    "num_ctx NaN": "FROM m.gguf\nPARAMETER num_ctx NaN",
    "temperature -1": "FROM m.gguf\nPARAMETER temperature -1",
    "temperature inf": "FROM m.gguf\nPARAMETER temperature inf",
    "a role that is none": "FROM m.gguf\nMESSAGE tool x",
    "a template of Go's that cannot be read": "FROM m.gguf\nTEMPLATE {{ if }}",
    "a template of Jinja's that cannot be read": "FROM m.gguf\nTEMPLATE {% if %}",
    "an adapter that is not there": "FROM m.gguf\nADAPTER nothing",
    "an adapter that is a pipe": "FROM m.gguf\nADAPTER pipe",
    "an adapter that is a device": "FROM m.gguf\nADAPTER /dev/zero",
    "an adapter that is a model": "FROM m.gguf\nADAPTER m.gguf",
    "two models": "FROM m.gguf\nFROM m.gguf",
    "itself before it is there": "FROM mine",
    "a secret": "FROM /etc/passwd",
    "a link to a secret": "FROM leads-out",
    "a device without end": "FROM /dev/zero",
    "what is typed": "FROM /dev/stdin",
    "a pipe": "FROM pipe",
    "a link to itself": "FROM ./loop",
    "a socket": "FROM socket",
    "a folder that is no checkpoint": "FROM .",
    "the root": "FROM /",
    "a text": "FROM text.gguf",
    "an address": "FROM https://example.com/m.gguf",
    "a path of 5,000 letters": "FROM " + "a" * 5000,
    "a path of 5,000 folders": "FROM " + "/a" * 5000,
    "the home of nobody": "FROM ~nobody-here/m.gguf",
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_modelfile_is_refused_and_the_store_unchanged(
    library: Library, folder: Path, case: str
) -> None:
    made(library, "FROM m.gguf", folder, ModelName.parse("other"))
    before = files_of(library.store)
    caught: list[str] = []

    def refuse() -> None:
        with pytest.raises(TampuError) as refused:
            made(library, REFUSED[case], folder)
        caught.append(str(refused.value))

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket"))
        assert cost(refuse, times=1) < 30 * yardstick()
    assert "\n" not in caught[0]
    assert len(caught[0]) < 1000
    library.store.collect_garbage(0)
    assert files_of(library.store) == before


@pytest.mark.parametrize(
    "text",
    ["\ufeffFROM m.gguf", "FROM m.gguf\r\nSYSTEM a\r\n", "from m.gguf", '  FROM "m.gguf"  ',
     "FROM m.gguf\nREQUIRES 99.0.0", "FROM m.gguf\nSYSTEM " + "a" * (10 << 20)],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_an_unusual_modelfile_is_accepted(library: Library, folder: Path, text: str) -> None:
    assert made(library, text, folder).model_path.is_file()


@pytest.mark.parametrize("instruction", ["PARSER"])
def test_control_characters_in_a_name_are_not_printed(
    library: Library, folder: Path, instruction: str
) -> None:
    spec = CreateSpec(
        modelfile=parse_modelfile(f"FROM m.gguf\n{instruction} \x1b[31m{'x' * 5000}"),
        folder=folder,
    )
    told = [step.status for step in creating(library, NAME, spec)]
    assert all(status.isprintable() and len(status) < 500 for status in told)


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-here/m", "a\0b", "/a" * 5000])
@pytest.mark.parametrize("command", ["run", "show", "bench"])
def test_an_impossible_path_is_a_one_line_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert app.run([command, name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: ")


# -- models of models ------------------------------------------------------------------------------


def test_a_chain_of_derived_models_has_no_depth(library: Library, folder: Path) -> None:
    made(library, "FROM m.gguf\nSYSTEM 0", folder, ModelName.parse("m0"))
    for depth in range(1, 60):
        text = f"FROM m{depth - 1}\nPARAMETER seed {depth}\nLICENSE {depth % 3}"
        made(library, text, folder, ModelName.parse(f"m{depth}"))
    last = library.store.model(ModelName.parse("m59"))
    assert (last.system, last.parameters, len(last.licenses)) == ("0", {"seed": 59}, 3)
    for depth in range(59):
        library.store.delete(ModelName.parse(f"m{depth}"))
    assert last.model_path.is_file()
    assert verify_store(library.store).problems == ()


def test_concurrent_creations_of_one_name_leave_a_complete_model(
    library: Library, folder: Path
) -> None:
    def work(number: int) -> None:
        for turn in range(4):
            text = f"FROM m.gguf\nSYSTEM {number}\nPARAMETER seed {number}\nLICENSE no. {turn}"
            made(Library(library.store.root), text, folder, quantize="Q8_0")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    model = library.store.model(NAME)
    assert model.system == str(model.parameters["seed"])
    assert verify_store(library.store).problems == ()
    library.store.collect_garbage(0)
    assert len(list(library.store.layout.blobs.iterdir())) == 5


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_cancelling_leaves_the_old_model(library: Library, folder: Path, share: float) -> None:
    write_tiny(folder / "m.gguf", Tiny(embedding=256, feed_forward=2048, layers=4))
    made(library, "FROM m.gguf\nSYSTEM old", folder)
    before = files_of(library.store)
    spec = CreateSpec(
        modelfile=parse_modelfile("FROM m.gguf\nSYSTEM new"), folder=folder, quantize="Q8_0"
    )
    steps = creating(library, NAME, spec)
    for step in steps:
        if step.total and step.completed >= share * step.total:
            break
    steps.close()
    assert library.store.model(NAME).system in ("old", "new")
    if library.store.model(NAME).system == "old":
        library.store.collect_garbage(0)
        assert files_of(library.store) == before
    assert list(library.store.layout.incoming.iterdir()) == []
