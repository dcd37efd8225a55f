"""The backend of a conversation: Ollama's API, over HTTP or within this program."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tampu.cli.parameters import read_parameter
from tampu.cli.server_client import ServerError
from tampu.errors import RequestError
from tampu.ml.metadata import Metadata
from tampu.store.model_info import ModelInfo


class ChatBackend(Protocol):
    """A server, or the same API within this program; the methods raise TampuError."""

    @property
    def adds_prefix(self) -> bool:
        """Whether it adds a model's own system message and messages to a conversation."""

    @property
    def status(self) -> str:
        """What the current request waits for; empty if unknown."""

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        timeout_s: float | None = ...,
    ) -> dict[str, Any]:
        """Return the response to a request."""

    def stream(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """Yield the lines of the response to a request; closing the iterator cancels it."""

    def close(self) -> None:
        """Free what this program holds of it."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model as `POST /api/show` describes it.

    Attributes:
        name: the user's name for it, or a path.
        info: from its file.
        parameters: its defaults, by Ollama's names.
        system: its system message, or empty.
        messages: the first messages of its conversations.
    """

    name: str
    info: ModelInfo
    parameters: Mapping[str, Any] = field(default_factory=dict)
    system: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()


def show(backend: ChatBackend, name: str) -> ModelRef:
    """Return the details of a model.

    Raises:
        ServerError: if the backend does not have it, or its response is invalid.
    """
    shown = backend.ask("POST", "/api/show", {"model": name})
    try:
        return ModelRef(
            name,
            _info(shown, name),
            _parameters(str(shown.get("parameters", ""))),
            str(shown.get("system", "")),
            tuple(shown.get("messages") or ()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(f"unexpected response from the server at {backend}: {error!r}") from error


def _info(shown: Mapping[str, Any], name: str) -> ModelInfo:
    details, model_info = shown["details"], shown["model_info"]
    architecture = str(details["family"])
    width = int(model_info.get(f"{architecture}.embedding_length", 0))
    return ModelInfo(
        path=Path(name),
        name=name,
        size_bytes=0,
        architecture=architecture,
        parameters=int(model_info.get("general.parameter_count", 0)),
        tensors=0,
        quantization=str(details.get("quantization_level", "")),
        context=int(model_info.get(f"{architecture}.context_length", 0)),
        embedding_length=width,
        embedding_length_out=int(model_info.get(f"{architecture}.embedding_length_out", width)),
        capabilities=tuple(map(str, shown.get("capabilities", ("completion",)))),
        template=str(shown.get("template", "")),
        template_problem=str(shown.get("template_problem", "")),
        metadata=Metadata({"general.license": str(shown.get("license", ""))}),
        loaded_as=architecture,
    )


def _parameters(lines: str) -> dict[str, Any]:
    """Return the parameters in lines of `name value`, texts in quotes; unknown ones are ignored."""
    values: dict[str, Any] = {}
    for line in lines.splitlines():
        name, _, text = line.partition(" ")
        text = text.strip()
        try:
            value = read_parameter(name, [json.loads(text) if text.startswith('"') else text])
        except (RequestError, ValueError):
            continue
        values[name] = values.get("stop", []) + value if name == "stop" else value
    return values
