"""`tampu launch`: what it writes for each agent, that it asks first, and that it is undone."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tampu.cli import app
from tampu.cli.agents.agents import AGENTS

URL = "http://127.0.0.1:4321"
SETTINGS = {
    "claude": [".claude/settings.json"],
    "cline": [".cline/data/globalState.json"],
    "codex": [".codex/config.toml"],
    "droid": [".factory/settings.json"],
    "opencode": [".config/opencode/opencode.json"],
    "pi": [".pi/agent/models.json", ".pi/agent/settings.json"],
    "qwen": [".qwen/settings.json"],
}
TOML = '# mine\nmodel = "other"\n\n[tools]\nweb_search = false\n'
JSON = '{"theme":   "dark", "env": {"EDITOR": "vi"}}'

Run = Callable[..., tuple[int, Any, Any]]


class Typed(io.StringIO):
    """What is typed in a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TAMPU_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("TAMPU_HOST", "127.0.0.1:4321")
    return home


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path) -> Run:
    """Run the command with something typed, or without a terminal; return code and outputs."""
    assert home.exists()

    def run(*arguments: str, typed: str | None = None) -> tuple[int, Any, Any]:
        stdin = io.StringIO("") if typed is None else Typed(typed)
        monkeypatch.setattr("sys.stdin", stdin)
        code = app.run(["launch", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def files(home: Path) -> dict[str, bytes]:
    """Return the content of all files."""
    found = (path for path in home.rglob("*") if path.is_file())
    return {str(path.relative_to(home)): path.read_bytes() for path in found}


def fill(home: Path, name: str) -> None:
    """Write the settings of an agent as its user has them."""
    for place in SETTINGS[name]:
        path = home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TOML if path.suffix == ".toml" else JSON)


def test_agents_are_listed_with_those_that_are_set(run: Run) -> None:
    assert run("codex", "--model", "demo", "--yes")[0] == 0
    code, out, _ = run()
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines] == list(AGENTS) == list(SETTINGS)
    assert [line[0] for line in lines if line[-1] == "set"] == ["codex"]


@pytest.mark.parametrize("name", AGENTS)
def test_settings_name_the_server_and_the_model_and_are_for_their_owner(
    run: Run, home: Path, name: str
) -> None:
    code, out, _ = run(name, "--model", "demo", "--yes")
    assert code == 0
    assert out.splitlines()[-1].endswith(f"start it with: {AGENTS[name].command}")
    written = files(home)
    assert sorted(written) == sorted(SETTINGS[name])
    together = b"".join(written.values()).decode()
    assert URL in together
    assert "demo" in together
    assert all((home / place).stat().st_mode & 0o777 == 0o600 for place in written)
    assert run(name, "--model", "demo", "--yes")[1].endswith("nothing to change\n")


@pytest.mark.parametrize("is_filled", [False, True])
@pytest.mark.parametrize("name", AGENTS)
def test_what_was_written_is_undone_to_the_byte(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_filled: bool
) -> None:
    if is_filled:
        fill(home, name)
    before = files(home)
    assert run(name, "--model", "demo", "--yes")[0] == 0
    monkeypatch.setenv("TAMPU_HOST", "models.example:4321")  # it may have other models
    assert run(name, "--model", "another", "--yes")[0] == 0
    assert files(home) != before
    assert run(name, "--restore", "--yes")[0] == 0
    assert files(home) == before
    assert is_filled or not any((home / place).parent.exists() for place in SETTINGS[name])
    code, _, err = run(name, "--restore", "--yes")
    assert (code, err) == (2, f"Error: nothing was written for {AGENTS[name].title}\n")


def test_what_was_changed_since_stays(run: Run, home: Path) -> None:
    fill(home, "claude")
    path = home / SETTINGS["claude"][0]
    assert run("claude", "--model", "demo", "--yes")[0] == 0
    now = json.loads(path.read_text())
    now["env"]["ANTHROPIC_MODEL"] = "mine"
    now["theme"] = "light"
    path.write_text(json.dumps(now))
    code, _, err = run("claude", "--restore", "--yes")
    assert (code, "env.ANTHROPIC_MODEL was changed since, and stays" in err) == (0, True)
    assert json.loads(path.read_text()) == {
        "theme": "light", "env": {"EDITOR": "vi", "ANTHROPIC_MODEL": "mine"},
    }  # fmt: skip


def test_it_asks_before_it_writes(run: Run, home: Path) -> None:
    fill(home, "codex")
    before = files(home)
    code, out, err = run("codex", "--model", "demo")
    assert (code, "--yes" in err) == (2, True)
    assert f'+base_url = "{URL}/v1"' in out
    for typed in ("n\n", "\n"):
        code, out, _ = run("codex", "--model", "demo", typed=typed)
        assert (code, out.endswith("nothing is written\n")) == (0, True)
    assert files(home) == before
    assert run("codex", "--restore", "--yes")[0] == 2
    assert run("codex", "--model", "demo", typed="y\n")[0] == 0
    written = files(home)
    assert written != before
    assert run("codex", "--restore", typed="n\n")[0] == 0
    assert files(home) == written


def test_settings_in_another_folder_are_undone_there(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(home / "first"))
    assert run("codex", "--model", "demo", "--yes")[0] == 0
    monkeypatch.setenv("CODEX_HOME", str(home / "second"))
    assert run("codex", "--model", "demo", "--yes")[0] == 0
    assert sorted(files(home)) == ["first/config.toml", "second/config.toml"]
    assert run("codex", "--restore", "--yes")[0] == 0
    assert files(home) == {}


def test_a_link_is_followed_and_the_mode_stays(run: Run, home: Path) -> None:
    real = home / "dotfiles.json"
    real.write_text(JSON)
    real.chmod(0o640)
    (home / ".qwen").mkdir()
    (home / ".qwen" / "settings.json").symlink_to(real)
    assert run("qwen", "--model", "demo", "--yes")[0] == 0
    assert (home / ".qwen" / "settings.json").is_symlink()
    assert json.loads(real.read_text())["model"] == {"name": "demo"}
    assert real.stat().st_mode & 0o777 == 0o640
    assert run("qwen", "--restore", "--yes")[0] == 0
    assert real.read_text() == JSON


def test_a_file_with_comments_is_refused_and_left_alone(run: Run, home: Path) -> None:
    path = home / ".config" / "opencode" / "opencode.json"
    path.parent.mkdir(parents=True)
    path.write_text("{} // mine")
    code, _, err = run("opencode", "--model", "demo", "--yes")
    assert (code, f"{path}: not JSON without comments" in err) == (2, True)
    assert path.read_text() == "{} // mine"
    assert run("opencode", "--restore", "--yes")[0] == 2


@pytest.mark.parametrize("name", AGENTS)
def test_a_key_for_using_models_is_written_and_one_for_all_is_not(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TAMPU_API_KEY", "sk-all")
    code, _, err = run(name, "--model", "demo", "--yes")
    assert (code, "TAMPU_USE_API_KEY" in err, files(home)) == (2, True, {})
    monkeypatch.setenv("TAMPU_USE_API_KEY", "sk-use")
    assert run(name, "--model", "demo", "--yes")[0] == 0
    together = b"".join(files(home).values())
    assert b"sk-all" not in together
    assert (b"sk-use" in together) == (name != "cline")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["none"], "unknown agent 'none'"),
        (["codex"], "--model"),
        (["codex", "--restore"], "nothing was written for Codex"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Run, arguments: list[str], told: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_a_model_that_is_not_here_is_noted_or_refused(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMPU_HOST", "127.0.0.1:1")
    code, _, error = run("codex", "--model", "nothing", "--yes")
    assert code == 2
    assert "there is no model 'nothing' on this machine" in error
    assert files(home) == {}
    monkeypatch.setenv("TAMPU_HOST", "models.example:4321")
    code, _, error = run("codex", "--model", "nothing", "--yes")
    assert (code, "nothing is not on this machine" in error) == (0, True)
    assert run("codex", "--model", "demo", "--yes")[2] == ""
