"""A model without weights in the worker's frame: what it does is what its prompt says.

Run as a program it is a model's process: `python fake_model.py --socket FD`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tampu.chat.prompt import PromptBuilder
from tampu.chat.template import ChatTemplate
from tampu.engine.backend import Backend, ModelFacts
from tampu.engine.handlers import TEXT
from tampu.engine.handlers.embed import embedded_tokens, result, sized
from tampu.engine.handlers.generate import Generation
from tampu.engine.request_builder import RequestBuilder
from tampu.engine.requests import Embed, Embedded, Generate
from tampu.errors import LoadCancelledError, ModelFileError
from tampu.runner.events import Done, Failed, FinishReason, TextDelta, TokenLogprob, Usage
from tampu.worker.worker import Worker


class Characters:
    """One token per character."""

    bos = None
    begin_text = ""
    adds_bos = False
    vocabulary_size = 0x110000

    def decode(self, ids: Any) -> str:
        return "".join(map(chr, ids))

    def encode(self, text: str, **_: object) -> list[Any]:
        return list(map(ord, text))

    def encode_pieces(self, pieces: Any, **_: bool) -> list[Any]:
        return [ord(character) for text, _ in pieces for character in text]

    def token_text(self, id: Any) -> str:
        return chr(id)

    def token_bytes(self, id: Any) -> bytes:
        return chr(id).encode()


class Sequence:
    """A sequence that is computed."""

    progress = (0, 0)
    keys = np.empty(0, np.int32)

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


def generate(model: FakeModel, request: Generate) -> Generation:
    return Generation(model.requests, model.submit, request)


def embed(model: FakeModel, request: Embed) -> Embedded:
    texts, dropped = embedded_tokens(model.requests, request)
    vectors = np.array([[1.0, sum(text)] for text in texts], np.float32)
    return result(sized(vectors, request), sum(map(len, texts)), dropped)


class FakeModel(Backend):
    """Says its prompt again, a character at a time, unless the prompt is one of its orders."""

    handlers: ClassVar[Any] = {**TEXT, Generate: generate, Embed: embed}
    unsupported = "it is a fake"
    is_prepared = False
    cause = ""
    since_s = 0.0

    def __init__(
        self, prompts: Any = None, tokenizer: Any = None, context: int = 100, facts: Any = None
    ) -> None:
        given: Any = tokenizer or Characters()
        self.requests = RequestBuilder(given, context, lambda image: image, prompts)
        self._facts = facts or ModelFacts(context, 1000)

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    def submit(self, prompt: Any, _options: object, sink: Any) -> Sequence:
        request = Sequence()
        text = "".join(map(chr, prompt))
        threading.Thread(target=self._run, args=(text, request, sink), daemon=True).start()
        return request

    def warm_up(self) -> None:
        self.is_prepared = True

    def hang_reason(self, patience_s: Any) -> str:
        return self.cause if time.monotonic() > self.since_s + patience_s else ""

    def _run(self, text: str, request: Sequence, sink: Any) -> None:
        order, _, argument = text.partition(" ")
        if order == "prepared":
            text = str(self.is_prepared)
        if order == "exit":
            os.write(1, f"saying {argument}\x1b[31m\n".encode())
            os._exit(7)
        if order == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if order == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)
        if order == "stick":
            self.cause, self.since_s = argument, time.monotonic()
            return
        if order == "lost":
            sink(Failed("RunnerDiedError", argument))
            return
        if order == "fail":
            sink(Failed("ComputeError", argument))
            return
        while order == "forever" and not request.cancelled.is_set():
            sink(TextDelta("x", (120,)))
            time.sleep(0.01)
        for character in "" if request.cancelled.is_set() else text:
            token = ord(character)
            logprob = TokenLogprob(token, -1.0, token_bytes=character.encode())
            sink(TextDelta(character, (token,), (logprob,)))
        reason: FinishReason = "cancelled" if request.cancelled.is_set() else "stop"
        sink(Done(reason, Usage(prompt_tokens=len(text), generated_tokens=len(text))))


@contextmanager
def load_fake(load: Any, progress: Any, cancelled: Any) -> Iterator[FakeModel]:
    match Path(load.path).name:
        case "damaged":
            raise ModelFileError("magic", "is not GGUF")
        case "gpu":
            os.write(1, b"terminate called after throwing 'vk::OutOfDeviceMemoryError'\n")
            os.abort()
        case "hangs":
            time.sleep(10**6)
        case "slow":
            for step in range(1000):
                progress(step / 1000)
                if cancelled():
                    raise LoadCancelledError("cancelled")
                time.sleep(0.01)
    progress(1.0)
    template = ChatTemplate("{{ messages[-1].content }}")
    prompts = PromptBuilder(template, Characters()) if "chat" in load.path else None
    yield FakeModel(prompts, facts=ModelFacts(load.options.context, 1000))


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[-1])) as connection:
        Worker(connection, load_fake).run()
