"""The model of a conversation: asked over Ollama's API, of a server or within this program."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tampu.chat.output import Content, Thinking
from tampu.chat.output.reasoning import Think
from tampu.cli.listing import models_table
from tampu.cli.parameters import read_parameter
from tampu.cli.repl.spinner import Spinner
from tampu.cli.server_client import ServerError
from tampu.errors import RequestError
from tampu.ml.metadata import Metadata
from tampu.runner.events import Usage
from tampu.store.model_info import ModelInfo
from tampu.store.modelfile import Modelfile


class Server(Protocol):
    """Ollama's API, wherever it is answered; the methods raise TampuError."""

    @property
    def adds_prefix(self) -> bool:
        """Whether it puts a model's own system message and messages before a conversation."""
        ...

    @property
    def status(self) -> str:
        """What the request in progress waits for, in words; empty: unknown."""
        ...

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are processed, and how many it has; (0, 0): unknown."""
        ...

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        timeout_s: float | None = ...,
    ) -> dict[str, Any]:
        """Return the answer to a request."""
        ...

    def stream(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """Yield the lines of the answer to a request; closing the iterator cancels it."""
        ...

    def close(self) -> None:
        """Release what this program has of it."""
        ...


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model as `POST /api/show` describes it.

    Attributes:
        name: the user's name for it, or a path.
        info: what its file says.
        parameters: its defaults, by Ollama's names.
        system: its system message; empty: none.
        messages: the conversation that it begins with.
    """

    name: str
    info: ModelInfo
    parameters: Mapping[str, Any] = field(default_factory=dict)
    system: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()


class ChatResponse:
    """An answer in progress: an iterator of its parts.

    Attributes:
        usage: its costs; None before its end.
    """

    def __init__(self, lines: Generator[dict[str, Any]], loaded: Callable[[int], None]) -> None:
        """Read an answer from its lines; `loaded` gets the nanoseconds that loading took."""
        self.usage: Usage | None = None
        self._loaded = loaded
        self._parts = self._read(lines)

    def __iter__(self) -> ChatResponse:
        return self

    def __next__(self) -> Thinking | Content:
        return next(self._parts)

    def close(self) -> None:
        """Cancel the response."""
        self._parts.close()

    def _read(self, lines: Generator[dict[str, Any]]) -> Generator[Thinking | Content]:
        with closing(lines):
            for line in lines:
                message = line.get("message", line)
                if reasoning := message.get("thinking"):
                    yield Thinking(str(reasoning))
                if text := message.get("content") or message.get("response"):
                    yield Content(str(text))
                if line.get("done"):
                    self._end(line)
        if self.usage is None:
            raise ServerError("the server closed the connection before the end of the answer")

    def _end(self, line: Mapping[str, Any]) -> None:
        load_ns = int(line.get("load_duration", 0))
        self._loaded(load_ns)
        self.usage = Usage(
            prompt_tokens=int(line.get("prompt_eval_count", 0)),
            cached_tokens=int(line.get("prompt_eval_cached_count", 0)),
            prompt_ns=int(line.get("prompt_eval_duration", 0)),
            generated_tokens=int(line.get("eval_count", 0)),
            generated_ns=int(line.get("eval_duration", 0)),
            total_ns=max(int(line.get("total_duration", 0)) - load_ns, 0),
        )


class ChatBackend:
    """The current model of a conversation.

    Attributes:
        model: its details.
    """

    def __init__(self, server: Server, model: ModelRef, keep_alive_s: float | None = None) -> None:
        """Talk to a model.

        Args:
            server: has it.
            model: its details.
            keep_alive_s: how long it stays loaded after an answer; negative: without end; None:
                the server's default.
        """
        self.model = model
        self._server = server
        self._keep = {} if keep_alive_s is None else {"keep_alive": keep_alive_s}
        self._load_ns = 0

    @property
    def status(self) -> str:
        """What a request waits for, in words; empty: unknown."""
        return self._server.status

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are processed, and how many it has; (0, 0): unknown."""
        return self._server.progress

    def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        system: str,
        parameters: Mapping[str, Any],
        think: Think = None,
        format: object = None,
    ) -> ChatResponse:
        """Begin an answer; a model without a template continues the question.

        Args:
            messages: the conversation, the question last; their `images` are files.
            system: the system message; empty: none.
            parameters: by Ollama's names.
            think: whether to reason first; None: the model's default.
            format: "json", or a JSON schema; None: any text.

        Raises:
            TampuError: from the response too, when there is no answer.
        """
        body = self._body(self.model, parameters)
        body |= {"format": format} if format is not None else {}
        can_think = "thinking" in self.model.info.capabilities
        body |= {"think": think} if can_think and think is not None else {}
        if self.model.info.template:
            path, body["messages"] = "/api/chat", self._messages(messages, system)
        else:
            path = "/api/generate"
            body |= {"prompt": messages[-1]["content"], "system": system}
        return ChatResponse(self._server.stream(path, body), self._add_load)

    def load(self, parameters: Mapping[str, Any]) -> None:
        """Load the model as these parameters say.

        Raises:
            TampuError: when it cannot be loaded.
        """
        self._load(self.model, parameters)

    def change(self, name: str) -> None:
        """Switch to another model and load it; keep the current one if loading fails.

        Raises:
            TampuError: when it cannot be loaded.
        """
        model, old = show(self._server, name), self.model
        self._load(model, model.parameters)
        self.model = model
        if not self._server.adds_prefix and old.name != name:
            body = {"model": old.name, "keep_alive": 0, "stream": False}
            self._server.ask("POST", "/api/generate", body)

    def embed(
        self, text: str, parameters: Mapping[str, Any], *, truncate: bool
    ) -> npt.NDArray[np.float32]:
        """Return the embedding of a text; one that is too long is cut if `truncate`.

        Raises:
            TampuError: when it cannot be computed.
        """
        body = {**self._body(self.model, parameters), "input": text, "truncate": truncate}
        answer = self._server.ask("POST", "/api/embed", body, None)
        return np.array(answer["embeddings"][0], np.float32)

    def save(self, name: str, modelfile: Modelfile) -> None:
        """Create a model from this one.

        Raises:
            TampuError: when it cannot be created.
        """
        body: dict[str, Any] = {
            "model": name,
            "from": self.model.name,
            "parameters": dict(modelfile.parameters),
            "stream": False,
        }
        if modelfile.system:
            body["system"] = modelfile.system
        if modelfile.messages:
            messages = [{"role": one.role, "content": one.content} for one in modelfile.messages]
            body["messages"] = messages
        self._server.ask("POST", "/api/create", body, None)

    def print_list(self, prefix: str) -> None:
        """Print the models whose names begin with `prefix`.

        Raises:
            TampuError: when the server does not say.
        """
        found = [
            (
                str(model["name"]),
                str(model["digest"]),
                int(model["size"]),
                datetime.fromisoformat(str(model["modified_at"])).timestamp(),
            )
            for model in self._server.ask("GET", "/api/tags")["models"]
            if str(model["name"]).lower().startswith(prefix.lower())
        ]
        print(models_table(found))

    def take_load_ns(self) -> int:
        """Return how long loading took since the last call, in nanoseconds."""
        taken, self._load_ns = self._load_ns, 0
        return taken

    def close(self) -> None:
        """Release the model; a server keeps it as long as it likes."""
        self._server.close()

    def _body(self, model: ModelRef, parameters: Mapping[str, Any]) -> dict[str, Any]:
        options = {name: value for name, value in parameters.items() if name != "engine"}
        return {"model": model.name, "options": options, **self._keep}

    def _messages(
        self, conversation: Sequence[Mapping[str, Any]], system: str
    ) -> list[dict[str, Any]]:
        """Return a conversation without the prefix that the server adds."""
        messages, prefix = list(conversation), list(self.model.messages)
        if self._server.adds_prefix and messages[: len(prefix)] == prefix:
            messages = messages[len(prefix) :]
        first = [{"role": "system", "content": system}] if system else []
        return [*first, *map(_with_base64, messages)]

    def _load(self, model: ModelRef, parameters: Mapping[str, Any]) -> None:
        is_embedder = model.info.capabilities[:1] == ("embedding",)
        path = "/api/embed" if is_embedder else "/api/generate"
        began = time.monotonic_ns()
        with Spinner(lambda: self._server.status or f"loading {model.name}"):
            self._server.ask("POST", path, self._body(model, parameters) | {"stream": False}, None)
        self._add_load(time.monotonic_ns() - began)

    def _add_load(self, nanoseconds: int) -> None:
        self._load_ns += nanoseconds


def show(server: Server, name: str) -> ModelRef:
    """Return the details of a server's model.

    Raises:
        ServerError: if the server does not have it, or sends something unexpected.
    """
    shown = server.ask("POST", "/api/show", {"model": name})
    try:
        return ModelRef(
            name,
            _info(shown, name),
            _parameters(str(shown.get("parameters", ""))),
            str(shown.get("system", "")),
            tuple(shown.get("messages") or ()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(f"unexpected response from the server at {server}: {error!r}") from error


def _info(shown: Mapping[str, Any], name: str) -> ModelInfo:
    details, model_info = shown["details"], shown["model_info"]
    architecture = str(details["family"])
    return ModelInfo(
        path=Path(name),
        size_bytes=0,
        architecture=architecture,
        parameters=int(model_info.get("general.parameter_count", 0)),
        tensors=0,
        quantization=str(details.get("quantization_level", "")),
        context=int(model_info.get(f"{architecture}.context_length", 0)),
        embedding_length=int(model_info.get(f"{architecture}.embedding_length", 0)),
        capabilities=tuple(map(str, shown.get("capabilities", ("completion",)))),
        template=str(shown.get("template", "")),
        metadata=Metadata({"general.license": str(shown.get("license", ""))}),
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


def _with_base64(message: Mapping[str, Any]) -> dict[str, Any]:
    photos = message.get("images", ())
    images = [base64.b64encode(photo.content).decode() for photo in photos]
    return {**message, "images": images} if images else dict(message)
