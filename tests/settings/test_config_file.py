"""The configuration file, and which of file, variables and defaults says what holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tampu.cli.config import config_command, setting_rows
from tampu.errors import SettingsError
from tampu.settings.config_file import read_configuration
from tampu.settings.reader import Source
from tampu.settings.settings import Settings

KNOWN = ("HOST", "KEEP_ALIVE", "ORIGINS", "FLASH_ATTENTION", "API_KEY", "NUM_PARALLEL")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Any]:
    def write(text: str) -> Path:
        path = tmp_path / "tampu" / "tampu.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_values_are_converted_to_text(write: Callable[[Any], Any]) -> None:
    path = write(
        'host = ":1"\nnum_parallel = 4\nflash_attention = true\norigins = ["https://a", "app://b"]\n'
    )
    assert read_configuration(path, KNOWN) == {
        "HOST": ":1", "NUM_PARALLEL": "4", "FLASH_ATTENTION": "1", "ORIGINS": "https://a,app://b",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("keep_alvie = 1", "did you mean keep_alive"), ("nothing_like_it = 1", "known: "),
        ("HOST = 'x'", "'HOST' is not a setting"), ("host = ", "not valid TOML"),
        ("[host]\na = 1", "host must be a string"), ("origins = ['a,b']", "origins must be"),
        ("host = 2020-01-01", "host must be"),
    ],
)  # fmt: skip
def test_unknown_settings_are_refused_with_the_file_name(
    write: Callable[[Any], Any], text: str, told: str
) -> None:
    path = write(text)
    with pytest.raises(SettingsError, match=r"tampu\.toml") as caught:
        read_configuration(path, KNOWN)
    assert told in str(caught.value)


def test_config_file_must_exist_only_if_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        Settings.from_environment({"HOME": "/x", "TAMPU_CONFIG": str(tmp_path / "none.toml")})
    assert Settings.from_environment({"HOME": str(tmp_path)}).slots is None


def test_precedence_is_tampu_ollama_file_default(
    write: Callable[[Any], Any], tmp_path: Path
) -> None:
    path = write('num_parallel = 2\nmax_queue = 3\nkeep_alive = "1m"\n')
    home = {"HOME": "/x", "XDG_CONFIG_HOME": str(tmp_path)}
    settings = Settings.from_environment(
        home | {"TAMPU_NUM_PARALLEL": "8", "OLLAMA_NUM_PARALLEL": "4", "OLLAMA_MAX_QUEUE": "5"}
    )
    assert (settings.slots, settings.max_queue, settings.keep_alive_s) == (8, 5, 60)
    assert settings.sources["NUM_PARALLEL"] == Source(8, "TAMPU_NUM_PARALLEL")
    assert settings.sources["MAX_QUEUE"] == Source(5, "OLLAMA_MAX_QUEUE")
    assert settings.sources["KEEP_ALIVE"] == Source(60.0, f"{path}: keep_alive")
    assert settings.sources["DEBUG"] == Source(0, "default")


def test_invalid_value_names_the_file_and_hides_keys(
    write: Callable[[Any], Any], tmp_path: Path
) -> None:
    write("num_parallel = -1\n")
    with pytest.raises(SettingsError, match=r"tampu\.toml: num_parallel is '-1'"):
        Settings.from_environment({"HOME": "/x", "XDG_CONFIG_HOME": str(tmp_path)})


def test_each_setting_is_shown_once_and_keys_are_hidden() -> None:
    settings = Settings.from_environment({"HOME": "/x", "TAMPU_API_KEY": "geheim,zwei"})
    rows = setting_rows(settings)
    assert ("api_key", "(set)", "TAMPU_API_KEY") in rows
    assert "geheim" not in repr(rows) + repr(settings)
    assert ("models", str(Path("/x/.local/share/tampu/models")), "default") in rows
    names = [name for name, _, _ in rows]
    assert len(set(names)) == len(names) > 25


def test_defaults_are_shown_as_they_are_documented() -> None:
    rows = {name: value for name, value, _ in setting_rows(Settings.from_environment({}))}
    shown = {"keep_alive": "5m", "max_files_size": "10GB", "threads": "one per core", "socket": "-"}
    assert {name: rows[name] for name in shown} == shown
    assert rows["hf_endpoint"] == "https://huggingface.co"


def test_given_values_are_shown_as_they_were_written() -> None:
    given = {"HOME": "/x", "TAMPU_KEEP_ALIVE": "10m", "OLLAMA_HOST": ":1", "TAMPU_MEMORY": "16GB"}
    rows = setting_rows(Settings.from_environment(given))
    assert ("keep_alive", "10m", "TAMPU_KEEP_ALIVE") in rows
    assert ("host", ":1", "OLLAMA_HOST") in rows
    assert ("memory", "16GB", "TAMPU_MEMORY") in rows


@pytest.mark.parametrize(
    ("name", "reason"), [("none.toml", "No such file or directory"), (".", "Is a directory")]
)
def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path, name: str, reason: str) -> None:
    path = tmp_path / name
    with pytest.raises(SettingsError) as caught:
        read_configuration(path, KNOWN)
    assert str(caught.value) == f"{path}: cannot be read: {reason}"


def test_settings_are_in_the_order_of_their_names() -> None:
    names = [name for name, _, _ in setting_rows(Settings.from_environment({}))]
    assert names == sorted(names)


def test_folders_of_other_programs_are_shown_and_tokens_are_hidden() -> None:
    given = {"HOME": "/x", "OLLAMA_MODELS": "/o", "HF_HOME": "/hf", "HF_TOKEN": "geheim"}
    rows = setting_rows(Settings.from_environment(given))
    assert ("ollama_models", str(Path("/o")), "OLLAMA_MODELS") in rows
    assert ("hf_hub_cache", str(Path("/hf/hub")), "HF_HOME") in rows
    assert ("lm_studio", str(Path("/x/.lmstudio/models")), "default") in rows
    assert ("hf_token", "(set)", "HF_TOKEN") in rows
    assert "geheim" not in repr(rows)


def test_ollama_variables_without_effect_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OLLAMA_NO_CLOUD", "1")
    monkeypatch.setenv("OLLAMA_NOPRUNE", "")
    monkeypatch.setenv("OLLAMA_MAX_QUEUE", "9")
    config_command(json=False)
    captured = capsys.readouterr()
    assert captured.err == "warning: without effect: OLLAMA_NO_CLOUD\n"
    assert re.search(r"max_queue +9 +OLLAMA_MAX_QUEUE\n", captured.out)
