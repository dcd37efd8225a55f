"""What a second of sound costs does not grow with the time spoken: counted, not measured."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support.checkpoints import make_checkpoint
from support.sounds import RATE, sound
from support.waiting import until

from tampu import Engine
from tampu.audio import Samples
from tampu.convert import convert
from tampu.server.features.speech.realtime.input_buffer import LONGEST_S, PIECE, InputBuffer, Opened
from tampu.server.features.speech.realtime.transcriber import (
    Completed,
    Delta,
    Failed,
    Heard,
    Transcriber,
)

SECONDS = 70
WINDOW_TOKENS = 26  # of two seconds, which this model encodes at once
OVERLAP_S = LONGEST_S / 3  # behind a cut: heard as the beginning of the next utterance
AROUND = 30  # tokens of the prompt behind the sound, and of what was said already


@dataclass(frozen=True)
class Cost:
    """What one transcript took: the whole prompt, what of it was computed, and encodings."""

    prompt: int
    computed: int
    encoded: int


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("model")
    convert(make_checkpoint("qwen3_asr", folder / "checkpoint"), folder / "model.gguf", "F32")
    with Engine.load(folder / "model.gguf") as engine:
        yield engine


async def test_a_second_costs_the_same_after_a_minute(engine: Engine) -> None:
    costs: list[Cost] = []
    ended: list[Completed | Failed] = []

    def ask(samples: Samples, begun: str) -> Heard:
        stats = engine.runner.stats
        before = stats.steps - stats.batches
        messages = [{"role": "user", "content": "Transcribe.", "audio": [samples]}]
        if begun:
            messages.append({"role": "assistant", "content": begun})
        found = engine.chat(messages, max_tokens=4, temperature=0)
        usage = found.usage
        encoded = stats.steps - stats.batches - before
        costs.append(Cost(usage.prompt_tokens, usage.prompt_tokens - usage.cached_tokens, encoded))
        return Heard(found.text, usage)

    async def hear(samples: Samples, begun: str, _: str) -> Heard:
        return await asyncio.to_thread(ask, samples, begun)

    async def report(change: Delta | Completed | Failed) -> None:
        if not isinstance(change, Delta):
            ended.append(change)

    transcriber, buffer = Transcriber(hear, report), InputBuffer(None)
    running = asyncio.create_task(transcriber.run())
    spoken, expected, first = sound(SECONDS), 0, [0]
    for second in range(SECONDS):
        for start in range(second * RATE, (second + 1) * RATE, PIECE):
            for change in buffer.push(spoken[start : start + PIECE]):
                if isinstance(change, Opened):
                    await transcriber.add(change.utterance)
                else:  # it is transcribed as a whole, then begins the next one
                    expected += 1
                    first.append(expected)
        expected += 1
        await until(lambda: len(costs) == expected, "a transcript")  # noqa: B023
    running.cancel()
    assert len(first) >= 3
    assert all(isinstance(each, Completed) for each in ended)
    assert max(cost.prompt for cost in costs) > 20 * WINDOW_TOKENS / 2
    later = [cost for number, cost in enumerate(costs) if number not in first]
    assert max(cost.encoded for cost in later) <= 2
    assert max(cost.computed for cost in later) <= 2 * WINDOW_TOKENS + AROUND
    assert max(costs[number].encoded for number in first) <= 1 + OVERLAP_S / 2
