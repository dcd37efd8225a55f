"""The code blocks of README and docs run and print what they say; every page can be reached."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.hidden import HIDDEN
from support.serving import Server, start_server
from support.tiny_adapter import write_tiny_adapter

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
AUDIO = ROOT / "docs" / "audio.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
WHOLE = [README, ROOT / "docs" / "research.md"]  # whose Python blocks are whole programs
URL = "http://127.0.0.1:11434"
DEMO = ROOT / "tampu" / "data" / "demo.gguf"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
# Commands of README that no test runs from there, and where they are tested.
ELSEWHERE = {
    "git clone": "set-up: a fresh clone is what a test run begins with",
    "make run": "set-up: `.ci/run` does it",
    "export PATH": "set-up",
    "pip install openai ollama": "set-up: both are in the tests' environment",
    "tampu serve": "tests/support/serving.py starts it for the blocks below",
    "tampu run qwen3:4b": "needs a registry; tests/registry",
}


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for given, text in found if given == language]


def commands(page: Path) -> list[tuple[str, str]]:
    """Return what is behind each `$ `, without comments, and what the page says that it prints."""
    found: list[tuple[str, str]] = []
    for line in "".join(blocks(page, "console")).splitlines():
        if line.startswith("$ "):
            found.append((re.sub(r"\s+# .*", "", line[2:]), ""))
        else:
            found[-1] = (found[-1][0], found[-1][1] + line + "\n")
    return found


def said_to_print(program: str) -> list[str]:
    """Return the comments behind calls of `print`."""
    return re.findall(r"print\(.*\)  # (.*)$", program, re.M)


PYTHON = [(page, text) for page in PAGES for text in blocks(page, "python")]


@pytest.mark.parametrize(("page", "text"), PYTHON, ids=lambda value: getattr(value, "name", ""))
def test_python_blocks_are_python_and_import_what_exists(page: Path, text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tampu"):
            there = names_in(node.module or "")
            for name in node.names:
                assert name.name in there, f"{page.name}: {node.module}.{name.name}"


def names_in(module: str) -> set[str]:
    """Return the names in a module; of one that imports Ray, by its source.

    The tests' set-up has no Ray: tests/cluster/datasets.py runs these blocks.
    """
    try:
        return set(dir(importlib.import_module(module)))
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
    source = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    defined = ast.FunctionDef | ast.ClassDef
    return {each.name for each in ast.parse(source).body if isinstance(each, defined)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what the examples name: the clone's docs, an adapter."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    write_tiny_adapter(tmp_path / "adapter.gguf", DEMO)
    return tmp_path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    server = start_server(home / "models", home, TAMPU_MAX_CAPTURE_SIZE="16MB")
    yield server
    server.end()


PROGRAMS = [
    pytest.param(page.name, text, marks=() if page == README else pytest.mark.slow)
    for page in WHOLE
    for text in blocks(page, "python")
]


@pytest.mark.server
@pytest.mark.parametrize(("page", "text"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_runs_alone_and_prints_what_it_says(
    page: str, text: str, server: Server, folder: Path
) -> None:
    environment = {"HOME": str(folder), "OLLAMA_HOST": server.url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", text.replace(URL, server.url)],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{page}: {done.stderr}"
    printed = done.stdout.splitlines()
    assert printed
    lines = iter(printed)
    missing = [said for said in said_to_print(text) if said not in lines]  # `in` keeps the order
    assert missing == [], printed


@pytest.mark.server
def test_the_requests_of_readme_are_answered(server: Server) -> None:
    lines = [line for line, _ in commands(README) if line.startswith("curl ")]
    assert lines
    for line in lines:
        _, url, option, body = shlex.split(line)
        assert option == "-d"
        answer = httpx.post(url.replace(URL, server.url), content=body, timeout=60)
        assert answer.status_code == 200, answer.text


COMMANDS = [
    (line, prints)
    for line, prints in commands(README)
    if not line.startswith(("curl ", *ELSEWHERE))
]


def printed_by(line: str, folder: Path, typed: str | None = None) -> str:
    """Return what a command prints in a folder, on a machine without a server."""
    python = shlex.quote(sys.executable)
    line = re.sub("^tampu ", f"{python} -m tampu.cli.entry ", line)
    line = re.sub(r"^\.venv/bin/python ", f"{python} ", line)
    environment = {
        "HOME": str(folder),
        "PATH": os.defpath,
        "TAMPU_MODELS": str(folder / "models"),
        "TAMPU_HOST": "127.0.0.1:1",  # where no server listens
        "PYTHONPATH": str(ROOT),
        **HIDDEN,
    }
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        env=environment, cwd=folder, capture_output=True, text=True, check=False, input=typed,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("line", "prints"), COMMANDS)
def test_commands_of_readme_run(line: str, prints: str, folder: Path) -> None:
    assert line.startswith("tampu "), f"not a command that this test knows: {line}"
    printed = printed_by(line, folder, "What is 27 + 58?" if line == "tampu run demo" else None)
    assert printed.strip()
    assert not prints or printed == prints


@pytest.mark.server
def test_a_sound_is_made_and_heard_as_the_page_of_audio_says(server: Server, folder: Path) -> None:
    install, speak, run, serve, curl = commands(AUDIO)[:5]
    assert install == (".venv/bin/pip install espeakng-loader", "")
    assert serve == ("tampu serve", "")
    for line, prints in (speak, run):
        assert printed_by(line, folder) == prints
    _, url, *options = shlex.split(curl[0])
    assert options[::2] == ["-F"] * 3
    fields = dict(option.split("=", 1) for option in options[1::2])
    file = (folder / fields.pop("file").removeprefix("@")).read_bytes()
    answer = httpx.post(url.replace(URL, server.url), data=fields, files={"file": file}, timeout=60)
    assert answer.text + "\n" == curl[1]


def links(page: Path) -> set[Path]:
    """Return the pages of the documentation that a page links to."""
    found = re.findall(r"\]\(([^)#\s:]+\.md)", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in found} & set(PAGES)


def test_every_page_is_linked_from_readme_or_a_page_that_readme_links() -> None:
    near = links(README)
    assert near.union(*map(links, near)) >= set(PAGES) - {README}


def test_the_site_lists_every_page() -> None:
    listed = re.findall(r"- (?:[\w ]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert {page.name for page in PAGES} - {README.name} <= set(listed)
