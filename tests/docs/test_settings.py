"""Every variable that a document names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tampu.errors import SettingsError
from tampu.settings.settings import Settings

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"\b(?:TAMPU|OLLAMA)_[A-Z0-9]+(?:_[A-Z0-9]+)*\b")
# Named because they are not settings: the address has the port, and nothing is pruned.
NOT_SETTINGS = {"TAMPU_PORT", "OLLAMA_NOPRUNE"}


def documented() -> list[str]:
    files = [ROOT / "README.md", ROOT / "Dockerfile"]
    for folder in ("docs", "deploy", "examples"):
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [path.read_text("utf-8", "replace") for path in files]
    return sorted({name for text in texts for name in _NAME.findall(text)})


def is_setting(name: str) -> bool:
    """Return whether a variable has an effect; its value need not be a valid one."""
    try:
        settings = Settings.from_environment({"HOME": "/home/runa", name: "1"})
    except SettingsError as error:
        return "is not a setting" not in str(error)
    return name not in settings.ignored


@pytest.mark.parametrize("name", documented())
def test_a_documented_variable_is_a_setting_unless_it_is_named_as_none(name: str) -> None:
    assert is_setting(name) == (name not in NOT_SETTINGS)


def test_a_setting_of_a_folder_works_in_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('lm_studio = "/mnt/models"\nregistry_key = "/key"\n')
    environment = {"HOME": str(tmp_path), "TAMPU_CONFIG": str(tmp_path / "t.toml")}
    settings = Settings.from_environment(environment)
    assert (settings.lm_studio, settings.registry_key) == (Path("/mnt/models"), Path("/key"))
    assert settings.sources["LM_STUDIO"].origin.endswith("t.toml: lm_studio")
