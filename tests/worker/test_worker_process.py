"""A model's process and the server's side of it: requests, cancelling, and every way to die."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from support import fake_model, stuck_model
from support.endless import make_endless_model
from support.fork_server import FORK_SERVER
from support.hidden import HIDDEN
from support.waiting import PATIENCE_S, until

from tampu.engine.events import Started
from tampu.engine.load_options import LoadOptions
from tampu.engine.prompts import ChatPrompt, TextPrompt
from tampu.engine.requests import Embed, Encode, Generate
from tampu.errors import (
    ComputeError,
    ContextLengthError,
    ModelFileError,
    OutOfMemoryError,
    RequestError,
    RequestNotStartedError,
    RunnerDiedError,
)
from tampu.runner.events import Done, TextDelta, TokenLogprob, to_error
from tampu.runner.generate_options import GenerateOptions
from tampu.worker.client import WorkerProcess
from tampu.worker.exit_cause import describe_exit
from tampu.worker.frames import take_frames
from tampu.worker.output_queue import joined
from tampu.worker.protocol import Answer
from tampu.worker.start import start_worker

pytestmark = [pytest.mark.server, pytest.mark.slow]

PROGRAM = (sys.executable, str(Path(fake_model.__file__)))
OPTIONS = GenerateOptions()


# What a death may take to be told, in times that a process takes to start, measured beside it.
TOLD = 3.0


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop that can be made to believe that it stood still."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s


def run(test: Coroutine[Any, Any, Any], patience_s: float = PATIENCE_S) -> None:
    """Run an async test; one that does not end fails."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(asyncio.wait_for(test, patience_s))


async def start(path: str = "model", **options: Any) -> WorkerProcess:
    environment = {"PATH": os.defpath}
    return await start_worker(
        Path(path),
        LoadOptions(),
        name="m",
        environment=environment,
        fork_server=FORK_SERVER,
        program=PROGRAM,
        **options,
    )


async def begun(worker: WorkerProcess, text: str) -> asyncio.Task[Any]:
    """Ask for an answer; return what collects it, once it has begun."""
    events = worker.run(Generate(TextPrompt(text), OPTIONS))
    first = await anext(events)

    async def rest() -> list[Any]:
        return [first, *[event async for event in events]]

    return asyncio.create_task(rest())


async def collect(
    worker: WorkerProcess, text: str, options: GenerateOptions = OPTIONS
) -> list[Any]:
    return [event async for event in worker.run(Generate(TextPrompt(text), options))]


def joined_piece(pieces: list[TextDelta]) -> Any:
    """Return as one what may come in any number of pieces."""
    [answer] = joined(Answer(1, piece) for piece in pieces)
    return answer.reply


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


async def test_a_request_yields_its_events() -> None:
    seen: list[Any] = []
    worker = await start(progress=seen.append)
    assert seen == [1.0]
    assert worker.facts.context == 4096
    events = await collect(worker, "hé")
    await worker.close()
    logprobs = tuple(TokenLogprob(ord(c), -1.0, (), c.encode()) for c in "hé")
    pieces = [event for event in events if isinstance(event, TextDelta)]
    assert events == [Started((104, 233)), *pieces, events[-1]]
    assert joined_piece(pieces) == TextDelta("hé", (104, 233), logprobs)
    assert isinstance(events[-1], Done)
    assert not is_running(worker.pid)


async def test_concurrent_requests_do_not_mix() -> None:
    worker = await start()
    texts = [f"text {i}" for i in range(20)]
    results = await asyncio.gather(*(collect(worker, text) for text in texts))
    await worker.close()
    said = ["".join(e.text for e in events if isinstance(e, TextDelta)) for events in results]
    assert said == texts


async def test_a_conversation_goes_through_the_models_template() -> None:
    worker = await start("chat")
    prompt = ChatPrompt(messages=({"role": "user", "content": "hi"},), before=(65,))
    events = [event async for event in worker.run(Generate(prompt, OPTIONS))]
    await worker.close()
    assert events[0] == Started((65, 104, 105))


async def test_a_model_without_a_template_refuses_messages_unless_there_is_a_plain_prompt() -> None:
    worker = await start()
    messages = ({"role": "user", "content": "hi"},)
    with pytest.raises(RequestError, match="no chat template"):
        await anext(worker.run(Generate(ChatPrompt(messages=messages), OPTIONS)))
    plain = ChatPrompt(messages=messages, plain="yo")
    assert await anext(worker.run(Generate(plain, OPTIONS))) == Started((121, 111))
    await worker.close()


async def test_an_iterator_that_is_closed_cancels_its_request() -> None:
    worker = await start()
    events = worker.run(Generate(TextPrompt("forever"), OPTIONS))
    assert await anext(events) == Started(tuple(map(ord, "forever")))
    await anext(events)
    await events.aclose()
    assert joined_piece((await collect(worker, "ok"))[1:-1]).text == "ok"
    await worker.close()


async def test_an_error_of_the_request_is_raised_with_its_class_and_leaves_the_model_alive() -> (
    None
):
    worker = await start()
    with pytest.raises(ComputeError, match="NaN"):
        await collect(worker, "fail NaN")
    assert worker.is_alive
    await worker.close()


async def test_a_damaged_model_is_refused_and_its_process_ends() -> None:
    with pytest.raises(ModelFileError, match="magic: is not GGUF"):
        await start("damaged")


@pytest.mark.parametrize(
    ("order", "cause"), [("kill now", "signal SIGKILL"), ("exit bye", r"exit code 7: saying bye")]
)
async def test_a_crash_ends_all_requests_with_its_cause(order: str, cause: str) -> None:
    begin = time.monotonic()
    worker = await start(hang_s=10**6)  # so that nothing tells of it but the death itself
    start_s = time.monotonic() - begin
    other = await begun(worker, "forever")
    begin = time.monotonic()
    with pytest.raises(RunnerDiedError, match=cause):
        await collect(worker, order)
    with pytest.raises(RunnerDiedError, match=cause):
        await other
    assert time.monotonic() - begin < TOLD * start_s
    assert not worker.is_alive
    with pytest.raises(RunnerDiedError, match=cause):
        await collect(worker, "hello")
    await worker.close()


@pytest.mark.parametrize("line", ["vk::OutOfDeviceMemoryError", "CUDA error: out of memory"])
async def test_a_gpu_that_runs_out_of_memory_while_computing_is_told(line: str) -> None:
    """Its driver's code ends the process; who asks later gets another one."""

    worker = await start()
    with pytest.raises(OutOfMemoryError, match=f"too little memory.*{line}.*num_gpu"):
        await collect(worker, f"exit {line}")
    assert not worker.is_alive
    with pytest.raises(RequestNotStartedError, match=line):
        await collect(worker, "hello")
    await worker.close()


async def test_a_gpu_that_runs_out_of_memory_while_loading_is_told() -> None:
    with pytest.raises(OutOfMemoryError, match=r"too little memory.*SIGABRT.*num_gpu"):
        await start("gpu")


async def test_a_worker_killed_from_outside_is_detected() -> None:
    worker = await start()
    os.kill(worker.pid, signal.SIGABRT)
    with pytest.raises(RunnerDiedError, match="SIGABRT"):
        await collect(worker, "forever")
    await worker.close()


async def test_loading_without_progress_is_given_up() -> None:
    with pytest.raises(RunnerDiedError, match=r"made no progress for 0\.5 s"):
        await start("hangs", stall_s=0.5)


async def test_loading_can_be_cancelled() -> None:
    seen: list[Any] = []
    loading = asyncio.create_task(start("slow", progress=seen.append))
    await until(lambda: seen, "loading goes on")
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading


async def test_running_requests_end_when_the_model_is_closed() -> None:
    worker = await start()
    request = await begun(worker, "forever")
    await worker.close()
    with pytest.raises(RunnerDiedError):
        await request


def test_an_exit_is_described_by_signal_or_code_and_the_last_line() -> None:
    assert describe_exit(-11, []) == "signal SIGSEGV"
    assert describe_exit(-9, []).startswith("signal SIGKILL (killed from outside")
    assert describe_exit(-6, ["a", "GGML_ASSERT"]) == "signal SIGABRT: GGML_ASSERT"
    assert describe_exit(3, ["x" * 1000]) == "exit code 3: " + "x" * 500
    assert describe_exit(-99, []) == "signal 99"


def test_an_unknown_kind_of_error_is_still_an_error() -> None:
    assert type(to_error("RequestError", "x")) is RequestError
    assert str(to_error("ModelFileError", "magic: wrong")) == "magic: wrong"
    assert str(to_error("os", "text")) == "text"


async def test_a_text_too_long_to_embed_is_truncated_or_refused() -> None:
    worker = await start()
    found = await worker.ask(Embed((TextPrompt("a" * 200),)))
    assert (found.tokens, found.dropped) == (100, 100)
    with pytest.raises(ContextLengthError, match=r"input\[0\] is too large: 200 tokens > 100"):
        await worker.ask(Embed((TextPrompt("a" * 200),), truncate=False))
    await worker.close()


def test_the_tokens_of_a_long_text_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message of them all would keep both processes from anything else while it is copied."""
    sizes: list[int] = []

    def taken(buffer: bytearray) -> list[bytes]:
        frames = take_frames(buffer)
        sizes.extend(map(len, frames))
        return frames

    async def test() -> None:
        worker = await start()
        text = "hé" * 100_000
        pieces = await worker.ask(Encode(TextPrompt(text), detail="pieces"))
        assert pieces.count == 200_000
        assert pieces.tokens() == [104, 233] * 100_000
        assert pieces.pieces == text.encode()
        assert pieces.lengths == struct.pack("<2i", 1, 2) * 100_000
        assert not pieces.has_more
        await worker.close()

    monkeypatch.setattr("tampu.worker.client.take_frames", taken)
    run(test())
    assert max(sizes) < 1 << 20


async def test_structured_output_is_prepared_when_the_worker_is_idle() -> None:
    worker = await start()
    while joined_piece((await collect(worker, "prepared"))[1:-1]).text != "True":
        await asyncio.sleep(0.05)
    await worker.close()


async def test_a_worker_whose_loop_hangs_is_killed_and_its_requests_fail() -> None:
    worker = await start(hang_s=1.5)
    began = time.monotonic()
    with pytest.raises(RunnerDiedError, match="it hangs: computing a batch"):
        await collect(worker, "stick it hangs: computing a batch")
    assert time.monotonic() - began > 1.5
    await worker.close()


async def test_a_device_that_hangs_is_detected(tmp_path: Path) -> None:
    model = make_endless_model(tmp_path / "checkpoint", tmp_path / "tiny.gguf")

    program = (sys.executable, str(Path(stuck_model.__file__)))
    worker = await start_worker(
        model,
        LoadOptions(context=256, threads=1),
        name="m",
        environment={"PATH": os.defpath} | HIDDEN,
        fork_server=FORK_SERVER,
        program=program,
        hang_s=1.5,
    )
    with pytest.raises(RunnerDiedError, match=r"hung: computing \d+ tokens for"):
        await collect(worker, "hello", GenerateOptions(ignore_eos=True))
    await worker.close()


async def test_truncating_the_file_of_a_loaded_model_is_reported_as_the_cause(
    tmp_path: Path,
) -> None:
    model = make_endless_model(tmp_path / "checkpoint", tmp_path / "tiny.gguf")

    worker = await start_worker(
        model,
        LoadOptions(context=256, threads=1, kernels="off"),
        name="m",
        environment={"PATH": os.defpath} | HIDDEN,
        fork_server=FORK_SERVER,
    )
    os.truncate(model, 0)
    with pytest.raises(RunnerDiedError, match=r"SIGBUS \(the model's file was changed"):
        await collect(worker, "hello")
    await worker.close()


def test_a_blocked_event_loop_does_not_take_its_worker_for_hung() -> None:
    async def test() -> None:
        worker = await start(hang_s=100.0)
        events = worker.run(Generate(TextPrompt("forever"), OPTIONS))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        for _ in range(3):
            loop.skipped_s += 10_000
            for _ in range(20):
                await anext(events)
        assert worker.is_alive
        await events.aclose()
        await worker.close()

    run(test(), patience_s=10**6)  # of the time that it believes in


async def test_a_hung_worker_is_killed_and_its_requests_fail() -> None:
    worker = await start(hang_s=3.0)
    waiting = await begun(worker, "forever")
    with pytest.raises(RunnerDiedError, match="did not respond for 3 s"):
        await collect(worker, "hang")
    with pytest.raises(RunnerDiedError, match="did not respond"):
        await waiting
    assert not worker.is_alive
    await worker.close()
    assert not is_running(worker.pid)


async def test_a_worker_whose_engine_has_failed_is_killed() -> None:
    worker = await start()
    with pytest.raises(RunnerDiedError, match="the loop is gone"):
        await collect(worker, "lost the loop is gone")
    assert not worker.is_alive
    await worker.close()
