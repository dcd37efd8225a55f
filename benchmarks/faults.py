"""Clients that disconnect, and killed processes: `python -m benchmarks.faults [--only kills]`.

Each part has a `tampu serve` of its own with the built-in model, or many of them.

- leave: clients that go, in each phase of a request, from each API, politely or not; how long
  until the model's only slot is free again, and whether the processors rest afterwards.
- kills: the model's process killed in each phase, by any signal, beside a stream of another model;
  how long until the request hears of it, whether the cause is named, whether the next is answered.
- ends: SIGTERM beside twenty streams: all must be whole, and no process may be left.
- orphans: the server killed beside a stream: all processes below it must end.

Ends with an error if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.abuse import Steady, status_of
from benchmarks.server import request as written
from benchmarks.server import server
from benchmarks.totals import Outcome
from tampu.store.catalog import resolve

TOLD_S, FREE_S, GONE_S, REST_S = 2.0, 2.0, 5.0, 3.0
STREAMS, STREAM_TOKENS = 20, 60
PHASES = ("headers", "loading", "prefill", "first token", "between tokens")
DEATHS = ("loading", "prefill", "decoding", "embedding", "idle")
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGBUS)
_LONG = "seven and eight are " * 80
_MODEL = "tampu.worker.entry"

Make = Callable[..., bytes]


def generate(prompt: str, tokens: int, model: str = "demo", **more: Any) -> bytes:
    """Return a request whose answer is always the same."""
    options = {"num_predict": tokens, "temperature": 0, "repeat_penalty": 1.0}
    asked = {"model": model, "prompt": prompt, "raw": True, "options": options}
    return written("POST", "/api/generate", asked | more)


def chat(path: str, limit: str) -> Make:
    """Return a request for a long answer on a route."""

    def make(prompt: str, *, streams: bool) -> bytes:
        messages = [{"role": "user", "content": prompt}]
        wanted = {"model": "demo", "messages": messages, "stream": streams, limit: 20_000}
        return written("POST", path, wanted)

    return make


CLIENTS: tuple[Make, ...] = (
    lambda prompt, *, streams: generate(prompt, 20_000, stream=streams),
    lambda prompt, *, streams: written(
        "POST",
        "/api/chat",
        {"model": "demo", "messages": [{"role": "user", "content": prompt}], "stream": streams},
    ),
    chat("/v1/chat/completions", "max_completion_tokens"),
    chat("/v1/messages", "max_tokens"),
    lambda prompt, *, streams: written(
        "POST", "/v1/completions", {"model": "demo", "prompt": prompt, "stream": streams}
    ),
)


def workers(process: psutil.Process) -> list[psutil.Process]:
    """Return a server's worker processes."""
    found = []
    for child in process.children():
        with suppress(psutil.Error):
            if _MODEL in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


async def until(holds: Callable[[], object], seconds: float) -> bool:
    """Return whether a condition becomes true within some seconds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True


async def unload(process: psutil.Process, port: int, kept: Set[int] = frozenset()) -> None:
    """Unload the model, and wait until only these processes are left."""
    await status_of(port, generate("", 1, keep_alive=0))
    await until(lambda: {worker.pid for worker in workers(process)} <= kept, 10)


async def answers(port: int, model: str = "demo") -> float:
    """Return how long a short answer takes.

    Raises:
        RuntimeError: if there is none.
    """
    began = time.monotonic()
    status = await status_of(port, generate("hi", 2, model, stream=False))
    if status != 200:
        raise RuntimeError(f"answered {status}")
    return time.monotonic() - began


async def leave_once(process: psutil.Process, port: int, phase: str, number: int) -> None:
    """Start a request, and disconnect in a phase of it."""
    make, is_rude = CLIENTS[number % len(CLIENTS)], number % 2
    if phase == "loading":
        await unload(process, port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    streams = phase in ("first token", "between tokens") or random.random() < 0.5
    content = make(f"{number} {_LONG if phase == 'prefill' else 'hi'}", streams=streams)
    writer.write(content[: random.randrange(len(content))] if phase == "headers" else content)
    if phase in ("first token", "between tokens"):
        await reader.readuntil(b"\r\n\r\n")
    if phase == "loading":
        await asyncio.sleep(random.random() * 0.5)
    elif phase != "first token":
        await asyncio.sleep(random.random() * 0.05)
    if is_rude:
        writer.transport.abort()
    writer.close()


async def leave(process: psutil.Process, port: int, count: int) -> Outcome:
    """Disconnect clients, in each phase in turn."""
    await answers(port)
    outcome = Outcome(counts={"late": 0})
    for number in range(count):
        phase = PHASES[number // len(CLIENTS) % len(PHASES)]
        await leave_once(process, port, phase, number)
        seconds, name = await answers(port), f"{phase}: the next answer, s"
        outcome.worst[name] = max(seconds, outcome.worst.get(name, 0))
        outcome.counts["late"] += phase != "loading" and seconds > FREE_S
        outcome.done += 1
    began, resting = time.monotonic(), busy(process)
    while (now := busy(process, 0.5)) - resting > 0.025:
        resting = now
    outcome.worst["no work afterwards, s"] = rest_s = time.monotonic() - began
    if outcome.counts["late"] > count / 100:
        outcome.wrong.append(f"{outcome.counts['late']} of {count} times no slot in {FREE_S} s")
    if rest_s > REST_S:
        outcome.wrong.append(f"work for {rest_s:.1f} s after the last client had left")
    return outcome


def busy(process: psutil.Process, pause_s: float = 0.0) -> float:
    """Return the CPU time used by a server and its children, after a pause."""
    time.sleep(pause_s)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


async def kill_once(
    process: psutil.Process, port: int, phase: str, kept: Set[int], number: int
) -> float | None:
    """Kill the worker in a phase; return the seconds until this was reported.

    None: the answer came all the same.

    Raises:
        RuntimeError: if it was not reported.
    """
    death = random.choice(SIGNALS)

    def own() -> list[psutil.Process]:
        return [worker for worker in workers(process) if worker.pid not in kept]

    if phase == "loading":
        await unload(process, port, kept)
    elif not own():
        await answers(port)
    if phase == "idle":
        idle = own()[0]
        idle.send_signal(death)
        await until(lambda: not idle.is_running() or idle.status() == psutil.STATUS_ZOMBIE, 10)
        return None  # no client to report it to, but the next request is answered
    prompt = f"{number} {_LONG if phase == 'prefill' else 'x'}"
    content = generate(prompt, 20_000 if phase == "decoding" else 50)
    if phase == "embedding":
        content = written("POST", "/api/embed", {"model": "demo", "input": [_LONG] * 20})
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**27)
    writer.write(content)
    if phase == "decoding":
        await reader.readuntil(b"\r\n\r\n")
    await until(own, 10)
    await asyncio.sleep(random.random() * (0.6 if phase in ("loading", "embedding") else 0.05))
    own()[0].send_signal(death)
    began = time.monotonic()
    head = b"" if phase == "decoding" else await reader.readuntil(b"\r\n\r\n")
    last = b"0\r\n\r\n" if b"content-length" not in head.lower() else b"}"
    told = await reader.readuntil(last)
    seconds = time.monotonic() - began
    writer.close()
    if phase != "decoding" and (b'"done":true' in told or b'"embeddings"' in told):
        return None  # it was done before, or it had not been taken up and another process did it
    if death.name.encode() not in told:
        raise RuntimeError(f"{phase}, {death.name}: not reported in {head + told[-300:]!r}")
    return seconds


async def kills(process: psutil.Process, port: int, count: int) -> Outcome:
    """Kill the worker repeatedly, beside another model's stream."""
    await answers(port, "second")
    kept = {worker.pid for worker in workers(process)}
    other = Steady(port, generate("What is 27 + 58?", 300, "second"), pause_s=0.2)
    outcome = Outcome(counts={"told": 0, "answered": 0})
    worst = outcome.worst
    for number in range(count):
        phase = DEATHS[number % len(DEATHS)]
        async with asyncio.timeout(60):
            seconds = await kill_once(process, port, phase, kept, number)
            again = await answers(port)
        outcome.done += 1
        worst["the next answer, s"] = max(again, worst.get("the next answer, s", 0))
        if seconds is None:
            outcome.counts["answered"] += 1
            continue
        outcome.counts["told"] += 1
        name = f"{phase}: told, s"
        worst[name] = max(seconds, worst.get(name, 0))
        if seconds > TOLD_S:
            outcome.wrong.append(f"{phase}: told after {seconds:.1f} s")
    await other.end()
    outcome.counts["answers of the other model"] = sum(other.answers.values())
    if len(other.answers) != 1:
        outcome.wrong.append(f"the other model gave {len(other.answers)} kinds of answers")
    if not kept <= {worker.pid for worker in workers(process)}:
        outcome.wrong.append("the other model's process has ended")
    return outcome


async def texts(port: int, count: int, began: asyncio.Event) -> list[str]:
    """Return the texts of concurrent streams; signal when all have started."""
    left = count

    async def one() -> str:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        writer.write(generate("What is 27 + 58?", STREAM_TOKENS))
        head = await reader.readuntil(b"\r\n\r\n")
        left -= 1
        if not left:
            began.set()
        chunks: list[bytes] = []
        with suppress(asyncio.IncompleteReadError, ValueError):
            while size := int(await reader.readline(), 16):
                chunks.append((await reader.readexactly(size + 2))[:-2])
        lines = [json.loads(line) for line in b"".join(chunks).splitlines()]
        writer.close()
        if b" 200 " not in head[:20] or not lines or not lines[-1].get("done"):
            return f"cut: {head[:20]!r} {lines[-1:]}"
        return "".join(line["response"] for line in lines)

    return await asyncio.gather(*(one() for _ in range(count)))


async def ends_once(process: psutil.Process, port: int) -> tuple[int, float]:
    """Stop a server during streams; return how many were cut, and the seconds until its end."""
    [right] = await texts(port, 1, asyncio.Event())
    began = asyncio.Event()
    streams = asyncio.create_task(texts(port, STREAMS, began))
    await began.wait()
    await asyncio.sleep(random.random() * 0.3)
    below = process.children(recursive=True)
    process.terminate()
    found = await streams
    at = time.monotonic()
    gone = await until(lambda: not any(map(is_alive, [process, *below])), 3 * GONE_S)
    cut = [text for text in found if text != right]
    if cut:
        print(cut[:2])
    return len(cut), time.monotonic() - at if gone else float("inf")


async def orphans_once(process: psutil.Process, port: int) -> tuple[int, float]:
    """Kill a server during streams; return 0, and the seconds until no process was left."""
    began = asyncio.Event()
    streams = asyncio.create_task(texts(port, 4, began))
    await began.wait()
    await asyncio.sleep(random.random() * 0.1)
    below = process.children(recursive=True)
    process.kill()
    at = time.monotonic()
    gone = await until(lambda: not any(map(is_alive, below)), 3 * GONE_S)
    streams.cancel()
    await asyncio.gather(streams, return_exceptions=True)
    return 0, time.monotonic() - at if gone else float("inf")


def is_alive(process: psutil.Process) -> bool:
    """Whether a process is running, and not a zombie."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def servers(what: str, count: int, variables: dict[str, str]) -> Outcome:
    """Stop a number of servers."""
    once = ends_once if what == "ends" else orphans_once
    outcome, name = Outcome(counts={"cut streams": 0}), "all processes gone, s"
    for _ in range(count):
        with server("demo", **variables, TAMPU_NUM_PARALLEL=str(STREAMS)) as (process, port):
            cut, seconds = asyncio.run(once(process, port))
        outcome.done += 1
        outcome.counts["cut streams"] += cut
        outcome.worst[name] = max(seconds, outcome.worst.get(name, 0))
        if cut or seconds > GONE_S:
            outcome.wrong.append(f"{cut} streams cut, processes for {seconds:.1f} s")
    return outcome


def run(name: str, count: int) -> Outcome:
    """Run one of the parts with servers of its own."""
    variables = {"TAMPU_THREADS": "1", "TAMPU_CONTEXT_LENGTH": "512", "TAMPU_MAX_CRASHES": "0"}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(resolve("demo"), Path(folder) / "second.gguf")
        variables["TAMPU_MODELS"] = folder
        if name in ("ends", "orphans"):
            return servers(name, count, variables)
        work = leave if name == "leave" else kills
        with server("demo", **variables) as (process, port):
            outcome = asyncio.run(work(process, port, count))
            if not process.is_running():
                outcome.wrong.append("the server has ended")
            return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--leave", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--ends", type=int, default=200)
    parser.add_argument("--orphans", type=int, default=200)
    parser.add_argument("--only", type=lambda text: text.split(","))
    arguments = parser.parse_args()
    results = []
    for name in arguments.only or ("leave", "kills", "ends", "orphans"):
        outcome = run(name, getattr(arguments, name))
        print(f"{name}: {outcome.line()}", flush=True)
        results.append(not outcome.wrong)
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
