"""A conversation with a loaded model: messages, parameters, and answers piece by piece."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol

import msgspec

from tampu.cli.parameters import generate_options
from tampu.durations import format_duration
from tampu.modelinfo import ModelInfo
from tampu.runner.events import Done, Text, Usage
from tampu.runner.request import GenerateOptions


class Model(Protocol):
    """What a conversation needs of an engine."""

    info: ModelInfo
    context: int

    def stream(self, prompt: str | list[int], **options: Any) -> Iterator[Text | Done]:
        """Yield the continuation of a prompt."""
        ...


class Prompts(Protocol):
    """What makes a prompt of a conversation."""

    def tokens(self, messages: list[dict[str, str]], *, limit: int) -> list[int]:
        """Return the prompt's tokens, without the oldest messages if it is too long."""
        ...


class Session:
    """One conversation.

    Attributes:
        system: the system message; empty: none.
        parameters: by Ollama's names.
        messages: the conversation so far, without the system message.
        usage: what the last answer cost; None before the first.
    """

    def __init__(
        self,
        model: Model,
        prompts: Prompts | None,
        system: str,
        parameters: dict[str, Any],
        messages: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Converse with a model.

        Args:
            model: that answers.
            prompts: None if it has no chat template.
            system: the system message; empty: none.
            parameters: by Ollama's names.
            messages: that the conversation begins with.
        """
        self.model = model
        self.system = system
        self.parameters = parameters
        self.messages: list[dict[str, str]] = [{**message} for message in messages]
        self.usage: Usage | None = None
        self._prompts = prompts

    def check(self) -> None:
        """Refuse parameters out of their range.

        Raises:
            RequestError: naming the parameter.
        """
        self._options()

    def clear(self) -> None:
        """Forget the messages."""
        self.messages.clear()

    def answer(self, text: str) -> Generator[str, None, None]:
        """Yield the pieces of the answer to a message; closing the iterator stops it.

        What was said until then stays in the conversation. A model without a template continues
        the text instead, and remembers nothing.

        Raises:
            TampuError: when there is no answer; the message is not in the conversation then.
        """
        said: list[str] = []
        with closing(self._events(text)) as events:
            try:
                for event in events:
                    if isinstance(event, Done):
                        self.usage = event.usage
                    else:
                        said.append(event.text)
                        yield event.text
            finally:
                if said:
                    self.messages += [
                        {"role": "user", "content": text},
                        {"role": "assistant", "content": "".join(said)},
                    ]

    def _events(self, text: str) -> Generator[Text | Done, None, None]:
        options = msgspec.structs.asdict(self._options())
        yield from self.model.stream(self._prompt(text), **options)

    def _prompt(self, text: str) -> str | list[int]:
        if self._prompts is None:
            return f"{self.system}\n\n{text}" if self.system else text
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, *self.messages, {"role": "user", "content": text}]
        return self._prompts.tokens(messages, limit=self.model.context - 1)

    def _options(self) -> GenerateOptions:
        return generate_options(self.parameters, self.model.info)


def timing_lines(usage: Usage, load_ns: int) -> str:
    """Return what an answer cost, as `ollama run --verbose` prints it."""
    rows = [
        ("total duration", format_duration(load_ns + usage.total_ns)),
        ("load duration", format_duration(load_ns)),
        ("prompt eval count", f"{usage.prompt_tokens} token(s)"),
        ("prompt eval duration", format_duration(usage.prompt_ns)),
        ("prompt eval rate", _rate(usage.prompt_tokens, usage.prompt_ns)),
        ("eval count", f"{usage.generated_tokens} token(s)"),
        ("eval duration", format_duration(usage.generated_ns)),
        ("eval rate", _rate(usage.generated_tokens, usage.generated_ns)),
    ]
    return "\n".join(f"{name + ':':<22}{value}" for name, value in rows)


def _rate(tokens: int, nanoseconds: int) -> str:
    return f"{tokens * 1e9 / nanoseconds if nanoseconds else 0:.2f} tokens/s"
