"""A conversation's partner in this program: the prompt is made here, and an engine answers."""

from __future__ import annotations

import queue
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.chat.output import Content, Thinking
from tampu.cli.repl.backend import Asked, Known, Reply
from tampu.cli.repl.current_model import Desk, Needs
from tampu.engine.completion import Stream
from tampu.errors import ContextLengthError
from tampu.runner.events import Done, Event, ReasoningDelta, TextDelta, Usage
from tampu.runner.request import GenerateOptions, given_options
from tampu.settings.settings import Settings
from tampu.store.modelfile import Modelfile
from tampu.worker.protocol import ChatPrompt, StructuredOutput


class OwnModel:
    """The model on a desk."""

    def __init__(self, desk: Desk, settings: Settings) -> None:
        """Answer by the desk's model.

        Args:
            desk: with the model.
            settings: of the user: where models are saved, when repeating answers end.
        """
        self._desk = desk
        self._settings = settings

    @property
    def known(self) -> Known:
        """The model."""
        return self._desk.known

    def answer(self, asked: Asked) -> Reply:
        """Begin an answer."""
        return OwnReply(self._desk, asked, self._settings.max_repeated_tokens or None)

    def load(self, parameters: Mapping[str, Any]) -> None:
        """Have the model in memory, as these parameters want it."""
        with self._desk.model(needs_of(parameters)):
            pass

    def change(self, name: str) -> Known:
        """Mean another model, and load it; if that fails all is as it was."""
        return self._desk.change(name, lambda known: needs_of(known.prepared.parameters))

    def embed(
        self, text: str, parameters: Mapping[str, Any], *, truncate: bool
    ) -> npt.NDArray[np.float32]:
        """Return the embedding of a text; one that is too long is cut if `truncate`."""
        with self._desk.model(needs_of(parameters)) as loaded:
            context = loaded.model.context
            tokens = loaded.model.tokenizer.encode(text)
            if len(tokens) > context and not truncate:
                raise ContextLengthError(
                    f"the text has {len(tokens)} tokens, the context {context}: shorten it, or "
                    "allow truncation"
                )
            [vector] = loaded.model.embed([tokens[:context]])
        found: npt.NDArray[np.float32] = vector
        return found

    def save(self, name: str, modelfile: Modelfile) -> None:
        """Make a model of this one in the store of this machine."""
        from tampu.cli.create import told
        from tampu.store.create import CreateSpec, create
        from tampu.store.library import Library
        from tampu.store.names import ModelName

        spec = CreateSpec(modelfile=modelfile, folder=Path.cwd())
        library = Library.from_settings(self._settings)
        with told() as report:
            create(library, ModelName.parse(name), spec, report)

    def print_list(self, prefix: str) -> None:
        """Print the models of this machine's stores whose names begin so."""
        from tampu.cli.listing import print_list

        print_list(prefix, self._settings, as_json=False)

    def take_load_ns(self) -> int:
        """Return how long loading took since this was asked last, in nanoseconds."""
        return self._desk.take_load_ns()

    def close(self) -> None:
        """Put the model away."""
        self._desk.close()


class OwnReply:
    """An answer that the engine of this program gives."""

    def __init__(self, desk: Desk, asked: Asked, max_repeated_tokens: int | None) -> None:
        self.usage: Usage | None = None
        self._max_repeated_tokens = max_repeated_tokens
        self._desk = desk
        self._asked = asked
        self._reading: Stream | None = None
        self._parts = self._run()

    def __iter__(self) -> OwnReply:
        return self

    def __next__(self) -> Thinking | Content:
        return next(self._parts)

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are read, and how many it has; (0, 0) before that."""
        return (0, 0) if self._reading is None else self._reading.progress

    def close(self) -> None:
        """Want no more of it."""
        self._parts.close()

    def _run(self) -> Generator[Thinking | Content]:
        asked = self._asked
        options = GenerateOptions(**given_options(asked.parameters))
        with self._desk.model(needs_of(asked.parameters)) as loaded:
            options = msgspec.structs.replace(options, truncate=True)
            form = None if asked.format is None else StructuredOutput(format=asked.format)
            if options.max_tokens is None and form is None:
                options = msgspec.structs.replace(
                    options, max_repeated_tokens=self._max_repeated_tokens
                )
            request = loaded.requests.build(_chat_prompt(asked), options, form)
            events: queue.SimpleQueue[Event] = queue.SimpleQueue()
            handle = loaded.model.submit(request.tokens, request.options, events.put)
            self._reading = reading = Stream(events, handle, request.output)
            with closing(reading):
                for event in reading:
                    match event:
                        case Done(usage=usage):
                            self.usage = usage
                        case ReasoningDelta(text=text):
                            yield Thinking(text)
                        case TextDelta(text=text):
                            yield Content(text)


def needs_of(parameters: Mapping[str, Any]) -> Needs:
    """Return what a model is loaded with for these parameters."""
    return Needs(
        context=parameters.get("num_ctx"),
        threads=parameters.get("num_thread") or None,
        layers=parameters.get("num_gpu"),
        main=parameters.get("main_gpu"),
        mapped=parameters.get("use_mmap"),
    )


def _chat_prompt(asked: Asked) -> ChatPrompt:
    """Return the whole conversation with pictures in place of photos."""
    system: list[dict[str, Any]] = []
    if asked.system:
        system = [{"role": "system", "content": asked.system}]
    messages = [
        {**message, "images": [photo.picture for photo in message["images"]]}
        if message.get("images")
        else dict(message)
        for message in asked.messages
    ]
    text = asked.messages[-1]["content"]
    plain = f"{asked.system}\n\n{text}" if asked.system else text
    return ChatPrompt(messages=(*system, *messages), think=asked.think, plain=plain)
