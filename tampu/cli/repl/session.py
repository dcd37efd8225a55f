"""A conversation with a model: its messages and parameters, and answers in parts."""

from __future__ import annotations

import base64
import re
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.chat.output import Content, Reasoning
from tampu.chat.output.reasoning import Think
from tampu.cli.listing import models_table
from tampu.cli.repl.backend import ChatBackend, ModelRef, show
from tampu.cli.repl.spinner import Spinner
from tampu.cli.server_client import WARNINGS, ServerError
from tampu.errors import ModelNameError, RequestError, TampuError
from tampu.runner.events import Usage
from tampu.runner.generate_options import GenerateOptions, given_options
from tampu.sampling.grammar import grammar_of
from tampu.settings.durations import format_duration
from tampu.store.model import StoredMessage
from tampu.store.modelfile import Modelfile
from tampu.store.names import ModelName

_PLACE = re.compile(r"messages\[(\d+)\]\.images\[(\d+)\]:? ")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How a conversation starts.

    Attributes:
        system: the system message; empty: the model's own.
        parameters: by Ollama's names.
        think: whether the model reasons before it answers; None: its default.
        format: the format of answers: "json", or a JSON schema; None: any text.
        keep_alive_s: how long the model stays loaded after an answer; negative: without end; None:
            the backend's default.
        truncate: whether a prompt that is too long is cut, or refused; None: the backend's default.
    """

    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    think: Think = None
    format: object = None
    keep_alive_s: float | None = None
    truncate: bool | None = None


class Session:
    """One conversation. Its methods raise TampuError if the backend fails.

    Attributes:
        model: the current model.
        system: the system message, or empty.
        parameters: by Ollama's names.
        messages: the conversation so far, without the system message.
        think: whether the model reasons before it answers; None: its default.
        format: the form of answers: "json", or a JSON schema; None: any text.
        usage: of the last answer; None before the first.
        is_cut: whether the last answer ended at a limit.
        warnings: of the server, that have not been shown yet.
        load_ns: how long loading took since the last answer, in nanoseconds.
    """

    def __init__(
        self, backend: ChatBackend, model: ModelRef, options: SessionOptions | None = None
    ) -> None:
        """Start a conversation; the options override what the model has of its own."""
        options = options or SessionOptions()
        self._backend = backend
        given = {"keep_alive": options.keep_alive_s, "truncate": options.truncate}
        self._fields = {name: value for name, value in given.items() if value is not None}
        self.think = options.think
        self.format = options.format
        self.load_ns = 0
        self.warnings: list[str] = []
        self._warned: set[str] = set()
        self.is_cut = False
        self._start_with(model)
        self.system = options.system or model.system
        self.parameters |= options.parameters

    @property
    def can_see(self) -> bool:
        """Whether the model takes images."""
        return "vision" in self.model.info.capabilities

    @property
    def can_hear(self) -> bool:
        """Whether the model takes sounds."""
        return "audio" in self.model.info.capabilities

    def needs_projector(self, *, is_sound: bool) -> bool:
        """Whether the model takes no images, or sounds, because its encoder is in another file."""
        from tampu.models import architectures  # seldom needed

        entry = architectures().get(self.model.info.architecture)
        kind = None if entry is None else entry.load()
        return kind is not None and bool(kind.audio_types if is_sound else kind.vision_types)

    @property
    def can_reason(self) -> bool:
        """Whether the model can reason before it answers."""
        return "thinking" in self.model.info.capabilities

    @property
    def status(self) -> str:
        """What the current request waits for; empty if unknown."""
        return self._backend.status

    def load(self) -> None:
        """Load the model."""
        self._load(self.model, self.parameters)

    def change(self, name: str) -> None:
        """Switch to another model or saved conversation; if loading fails, keep the current one."""
        model, old = show(self._backend, name), self.model.name
        self._load(model, model.parameters)
        self._start_with(model)
        if not self._backend.adds_prefix and old != name:
            body = {"model": old, "keep_alive": 0, "stream": False}
            self._backend.ask("POST", "/api/generate", body)

    def modelfile(self) -> Modelfile:
        """Return the Modelfile of this conversation, without images and sounds."""
        return Modelfile(
            sources=(self.model.name,),
            parameters=self.parameters,
            system=self.system or None,
            messages=tuple(
                StoredMessage(message["role"], message["content"]) for message in self.messages
            ),
        )

    def is_model(self, name: str) -> bool:
        """Whether there is a model of this name."""
        models = self._backend.ask("GET", "/api/tags")["models"]
        return any(_is_same(str(model["name"]), name) for model in models)

    def save(self, name: str) -> None:
        """Save this conversation as a model; warn about images and sounds, which are not saved."""
        messages = [
            {"role": message["role"], "content": message["content"]} for message in self.messages
        ]
        body: dict[str, Any] = {
            "model": name,
            "from": self.model.name,
            "parameters": self.parameters,
            "stream": False,
            **({"system": self.system} if self.system else {}),
            **({"messages": messages} if messages else {}),
        }
        self._backend.ask("POST", "/api/create", body, None)
        files = sum(len(message.get("images", ())) for message in self.messages)
        if files:
            print(f"warning: {files} image(s) or sound(s) are not saved", file=sys.stderr)

    def answer(self, text: str, files: Sequence[Any] = ()) -> Generator[Reasoning | Content]:
        """Yield the parts of the answer to a message; closing the iterator stops it.

        A stopped answer stays in the conversation, a failed one without text does not. A model
        without a template continues the text without the conversation.
        """
        question: dict[str, Any] = {"role": "user", "content": text}
        if files:
            question["images"] = list(files)
        said: list[str] = []
        is_done = False
        path, body, sent = self._request(question)
        with closing(self._backend.stream(path, body)) as lines:
            try:
                for line in lines:
                    self._note(line)
                    message = line.get("message", line)
                    if reasoning := message.get("thinking"):
                        yield Reasoning(str(reasoning))
                    if content := message.get("content") or message.get("response"):
                        said.append(str(content))
                        yield Content(str(content))
                    if is_done := bool(line.get("done")):
                        self._add_usage(line)
            except TampuError as error:
                if named := _with_path(str(error), sent):
                    raise RequestError(named) from error
                raise
            finally:
                if said:
                    self.messages += [question, {"role": "assistant", "content": "".join(said)}]
        if not is_done:
            raise ServerError("the server closed the connection before the end of the answer")

    def embed(self, text: str, files: Sequence[Any] = ()) -> npt.NDArray[np.float32]:
        """Return the embedding of a text with images and sounds, or of these alone."""
        body = self._body(self.model, self.parameters)
        if files:
            body["images"] = _in_base64(files)
        if text or not files:
            body["input"] = text
        answer = self._backend.ask("POST", "/api/embed", body, None)
        return np.array(answer["embeddings"][0], np.float32)

    def print_list(self, prefix: str) -> None:
        """Print the models whose names have this prefix."""
        found = [
            (
                str(model["name"]),
                str(model["digest"]),
                int(model["size"]),
                datetime.fromisoformat(str(model["modified_at"])).timestamp(),
            )
            for model in self._backend.ask("GET", "/api/tags")["models"]
            if str(model["name"]).lower().startswith(prefix.lower())
        ]
        print(models_table(found))

    def _start_with(self, model: ModelRef) -> None:
        """Take over a model's system message, parameters and messages."""
        self.model = model
        self.system = model.system
        self.parameters: dict[str, Any] = dict(model.parameters)
        self.messages = [{**message} for message in model.messages]
        self.usage: Usage | None = None

    def _load(self, model: ModelRef, parameters: Mapping[str, Any]) -> None:
        is_embedder = model.info.capabilities[:1] == ("embedding",)
        path = "/api/embed" if is_embedder else "/api/generate"
        began = time.monotonic_ns()
        with Spinner(lambda: self.status or f"loading {model.name}"):
            body = self._body(model, parameters) | {"stream": False}
            self._note(self._backend.ask("POST", path, body, None))
        self.load_ns += time.monotonic_ns() - began

    def _body(self, model: ModelRef, parameters: Mapping[str, Any]) -> dict[str, Any]:
        options = {name: value for name, value in parameters.items() if name != "engine"}
        return {"model": model.name, "options": options, **self._fields}

    def _request(
        self, question: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any], list[Mapping[str, Any]]]:
        """Return the path and the body of the request for an answer, and its messages."""
        body = self._body(self.model, self.parameters)
        if self.format is not None:
            body["format"] = self.format
        if self.think is not None and self.can_reason:
            body["think"] = self.think
        if not self.model.info.template:
            given = {"prompt": question["content"], "system": self.system}
            return "/api/generate", body | given, []
        messages, prefix = [*self.messages, question], list(self.model.messages)
        if self._backend.adds_prefix and messages[: len(prefix)] == prefix:
            messages = messages[len(prefix) :]
        first = [{"role": "system", "content": self.system}] if self.system else []
        sent: list[Mapping[str, Any]] = [*first, *messages]
        return "/api/chat", body | {"messages": [*map(_with_base64, sent)]}, sent

    def _note(self, line: Mapping[str, Any]) -> None:
        """Keep the warnings of a response that have not been shown yet."""
        found = [each for each in line.get(WARNINGS, ()) if each not in self._warned]
        self._warned |= {*found}
        self.warnings += found

    def _add_usage(self, line: Mapping[str, Any]) -> None:
        load_ns = int(line.get("load_duration", 0))
        self.load_ns += load_ns
        self.is_cut = line.get("done_reason") == "length"
        self.usage = Usage(
            prompt_tokens=int(line.get("prompt_eval_count", 0)),
            cached_tokens=int(line.get("prompt_eval_cached_count", 0)),
            prompt_ns=int(line.get("prompt_eval_duration", 0)),
            generated_tokens=int(line.get("eval_count", 0)),
            generated_ns=int(line.get("eval_duration", 0)),
            total_ns=max(int(line.get("total_duration", 0)) - load_ns, 0),
            dropped_tokens=int(line.get("truncated", 0)),
            drafted_tokens=int(line.get("draft_count", 0)),
            accepted_tokens=int(line.get("draft_accepted_count", 0)),
        )


def check(parameters: Mapping[str, Any], format: object) -> tuple[str, ...]:
    """Check the ranges of parameters, and a format; return what of it is not enforced.

    Raises:
        RequestError: with the name of the parameter.
    """
    GenerateOptions(**given_options(parameters))
    grammar = grammar_of(format)
    return grammar.ignored if grammar else ()


def _is_same(name: str, other: str) -> bool:
    try:
        return ModelName.parse(name) == ModelName.parse(other)
    except ModelNameError:
        return False


def _with_base64(message: Mapping[str, Any]) -> dict[str, Any]:
    images = _in_base64(message.get("images", ()))
    return {**message, "images": images} if images else dict(message)


def _in_base64(files: Sequence[Any]) -> list[str]:
    return [base64.b64encode(file.content).decode() for file in files]


def _with_path(message: str, sent: Sequence[Mapping[str, Any]]) -> str:
    """Return an error with the path of the file that it names by its place; "": it names none."""
    if (found := _PLACE.match(message)) is None:
        return ""
    number, place = int(found[1]), int(found[2])
    files = sent[number].get("images", ()) if number < len(sent) else ()
    return f"{files[place].path}: {message[found.end() :]}" if place < len(files) else ""


def timing_lines(usage: Usage, load_ns: int) -> str:
    """Return the costs of an answer, as `ollama run --verbose` prints them."""
    cached = ("prompt cached count", f"{usage.cached_tokens} token(s)")
    drafted = ("draft count", f"{usage.drafted_tokens} token(s)")
    accepted = ("draft accepted count", f"{usage.accepted_tokens} token(s)")
    rows = [
        ("total duration", format_duration(load_ns + usage.total_ns)),
        ("load duration", format_duration(load_ns)),
        ("prompt eval count", f"{usage.prompt_tokens} token(s)"),
        *([cached] if usage.cached_tokens else []),
        ("prompt eval duration", format_duration(usage.prompt_ns)),
        ("prompt eval rate", _rate(usage.prompt_tokens - usage.cached_tokens, usage.prompt_ns)),
        ("eval count", f"{usage.generated_tokens} token(s)"),
        *([drafted, accepted] if usage.drafted_tokens else []),
        ("eval duration", format_duration(usage.generated_ns)),
        ("eval rate", _rate(usage.generated_tokens, usage.generated_ns)),
    ]
    return "\n".join(f"{name + ':':<22}{value}" for name, value in rows)


def _rate(tokens: int, nanoseconds: int) -> str:
    return f"{tokens * 1e9 / nanoseconds if nanoseconds else 0:.2f} tokens/s"
