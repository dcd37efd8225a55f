"""A conversation with a model: messages, parameters, and answers part by part."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from tampu.chat.output import Content, Thinking
from tampu.chat.output.reasoning import Think
from tampu.cli.repl.backend import Asked, Known, Partner, Reply
from tampu.runner.events import Usage
from tampu.runner.request import GenerateOptions, given_options
from tampu.sampling.grammar import grammar_of
from tampu.settings.durations import format_duration


class Session:
    """One conversation.

    Attributes:
        partner: the model.
        system: the system message; empty: none.
        parameters: by Ollama's names.
        messages: the conversation so far, without the system message.
        think: whether the model shall think before it answers; None: as it does by itself.
        format: what answers must be like: "json", or a JSON schema; None: anything.
        usage: what the last answer cost; None before the first.
    """

    def __init__(
        self,
        partner: Partner,
        system: str = "",
        parameters: Mapping[str, Any] | None = None,
        think: Think = None,
        format: object = None,
    ) -> None:
        """Begin a conversation.

        Args:
            partner: the model.
            system: the system message; empty: the model's own.
            parameters: besides the model's own.
            think: whether the model shall think.
            format: what answers must be like.
        """
        self.partner = partner
        self.think = think
        self.format = format
        self.usage: Usage | None = None
        self._reply: Reply | None = None
        self.system = ""
        self.parameters: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []
        self._take_over(partner.known)
        self.system = system or self.system
        self.parameters.update(parameters or {})

    @property
    def known(self) -> Known:
        """The model."""
        return self.partner.known

    @property
    def can_think(self) -> bool:
        """Whether the model has thoughts before its answers."""
        return "thinking" in self.known.info.capabilities

    @property
    def can_see(self) -> bool:
        """Whether the model takes pictures."""
        return "vision" in self.known.info.capabilities

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are read, and how many it has; (0, 0) before that."""
        return (0, 0) if self._reply is None else self._reply.progress

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
        self.partner.load(self.parameters)

    def change(self, name: str) -> None:
        """Go on with another model, or a conversation that was saved; this one is forgotten.

        Raises:
            TampuError: when it cannot be loaded; all is as it was.
        """
        self._take_over(self.partner.change(name))

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
        asked = Asked(messages, self.system, self.parameters, self.think, self.format)
        self._reply = reply = self.partner.answer(asked)
        with closing(reply):
            try:
                for part in reply:
                    if isinstance(part, Content):
                        said.append(part.text)
                    yield part
            finally:
                self._reply = None
                self.usage = reply.usage or self.usage
                if said:
                    answer = {"role": "assistant", "content": "".join(said)}
                    self.messages += [question, answer]

    def _take_over(self, known: Known) -> None:
        """Begin as the model says that conversations begin."""
        self.system = known.prepared.system
        self.parameters = dict(known.prepared.parameters)
        self.messages = [{**message} for message in known.prepared.messages]
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
