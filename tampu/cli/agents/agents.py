"""The coding agents that can be pointed at a server: their settings files, and what is written.

The keys are those of the agents' documentation; docs/agents.md has them in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tampu.cli.agents.documents import Change, Document, Item, JSONDocument, TOMLDocument
from tampu.errors import RequestError

_NO_KEY = "none"  # agents want some key
_QWEN_VARIABLE = "LOCAL_TAMPU_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server and the model that an agent is pointed at; a key if it needs one."""

    url: str
    model: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file of an agent's settings.

    Attributes:
        folder: the variable that names the agent's folder, and the folder in the home without it.
        name: below that folder.
        kind: reads and writes it.
        changes: what is written for a server and a model.
    """

    folder: tuple[str, str]
    name: str
    kind: type[Document]
    changes: Callable[[Target], Sequence[Change]]

    def path(self, home: Path, variable: Callable[[str], str | None]) -> Path:
        """Return where the file is."""
        named, default = self.folder
        given = variable(named) if named else None
        return (Path(given) if given else home / default) / self.name


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: its name for people, its command, and its files."""

    title: str
    command: str
    files: tuple[SettingsFile, ...]


def agent(name: str) -> Agent:
    """Return the agent of a name.

    Raises:
        RequestError: if there is none.
    """
    if name not in AGENTS:
        raise RequestError(f"unknown agent '{name}'; the known ones: {', '.join(AGENTS)}")
    return AGENTS[name]


def _claude(target: Target) -> Sequence[Change]:
    values = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key or _NO_KEY,
        "ANTHROPIC_MODEL": target.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model,
    }
    return [Change(("env", name), value) for name, value in values.items()]


def _codex(target: Target) -> Sequence[Change]:
    provider = {"name": "tampu", "base_url": f"{target.url}/v1", "wire_api": "responses"}
    if target.key:
        provider["experimental_bearer_token"] = target.key
    return [
        Change(("model_provider",), "tampu"),
        Change(("model",), target.model),
        Change(("model_providers", "tampu"), provider),
    ]


def _opencode(target: Target) -> Sequence[Change]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {
            "baseURL": f"{target.url}/v1",
            **({"apiKey": target.key} if target.key else {}),
        },
        "models": {target.model: {"tool_call": True}},
    }
    return [
        Change(("model",), f"tampu/{target.model}"),
        Change(("small_model",), f"tampu/{target.model}"),
        Change(("provider", "tampu"), provider),
    ]


def _qwen(target: Target) -> Sequence[Change]:
    url = f"{target.url}/v1"
    provider = {"id": target.model, "name": f"{target.model} (tampu)", "baseUrl": url}
    return [
        Change(("env", _QWEN_VARIABLE), target.key or _NO_KEY),
        Change(
            ("modelProviders", "openai", Item("id", target.model)),
            provider | {"envKey": _QWEN_VARIABLE},
        ),
        Change(("security", "auth", "selectedType"), "openai"),
        Change(("security", "auth", "baseUrl"), url),
        Change(("model", "name"), target.model),
    ]


def _droid(target: Target) -> Sequence[Change]:
    id = f"custom:tampu-{target.model}"
    model: dict[str, Any] = {
        "id": id,
        "model": target.model,
        "displayName": f"{target.model} (tampu)",
        "baseUrl": f"{target.url}/v1",
        "apiKey": target.key or _NO_KEY,
        "provider": "generic-chat-completion-api",
    }
    return [
        Change(("customModels", Item("id", id)), model),
        Change(("sessionDefaultSettings", "model"), id),
    ]


def _pi_models(target: Target) -> Sequence[Change]:
    provider = {
        "baseUrl": f"{target.url}/v1",
        "api": "openai-completions",
        "apiKey": target.key or _NO_KEY,
        "models": [{"id": target.model}],
    }
    return [Change(("providers", "tampu"), provider)]


def _pi_settings(target: Target) -> Sequence[Change]:
    return [Change(("defaultProvider",), "tampu"), Change(("defaultModel",), target.model)]


def _cline(target: Target) -> Sequence[Change]:
    values = {"ollamaBaseUrl": target.url}
    for mode in ("act", "plan"):
        values |= {
            f"{mode}ModeApiProvider": "ollama",
            f"{mode}ModeOllamaModelId": target.model,
            f"{mode}ModeOllamaBaseUrl": target.url,
        }
    return [Change((name,), value) for name, value in values.items()]


AGENTS: Mapping[str, Agent] = {
    "claude": Agent(
        "Claude Code",
        "claude",
        (SettingsFile(("CLAUDE_CONFIG_DIR", ".claude"), "settings.json", JSONDocument, _claude),),
    ),
    "cline": Agent(
        "Cline",
        "cline",
        (SettingsFile(("", ".cline/data"), "globalState.json", JSONDocument, _cline),),
    ),
    "codex": Agent(
        "Codex",
        "codex",
        (SettingsFile(("CODEX_HOME", ".codex"), "config.toml", TOMLDocument, _codex),),
    ),
    "droid": Agent(
        "Droid", "droid", (SettingsFile(("", ".factory"), "settings.json", JSONDocument, _droid),)
    ),
    "opencode": Agent(
        "OpenCode",
        "opencode",
        (
            SettingsFile(
                ("XDG_CONFIG_HOME", ".config"), "opencode/opencode.json", JSONDocument, _opencode
            ),
        ),
    ),
    "pi": Agent(
        "Pi",
        "pi",
        (
            SettingsFile(("", ".pi/agent"), "models.json", JSONDocument, _pi_models),
            SettingsFile(("", ".pi/agent"), "settings.json", JSONDocument, _pi_settings),
        ),
    ),
    "qwen": Agent(
        "Qwen Code",
        "qwen",
        (SettingsFile(("", ".qwen"), "settings.json", JSONDocument, _qwen),),
    ),
}
