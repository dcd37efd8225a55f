"""A conversation with a model: messages, parameters, and answers part by part."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from tampu.chat.output import Content, Thinking
from tampu.chat.output.reasoning import Think
from tampu.cli.repl.backend import ChatBackend, ModelRef
from tampu.cli.repl.spinner import prompt_bar
from tampu.runner.events import Usage
from tampu.runner.request import GenerateOptions, given_options
from tampu.sampling.grammar import grammar_of
from tampu.settings.durations import format_duration
from tampu.store.model import StoredMessage
from tampu.store.modelfile import Modelfile


class Session:
    """One conversation.

    Attributes:
        backend: the model.
        system: the system message; empty: none.
        parameters: by Ollama's names.
        messages: the conversation so far, without the system message.
        think: whether the model shall think before it answers; None: as it does by itself.
        format: what answers must be like: "json", or a JSON schema; None: anything.
        usage: what the last answer cost; None before the first.
    """

    def __init__(
        self,
        backend: ChatBackend,
        system: str = "",
        parameters: Mapping[str, Any] | None = None,
        think: Think = None,
        format: object = None,
    ) -> None:
        """Begin a conversation.

        Args:
            backend: the model.
            system: the system message; empty: the model's own.
            parameters: besides the model's own.
            think: whether the model shall think.
            format: what answers must be like.
        """
        self.backend = backend
        self.think = think
        self.format = format
        self.usage: Usage | None = None
        self.system = ""
        self.parameters: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []
        self._begin_as(backend.model)
        self.system = system or self.system
        self.parameters.update(parameters or {})

    @property
    def model(self) -> ModelRef:
        """The model."""
        return self.backend.model

    @property
    def can_think(self) -> bool:
        """Whether the model has thoughts before its answers."""
        return "thinking" in self.model.info.capabilities

    @property
    def can_see(self) -> bool:
        """Whether the model takes pictures."""
        return "vision" in self.model.info.capabilities

    @property
    def status(self) -> str:
        """What an answer waits for, in words; empty: unknown."""
        return self.backend.status or prompt_bar(*self.backend.progress)

    def check(self) -> None:
        """Refuse parameters out of their range, and a format that makes no sense.

        Raises:
            RequestError: naming the parameter.
        """
        GenerateOptions(**given_options(self.parameters))
        grammar_of(self.format)

    def load(self) -> None:
        """Have the model in memory.

        Raises:
            TampuError: when it cannot be loaded.
        """
        self.backend.load(self.parameters)

    def change(self, name: str) -> None:
        """Go on with another model, or a conversation that was saved; this one is forgotten.

        Raises:
            TampuError: when it cannot be loaded; all is as it was.
        """
        self.backend.change(name)
        self._begin_as(self.backend.model)

    def modelfile(self) -> Modelfile:
        """Return the Modelfile of this conversation; it has no images."""
        return Modelfile(
            sources=(self.model.name,),
            parameters=self.parameters,
            system=self.system or None,
            messages=tuple(
                StoredMessage(message["role"], message["content"]) for message in self.messages
            ),
        )

    def save(self, name: str) -> None:
        """Save this conversation as a model; warn of images, which are not saved.

        Raises:
            TampuError: for an invalid name, or if the model cannot be written.
        """
        self.backend.save(name, self.modelfile())
        images = sum(len(message.get("images", ())) for message in self.messages)
        if images:
            print(f"warning: {images} image(s) are not saved", file=sys.stderr)

    def clear(self) -> None:
        """Forget the messages."""
        self.messages.clear()

    def answer(self, text: str, images: Sequence[Any] = ()) -> Generator[Thinking | Content]:
        """Yield the parts of the answer to a message; closing the iterator stops it.

        What was said until then stays in the conversation. A model without a template continues
        the text instead, and remembers nothing.

        Raises:
            TampuError: when there is no answer; the message is not in the conversation then.
        """
        question: dict[str, Any] = {"role": "user", "content": text}
        if images:
            question["images"] = list(images)
        said: list[str] = []
        messages = [*self.messages, question]
        response = self.backend.answer(
            messages, self.system, self.parameters, self.think, self.format
        )
        with closing(response):
            try:
                for part in response:
                    if isinstance(part, Content):
                        said.append(part.text)
                    yield part
            finally:
                self.usage = response.usage or self.usage
                if said:
                    answer = {"role": "assistant", "content": "".join(said)}
                    self.messages += [question, answer]

    def _begin_as(self, model: ModelRef) -> None:
        """Take over the system message, parameters and messages of a model."""
        self.system = model.system
        self.parameters = dict(model.parameters)
        self.messages = [{**message} for message in model.messages]
        self.usage = None


def timing_lines(usage: Usage, load_ns: int) -> str:
    """Return what an answer cost, as `ollama run --verbose` prints it, and what the cache had."""
    cached = ("prompt cached count", f"{usage.cached_tokens} token(s)")
    rows = [
        ("total duration", format_duration(load_ns + usage.total_ns)),
        ("load duration", format_duration(load_ns)),
        ("prompt eval count", f"{usage.prompt_tokens} token(s)"),
        *([cached] if usage.cached_tokens else []),
        ("prompt eval duration", format_duration(usage.prompt_ns)),
        ("prompt eval rate", _rate(usage.prompt_tokens - usage.cached_tokens, usage.prompt_ns)),
        ("eval count", f"{usage.generated_tokens} token(s)"),
        ("eval duration", format_duration(usage.generated_ns)),
        ("eval rate", _rate(usage.generated_tokens, usage.generated_ns)),
    ]
    return "\n".join(f"{name + ':':<22}{value}" for name, value in rows)


def _rate(tokens: int, nanoseconds: int) -> str:
    return f"{tokens * 1e9 / nanoseconds if nanoseconds else 0:.2f} tokens/s"
