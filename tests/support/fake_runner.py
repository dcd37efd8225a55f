"""A model without a process: what it says is what its prompt asks for."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from tampu.chat.output import chat_format
from tampu.chat.output.message_parser import ChatFormat
from tampu.engine.backend import ModelFacts
from tampu.engine.events import Started, joined
from tampu.engine.format_check import CheckFormat, FormatChecked
from tampu.engine.handlers.embed import result, sized
from tampu.engine.management import DeviceEstimate, EstimateMemory, MemoryEstimate
from tampu.engine.output import OutputParser
from tampu.engine.prompts import ChatPrompt, FIMPrompt, TextPrompt, TokensPrompt
from tampu.engine.questions import Decision, Decisions
from tampu.engine.requests import (
    Decide,
    Decided,
    Decode,
    Decoded,
    Embed,
    Encode,
    Encoded,
    Generate,
    Rerank,
)
from tampu.errors import ComputeError, OutOfMemoryError, RunnerDiedError, UnsupportedRequestError
from tampu.runner.events import BatchCounts, Done, TextDelta, TokenLogprob, Usage

USAGE = Usage(
    prompt_tokens=3, cached_tokens=1, prompt_ns=5, generated_tokens=2, generated_ns=7, total_ns=12
)


class FakeRunner:
    """Says the text of its prompt word by word; some words are orders."""

    def __init__(self, options: Any, style: ChatFormat = None) -> None:
        self.facts = ModelFacts(options.context, 1000)
        self.options = options
        self.style = style or chat_format("")
        self.is_alive = True
        self.cause = ""
        self.requests: list[tuple[Any, Any]] = []
        self.streamed: list[bool] = []
        self.computed: Callable[[BatchCounts], None] = lambda _: None
        self.cancelled = 0
        self.running = 0
        self.observed = 0
        self.pid = 0

    async def run(self, request: Any) -> Any:
        if isinstance(request, Generate):
            async for event in self._generated(request):
                yield event
            return
        yield self._result(request)

    async def ask(self, request: Any) -> Any:
        return joined([reply async for reply in self.run(request)])

    async def _generated(self, request: Generate) -> Any:
        prompt: Any = request.prompt
        self.requests.append((prompt, request.options))
        self.streamed.append(request.is_streamed)
        match prompt:
            case TextPrompt(text=text) | FIMPrompt(prefix=text):
                pass
            case TokensPrompt(tokens=tokens):
                text = " ".join(map(str, tokens))
            case _:
                text = prompt.messages[-1]["content"]
        self.running += 1
        try:
            parser = None
            if isinstance(prompt, ChatPrompt):
                parser = self.style.parser(prompt.tools or (), streams_calls=True)
            output = OutputParser(parser, max_calls=request.max_calls, choice=request.choice)
            async for event in self._say(text, request.options):
                for part in output.feed(event):
                    yield part
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    def _result(self, request: Any) -> Any:
        match request:
            case Embed(inputs=inputs):
                self.requests.append((inputs, request.truncate))
                rows = [[3.0, 4.0, 0.0, float(index)] for index in range(len(inputs))]
                vectors = np.array(rows, np.float32).reshape(-1, 4)
                return result(sized(vectors, request), 2 * len(inputs))
            case Encode(prompt=prompt):
                self.requests.append((prompt, (request.add_special, request.parse_special)))
                ids, lengths = (struct.pack("<2i", *pair) for pair in ((104, 233), (1, 1)))
                return Encoded(2, ids, b"h\xc3", lengths)
            case Decode(tokens=tokens):
                return Decoded("".join(map(chr, tokens)))
            case CheckFormat(format=wanted):
                self.requests.append((wanted, None))
                return FormatChecked()
            case Decide(prompt=prompt, questions=asked):
                self.requests.append((prompt, asked))
                return self._decided(len(asked))
            case Rerank(documents=documents):
                self.requests.append(((request.query, request.instruction), documents))
                return self._decided(len(documents))
            case EstimateMemory(options=options):
                share = DeviceEstimate("CPU.0", 5, 4, 3, 100)
                return MemoryEstimate(options.context, options.slots, (share,), fits=True)
        self.observed += 1
        raise UnsupportedRequestError("it is a fake")

    def _decided(self, count: int) -> Decided:
        return Decided(Decisions(tuple(Decision((0.75, 0.25), 0.5) for _ in range(count)), 9, 3))

    async def _say(self, text: str, options: Any) -> AsyncIterator[Started | TextDelta | Done]:
        if text == "refuse":
            raise ComputeError("logits are NaN in /home/user/models/x.gguf")
        yield Started((1, 2, 3))
        words = text.split(" ")
        for index, word in enumerate(words):
            if word == "die":
                self.is_alive = False
                self.cause = "signal SIGKILL"
                raise RunnerDiedError("the process of model 'm' has ended: signal SIGKILL")
            while word == "forever":
                yield TextDelta("x")
                await asyncio.sleep(0.001)
            if word == "wait":
                await asyncio.sleep(3600)
            if word == "pause":
                await asyncio.sleep(0.05)
            piece = word if index == 0 else f" {word}"
            top, texts = ((97, -0.5), (255, -1.0)), (b"a", b"\xff")
            score = TokenLogprob(10 + index, -0.5, top, piece.encode(), texts)
            yield TextDelta(piece, (10 + index,), (score,) if options.logprobs else ())
            await asyncio.sleep(0)
        yield Done("stop", USAGE)

    async def close(self) -> None:
        self.is_alive = False


class FakeStart:
    """Loads fake models, and counts."""

    def __init__(self) -> None:
        self.runners: list[tuple[str, FakeRunner]] = []
        self.error: Exception | None = None
        self.delay_s = 0.0
        self.begun = 0
        self.go_on: asyncio.Event | None = None  # loads wait for it
        self.memory = 1_000_000

    async def __call__(self, entry: Any, options: Any) -> Any:
        self.begun += 1
        await asyncio.sleep(self.delay_s)
        if self.go_on is not None:
            await self.go_on.wait()
        if self.error is not None:
            raise self.error
        alive = [runner for _, runner in self.runners if runner.is_alive]
        if sum(runner.facts.memory_bytes for runner in alive) + 1000 > self.memory:
            raise OutOfMemoryError("it does not fit")
        info, parser = entry.info, options.parser
        runner = FakeRunner(options, chat_format(info.template, info.architecture, parser))
        self.runners.append((entry.name, runner))
        return runner


def lines_of(response: Any) -> list[Any]:
    """Return the objects of a streamed answer, and check its form."""
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.content.endswith(b"\n")
    return [json.loads(line) for line in response.content.decode().splitlines()]


def is_duration(value: Any) -> bool:
    return isinstance(value, int) and value > 0 and math.isfinite(value)
