"""A conversation's partner in a server that runs: it loads the model, keeps it, and answers."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.chat.output import Content, Thinking
from tampu.cli.listing import models_table
from tampu.cli.local_server import NoServerError, Server, ServerError
from tampu.cli.parameters import read_parameter
from tampu.cli.repl.backend import Asked, Known, Reply
from tampu.cli.repl.spinner import spinner
from tampu.errors import RequestError
from tampu.ml.metadata import Metadata
from tampu.runner.events import Usage
from tampu.store.catalog import Prepared
from tampu.store.model_info import ModelInfo
from tampu.store.modelfile import Modelfile
from tampu.store.registry.progress import Progress
from tampu.version import NAME

_PATIENCE_S = 1.0


class ServedModel:
    """A model of a server."""

    def __init__(self, server: Server, known: Known, keep_alive: float | None = None) -> None:
        """Mean a model.

        Args:
            server: that has it.
            known: the model.
            keep_alive: for how many seconds it stays loaded after an answer; below 0: for ever;
                None: as the server says.
        """
        self._server = server
        self._known = known
        self._keep = {} if keep_alive is None else {"keep_alive": keep_alive}
        self._load_ns = 0

    @property
    def known(self) -> Known:
        """The model."""
        return self._known

    def answer(self, asked: Asked) -> Reply:
        """Begin an answer."""
        body = self._body(self._known, asked.parameters)
        body |= {"format": asked.format} if asked.format is not None else {}
        if not self._known.info.template:
            body |= {"prompt": asked.messages[-1]["content"], "system": asked.system}
            return ServedReply(self._server, "/api/generate", body, self._add_load)
        can_think = "thinking" in self._known.info.capabilities
        body |= {"think": asked.think} if can_think and asked.think is not None else {}
        body["messages"] = _messages(asked, self._known)
        return ServedReply(self._server, "/api/chat", body, self._add_load)

    def load(self, parameters: Mapping[str, Any]) -> None:
        """Have the model in memory, as these parameters want it."""
        self._load(self._known, parameters)

    def change(self, name: str) -> Known:
        """Mean another model, and load it; if that fails all is as it was."""
        known = known_to(self._server, name)
        self._load(known, known.prepared.parameters)
        self._known = known
        return known

    def embed(
        self, text: str, parameters: Mapping[str, Any], *, truncate: bool
    ) -> npt.NDArray[np.float32]:
        """Return the embedding of a text; one that is too long is cut if `truncate`."""
        body = {**self._body(self._known, parameters), "input": text, "truncate": truncate}
        answer = self._server.ask("POST", "/api/embed", body, None)
        return np.array(answer["embeddings"][0], np.float32)

    def save(self, name: str, modelfile: Modelfile) -> None:
        """Have the server make a model of this one."""
        body: dict[str, Any] = {
            "model": name,
            "from": self._known.name,
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
        """Print the server's models whose names begin so."""
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
        """Return how long loading took since this was asked last, in nanoseconds."""
        taken, self._load_ns = self._load_ns, 0
        return taken

    def close(self) -> None:
        """Leave the model to the server."""

    def _body(self, known: Known, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": known.name, "options": dict(parameters), **self._keep}

    def _load(self, known: Known, parameters: Mapping[str, Any]) -> None:
        is_embedder = known.info.capabilities[:1] == ("embedding",)
        path = "/api/embed" if is_embedder else "/api/generate"
        with spinner(f"loading {known.name}"):
            body = self._body(known, parameters) | {"stream": False}
            answer = self._server.ask("POST", path, body, None)
        self._add_load(int(answer.get("load_duration", 0)))

    def _add_load(self, nanoseconds: int) -> None:
        self._load_ns += nanoseconds


class ServedReply:
    """An answer that a server gives."""

    progress = (0, 0)

    def __init__(
        self, server: Server, path: str, body: dict[str, Any], loaded: Callable[[int], None]
    ) -> None:
        self.usage: Usage | None = None
        self._server = server
        self._loaded = loaded
        self._parts = self._run(path, body)

    def __iter__(self) -> ServedReply:
        return self

    def __next__(self) -> Thinking | Content:
        return next(self._parts)

    def close(self) -> None:
        """Want no more of it: the connection is closed, and the server ends the answer."""
        self._parts.close()

    def _run(self, path: str, body: dict[str, Any]) -> Generator[Thinking | Content]:
        with closing(self._server.stream(path, body)) as lines:
            for line in lines:
                said = line.get("message", line)
                if thought := said.get("thinking"):
                    yield Thinking(str(thought))
                if text := said.get("content") or said.get("response"):
                    yield Content(str(text))
                if line.get("done"):
                    self._end(line)
        if self.usage is None:
            raise ServerError(f"the server at {self._server} broke off")

    def _end(self, line: Mapping[str, Any]) -> None:
        load_ns = int(line.get("load_duration", 0))
        self._loaded(load_ns)
        self.usage = Usage(
            prompt_tokens=int(line.get("prompt_eval_count", 0)),
            prompt_ns=int(line.get("prompt_eval_duration", 0)),
            generated_tokens=int(line.get("eval_count", 0)),
            generated_ns=int(line.get("eval_duration", 0)),
            total_ns=max(int(line.get("total_duration", 0)) - load_ns, 0),
        )


def find_server(server: Server) -> bool:
    """Whether a server of tampu listens; what else does is told.

    Ollama's listens at the same place, and would answer with an engine that nobody asked for.
    """
    try:
        software = server.software(_PATIENCE_S)
    except NoServerError:
        return False
    except ServerError as error:
        _tell(str(error))
        return False
    if software.partition("/")[0] != NAME:
        _tell(f"what listens at {server} is not tampu's server")
        return False
    return True


def served_model(server: Server, name: str, keep_alive: float | None) -> ServedModel | None:
    """Return a model of a server that runs; None if it cannot be had there, and why is told."""
    try:
        return ServedModel(server, known_to(server, name), keep_alive)
    except ServerError as error:
        _tell(f"the server at {server}: {error}")
        return None


def has_model(server: Server, name: str) -> bool:
    """Whether a server that runs has a model."""
    try:
        server.ask("POST", "/api/show", {"model": name})
    except ServerError as error:
        return error.status != HTTPStatus.NOT_FOUND
    return True


def pulled_there(server: Server, name: str, *, insecure: bool) -> Generator[Progress]:
    """Have the server pull a model; yield how far it is.

    Raises:
        ServerError: if it could not.
    """
    body = {"model": name, "insecure": insecure}
    for line in server.stream("/api/pull", body):
        yield Progress(
            str(line.get("status", "")),
            str(line.get("digest", "")),
            int(line.get("total", 0)),
            int(line.get("completed", 0)),
        )


def known_to(server: Server, name: str) -> Known:
    """Return what a server says of a model.

    Raises:
        ServerError: if it does not have it, or gave no sense.
    """
    shown = server.ask("POST", "/api/show", {"model": name})
    try:
        return Known(name, _info(shown, name), _prepared(shown, name))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(f"what the server at {server} says of {name} makes no sense") from error


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


def _prepared(shown: Mapping[str, Any], name: str) -> Prepared:
    return Prepared(
        Path(name),
        parameters=_parameters(str(shown.get("parameters", ""))),
        system=str(shown.get("system", "")),
        messages=tuple(shown.get("messages") or ()),
    )


def _parameters(lines: str) -> dict[str, Any]:
    """Return the parameters in lines of `name value`, texts in quotes; others are not for us."""
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


def _messages(asked: Asked, known: Known) -> list[dict[str, Any]]:
    """Return a conversation as the server takes it; what the model begins with it adds itself."""
    own = list(known.prepared.messages)
    has_own = list(asked.messages[: len(own)]) == own
    said = asked.messages[len(own) :] if has_own else asked.messages
    system = [{"role": "system", "content": asked.system}] if asked.system else []
    return [*system, *map(_with_bytes, said)]


def _with_bytes(message: Mapping[str, Any]) -> dict[str, Any]:
    photos = message.get("images", ())
    images = [base64.b64encode(photo.content).decode() for photo in photos]
    return {**message, "images": images} if images else dict(message)


def _tell(what: str) -> None:
    print(f"{what}; the model runs in this program", file=sys.stderr)
