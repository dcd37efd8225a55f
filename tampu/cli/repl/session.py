"""A conversation with a model: messages, parameters, and answers part by part."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec

from tampu.chat.output import Content, Thinking
from tampu.chat.output.thinking import Think
from tampu.cli.parameters import generate_options
from tampu.cli.repl.desk import Desk, Known, Loaded, Needs, Reading
from tampu.durations import format_duration
from tampu.runner.events import Done, Usage
from tampu.runner.forms import form_grammar
from tampu.runner.protocol import ChatPrompt, Form, TextPrompt
from tampu.runner.request import GenerateOptions
from tampu.sampling.grammar import grammar_of


class Session:
    """One conversation.

    Attributes:
        desk: the model.
        system: the system message; empty: none.
        parameters: by Ollama's names.
        messages: the conversation so far, without the system message.
        think: whether the model shall think before it answers; None: as it does by itself.
        format: what answers must be like: "json", or a JSON schema; None: anything.
        usage: what the last answer cost; None before the first.
    """

    def __init__(
        self,
        desk: Desk,
        system: str = "",
        parameters: Mapping[str, Any] | None = None,
        think: Think = None,
        format: object = None,
    ) -> None:
        """Begin a conversation.

        Args:
            desk: with the model.
            system: the system message; empty: the model's own.
            parameters: besides the model's own.
            think: whether the model shall think.
            format: what answers must be like.
        """
        self.desk = desk
        self.think = think
        self.format = format
        self.usage: Usage | None = None
        self._reading: Reading | None = None
        self.system = ""
        self.parameters: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []
        self._take_over(desk.known)
        self.system = system or self.system
        self.parameters.update(parameters or {})

    @property
    def known(self) -> Known:
        """The model."""
        return self.desk.known

    @property
    def can_think(self) -> bool:
        """Whether the model has thoughts before its answers."""
        return "thinking" in self.known.info.capabilities

    @property
    def can_see(self) -> bool:
        """Whether the model takes pictures."""
        return "vision" in self.known.info.capabilities

    @property
    def needs(self) -> Needs:
        """What the model is loaded with."""
        return _needs(self.parameters)

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are read, and how many it has; (0, 0) before that."""
        return (0, 0) if self._reading is None else self._reading.progress

    def check(self) -> None:
        """Refuse parameters out of their range, and a format that makes no sense.

        Raises:
            RequestError: naming the parameter.
        """
        self._options()
        grammar_of(self.format)

    def load(self) -> None:
        """Have the model in memory.

        Raises:
            TampuError: when it cannot be loaded.
        """
        with self.desk.model(self.needs):
            pass

    def change(self, name: str) -> None:
        """Go on with another model, or a conversation that was saved; this one is forgotten.

        Raises:
            TampuError: when it cannot be loaded; all is as it was.
        """
        known = self.desk.change(name, lambda known: _needs(known.prepared.parameters))
        self._take_over(known)

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
        with closing(self._parts(question)) as parts:
            try:
                for part in parts:
                    if isinstance(part, Content):
                        said.append(part.text)
                    yield part
            finally:
                self._reading = None
                if said:
                    answer = {"role": "assistant", "content": "".join(said)}
                    self.messages += [question, answer]

    def _parts(self, question: dict[str, Any]) -> Generator[Thinking | Content]:
        options = self._options()
        with self.desk.model(self.needs) as loaded:
            parser = None
            if loaded.prompts is None:
                text = question["content"]
                prompt: Any = f"{self.system}\n\n{text}" if self.system else text
                grammar = grammar_of(self.format)
            else:
                built = loaded.prompts.build(
                    loaded.model.see(self._messages(question)),
                    limit=loaded.model.context - 1,
                    think=self.think,
                )
                prompt, style = built.tokens, loaded.prompts.style
                parser = style.parser(thinks=built.begins_thought)
                options = msgspec.structs.replace(options, shown=style.markers)
                grammar = self._grammar(loaded, begins_thought=built.begins_thought)
            values = msgspec.structs.asdict(options) | {"grammar": grammar}
            self._reading = reading = loaded.model.stream(prompt, **values)
            with closing(reading):
                for event in reading:
                    if isinstance(event, Done):
                        self.usage = event.usage
                    elif parser is None:
                        yield Content(event.text)
                    else:
                        yield from _told(parser.feed(event.text))
                yield from _told(parser.finish() if parser else [])

    def _messages(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages, question]

    def _grammar(self, loaded: Loaded, *, begins_thought: bool) -> Any:
        if self.format is None:
            return None
        style = loaded.prompts.style if loaded.prompts else None
        prompt = ChatPrompt(messages=(), think=self.think) if style else TextPrompt("")
        return form_grammar(
            Form(format=self.format),
            prompt,
            style,
            loaded.model.tokenizer,
            begins_thought=begins_thought,
        )

    def _options(self) -> GenerateOptions:
        return generate_options(self.parameters, self.known.info)

    def _take_over(self, known: Known) -> None:
        """Begin as the model says that conversations begin."""
        self.system = known.prepared.system
        self.parameters = dict(known.prepared.parameters)
        self.messages = [{**message} for message in known.prepared.messages]
        self.usage = None


def _needs(parameters: Mapping[str, Any]) -> Needs:
    return Needs(
        context=parameters.get("num_ctx"),
        threads=parameters.get("num_thread") or None,
        layers=parameters.get("num_gpu"),
        main=parameters.get("main_gpu"),
        mapped=parameters.get("use_mmap"),
    )


def _told(parts: Sequence[Any]) -> list[Thinking | Content]:
    """Return the parts that a reader is shown; without tools there are no others."""
    return [part for part in parts if isinstance(part, Thinking | Content)]


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
