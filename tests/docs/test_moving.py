"""What docs/moving.md says of other servers: its examples, routes, commands and settings."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.serving import Server, start_server

from tampu.cli.app import run
from tampu.settings.settings import Settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "moving.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
ROUTES = sorted({*re.findall(r"(no )?`(GET|POST) (/\S+)`", PAGE)})
COMMANDS = sorted({*re.findall(r"`tampu ([a-z-]+)", PAGE)})
OPTIONS = sorted({*re.findall(r"`tampu serve (--\w+)", PAGE)})
VARIABLES = sorted({*re.findall(r"`((?:TAMPU|OLLAMA)_[A-Z_]+)`", PAGE)})
NUMBERS = {"MAX_QUEUE": "5", "MAX_LOADED_MODELS": "2", "NUM_PARALLEL": "2"}
VALUES = {
    **NUMBERS, "HOST": "127.0.0.1:5", "CONTEXT_LENGTH": "512", "FLASH_ATTENTION": "1",
    "KV_CACHE_TYPE": "q8_0", "KEEP_ALIVE": "1m", "LOAD_TIMEOUT": "1m", "ORIGINS": "http://a.example",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("home")
    server = start_server(folder / "models", folder, TAMPU_REGISTRY="127.0.0.1:1")
    yield server
    server.end()


@pytest.mark.server
@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_runs(server: Server, block: str, tmp_path: Path) -> None:
    text = block.replace("http://127.0.0.1:11434", server.url)
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.server
@pytest.mark.parametrize(("no", "method", "path"), ROUTES)
def test_a_route_is_there_unless_the_page_denies_it(
    server: Server, no: str, method: str, path: str
) -> None:
    params = {"model": "demo"} if path in ("/props", "/slots") else None
    response = httpx.request(method, server.url + path, params=params, timeout=60)
    if no:
        assert response.status_code == 404
    else:
        assert response.status_code == (200 if method == "GET" else 400), response.text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"tampu {command}" in shown
    if command == "serve":
        assert OPTIONS
        assert all(option in shown for option in OPTIONS)


@pytest.fixture(scope="module")
def known() -> set[str]:
    """The names that `tampu config` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tampu.cli.entry", "config"],
        env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line.split()[0] for line in done.stdout.splitlines() if line}


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_is_read(known: set[str], name: str) -> None:
    prefix, _, own = name.partition("_")
    assert own.lower() in known
    if prefix == "OLLAMA":
        changed = Settings.from_environment({name: VALUES[own]})
        assert changed != Settings.from_environment({})
