"""A model without a process: what it says is what its prompt asks for."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from tampu.chat.output import chat_format
from tampu.chat.output.message_parser import ChatFormat
from tampu.engine.chat import OutputParser
from tampu.engine.estimate import DeviceEstimate, MemoryEstimate
from tampu.engine.prompts import ChatPrompt, FIMPrompt, TextPrompt, TokensPrompt
from tampu.engine.questions import Decision, Decisions
from tampu.errors import ComputeError, OutOfMemoryError, RunnerDiedError
from tampu.runner.events import Done, TextDelta, TokenLogprob, Usage
from tampu.worker.protocol import Decoded, Embedded, Encoded, PromptProcessed, Ready

USAGE = Usage(
    prompt_tokens=3, cached_tokens=1, prompt_ns=5, generated_tokens=2, generated_ns=7, total_ns=12
)


class FakeRunner:
    """Says the text of its prompt word by word; some words are orders."""

    def __init__(self, options: Any, style: ChatFormat = None) -> None:
        self.ready = Ready(options.context, 1000)
        self.options = options
        self.style = style or chat_format("")
        self.is_alive = True
        self.cause = ""
        self.requests = []
        self.streamed = []
        self.cancelled = 0
        self.running = 0
        self.observed = 0
        self.pid = 0

    async def generate(
        self, prompt: str, options: Any, _structure: Any = None, *, is_streamed: bool = True
    ):
        self.requests.append((prompt, options))
        self.streamed.append(is_streamed)
        match prompt:
            case TextPrompt(text=text) | FIMPrompt(prefix=text):
                pass
            case TokensPrompt(tokens=tokens):
                text = " ".join(map(str, tokens))
            case _:
                text = prompt.messages[-1]["content"]
        self.running += 1
        try:
            output = OutputParser()
            if isinstance(prompt, ChatPrompt):
                parser = self.style.parser(prompt.tools or (), streams_calls=True)
                output = OutputParser(parser)
            async for event in self._say(text, options):
                if isinstance(event, PromptProcessed):
                    yield event
                    continue
                for part in output.feed(event):
                    yield part
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _say(
        self, text: str, options: Any
    ) -> AsyncIterator[PromptProcessed | TextDelta | Done]:
        if text == "refuse":
            raise ComputeError("logits are NaN in /home/user/models/x.gguf")
        yield PromptProcessed((1, 2, 3))
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

    async def embed(self, inputs: Any, *, truncate: Any = True, **_: Any) -> Embedded:
        self.requests.append((inputs, truncate))
        rows = np.array([[3.0, 4.0, 0.0, float(index)] for index in range(len(inputs))], "<f4")
        return Embedded(rows.tobytes(), 4, 2 * len(inputs))

    async def encode(
        self,
        prompt: str,
        *,
        add_special: Any = True,
        parse_special: Any = True,
        **_: object,
    ) -> Encoded:
        self.requests.append((prompt, (add_special, parse_special)))
        ids, lengths = (struct.pack("<2i", *pair) for pair in ((104, 233), (1, 1)))
        return Encoded(2, ids, b"h\xc3", lengths)

    async def decode(self, tokens: list[int]) -> Decoded:
        return Decoded("".join(map(chr, tokens)))

    async def check_format(self, wanted: object) -> None:
        self.requests.append((wanted, None))

    async def decide(self, prompt: Any, questions: Any, _lora: Any = None) -> Decisions:
        self.requests.append((prompt, questions))
        return Decisions(tuple(Decision((0.75, 0.25), 0.5) for _ in questions), 9, 3)

    async def rerank(
        self, query: Any, documents: Any, instruction: Any, _lora: Any = None
    ) -> Decisions:
        return await self.decide((query, instruction), documents)

    async def estimate_memory(self, _path: Any, options: Any) -> MemoryEstimate:
        share = DeviceEstimate("CPU.0", 5, 4, 3, 100)
        return MemoryEstimate(options.context, options.slots, (share,), fits=True)

    async def observe(self) -> None:
        self.observed += 1

    async def close(self) -> None:
        self.is_alive = False


class FakeStart:
    """Loads fake models, and counts."""

    def __init__(self) -> None:
        self.runners = []
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
        if sum(runner.ready.memory_bytes for runner in alive) + 1000 > self.memory:
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
