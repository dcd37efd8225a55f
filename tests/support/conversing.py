"""A conversation without a model and without a terminal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tampu.chat.output import ChatFormat
from tampu.chat.output.message_parser import Tags
from tampu.chat.prompt import BuiltPrompt
from tampu.cli.repl.backend import Known
from tampu.cli.repl.current_model import Loaded
from tampu.engine.chat import RequestBuilder
from tampu.errors import ModelNotFoundError, RequestError
from tampu.runner.events import Done, Failed, TextDelta, Usage
from tampu.store.catalog import Prepared

USAGE = Usage(
    prompt_tokens=26, prompt_ns=130_000_000, generated_tokens=298, generated_ns=4_700_000_000,
    total_ns=4_900_000_000,
)  # fmt: skip
THOUGHTS = ChatFormat(name="thoughts", thought=Tags("<think>", "</think>"))


class Interrupt:
    """A text at which Ctrl-C is typed."""

    def __radd__(self, _):
        raise KeyboardInterrupt


class FakeHandle:
    """A request; its answer is whole from the beginning."""

    progress = (26, 26)

    def __init__(self, engine):
        self.engine = engine

    def cancel(self):
        self.engine.cancelled += 1


class NoMarkers:
    """A tokenizer without control tokens."""

    def encode(self, text, **_):
        return [*text.encode()]

    def token_text(self, token):
        return chr(token)

    def control_tokens(self, _):
        return {}


class FakeEngine:
    """Answers with a few words, or with what it is told to do."""

    context = 100
    tokenizer = NoMarkers()

    def __init__(self, info):
        self.info = info
        self.asked = []
        self.cancelled = 0

    def prepare_images(self, messages):
        return messages

    def embed(self, texts):
        return np.ones((len(texts), 4), np.float32) / 2

    def submit(self, prompt, options, sink):
        text = bytes(prompt).decode() if isinstance(prompt[0], int) else prompt[-1]["content"]
        self.asked.append((prompt, options))
        if text == "refuse":
            raise RequestError("cannot")
        for event in self.events(text):
            sink(event)
        return FakeHandle(self)

    def events(self, text):
        if text == "think":
            yield TextDelta("<think>I am ")
            yield TextDelta("not sure.</think>Well: ")
        yield TextDelta("I ")
        if text == "fail":
            yield Failed("ComputeError", "NaN")
        if text == "interrupt":
            yield TextDelta(Interrupt())
        yield TextDelta("say\x1b[2J.")
        yield Done("stop", USAGE)


@dataclass
class FakePrompts:
    """Leaves a conversation as it is."""

    style: ChatFormat = THOUGHTS
    thoughts: list = field(default_factory=list)

    def build(self, messages, *, limit, think=None, truncate, **_):
        assert (limit, truncate) == (99, True)
        self.thoughts.append(think)
        return BuiltPrompt([*messages])


class FakeShelf:
    """Has models of some names; `loads` are those that were loaded, with what they needed."""

    def __init__(self, info, engine, prompts, **prepared):
        self.known = {
            name: Known(name, replace(info, capabilities=capabilities), Prepared(info.path, **more))
            for name, capabilities, more in (
                ("m", info.capabilities, {}),
                ("clever", ("completion", "vision", "thinking"), {}),
                ("saved", info.capabilities, prepared),
            )
        }
        self.engine = engine
        self.prompts = prompts
        self.loads = []
        self.freed = 0
        self.refusals = []

    def find(self, name):
        if name not in self.known:
            raise ModelNotFoundError(f"model {name!r} not found")
        return self.known[name]

    def load(self, known, needs):
        if self.refusals:
            raise self.refusals.pop(0)
        self.loads.append((known.name, needs))

        def free():
            self.freed += 1

        return Loaded(self.engine, RequestBuilder(self.engine, self.prompts), free)


class Script:
    """Messages that are typed; exceptions are raised."""

    def __init__(self, *messages):
        self.messages = list(messages)
        self.is_kept = True

    def read(self):
        message = self.messages.pop(0) if self.messages else EOFError()
        if isinstance(message, BaseException):
            raise message
        return message

    def keep_history(self, *, is_kept):
        self.is_kept = is_kept
