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

import numpy as np
import psutil

from benchmarks.abuse import Steady, status_of
from benchmarks.server import request as written
from benchmarks.server import server
from tampu.store.catalog import resolve

TOLD_S, FREE_S, GONE_S, REST_S = 2.0, 2.0, 5.0, 3.0
STREAMS, STREAM_TOKENS = 20, 60
PHASES = ("headers", "loading", "prefill", "first token", "between tokens")
DEATHS = ("loading", "prefill", "decoding", "embedding", "idle")
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGBUS)
_LONG = "seven and eight are " * 80
_MODEL = "tampu.worker.main"

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


async def leave(process: psutil.Process, port: int, count: int) -> bool:
    """Disconnect clients, in each phase in turn."""
    await answers(port)
    free: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for number in range(count):
        phase = PHASES[number // len(CLIENTS) % len(PHASES)]
        await leave_once(process, port, phase, number)
        free[phase].append(await answers(port))
    for phase, seconds in free.items():
        high = np.percentile(seconds, 99)
        print(f"  {phase}: the next answer within {high:.2f} s (99 %), {max(seconds):.2f} s (all)")
    began, resting = time.monotonic(), busy(process)
    while (now := busy(process, 0.5)) - resting > 0.025:
        resting = now
    print(f"  {count} clients left; no work {time.monotonic() - began:.1f} s afterwards")
    quick = [second for phase in PHASES if phase != "loading" for second in free[phase]]
    return bool(np.percentile(quick, 99) < FREE_S) and time.monotonic() - began < REST_S


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
        own()[0].send_signal(death)
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


async def kills(process: psutil.Process, port: int, count: int) -> bool:
    """Kill the worker repeatedly, beside another model's stream."""
    await answers(port, "second")
    kept = {worker.pid for worker in workers(process)}
    other = Steady(port, generate("What is 27 + 58?", 300, "second"), pause_s=0.2)
    told: dict[str, list[float]] = {phase: [] for phase in DEATHS}
    again, answered = list[float](), 0
    for number in range(count):
        phase = DEATHS[number % len(DEATHS)]
        async with asyncio.timeout(60):
            seconds = await kill_once(process, port, phase, kept, number)
            answered += seconds is None
            if seconds is not None:
                told[phase].append(seconds)
            again.append(await answers(port))
    await other.end()
    for phase, every in told.items():
        print(f"  {phase}: {len(every)} reported, within {max(every, default=0.0):.2f} s")
    print(f"  {answered} were answered; the next request within {max(again):.2f} s")
    print(f"  the other model: {sum(other.answers.values())} answers, {len(other.answers)} kinds")
    longest = max(second for phase in DEATHS for second in told[phase])
    is_same = len(other.answers) == 1 and kept <= {worker.pid for worker in workers(process)}
    return is_same and longest < TOLD_S


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


def servers(what: str, count: int, variables: dict[str, str]) -> bool:
    """Stop a number of servers."""
    once = ends_once if what == "ends" else orphans_once
    found = []
    for _ in range(count):
        with server("demo", **variables, TAMPU_NUM_PARALLEL=str(STREAMS)) as (process, port):
            found.append(asyncio.run(once(process, port)))
    cut, longest = sum(one for one, _ in found), max(seconds for _, seconds in found)
    print(f"  {count} servers: {cut} streams cut, all processes gone within {longest:.2f} s")
    return cut == 0 and longest < GONE_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--leave", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--ends", type=int, default=200)
    parser.add_argument("--orphans", type=int, default=200)
    parser.add_argument("--only", type=lambda text: text.split(","))
    arguments = parser.parse_args()
    variables = {"TAMPU_THREADS": "1", "TAMPU_CONTEXT_LENGTH": "512", "TAMPU_MAX_CRASHES": "0"}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(resolve("demo"), Path(folder) / "second.gguf")
        variables["TAMPU_MODELS"] = folder
        for name in arguments.only or ("leave", "kills", "ends", "orphans"):
            print(f"{name}:", flush=True)
            count = getattr(arguments, name)
            if name in ("ends", "orphans"):
                results.append(servers(name, count, variables))
                continue
            work = leave if name == "leave" else kills
            with server("demo", **variables) as (process, port):
                results.append(asyncio.run(work(process, port, count)) and process.is_running())
            print(f"  {'as it should be' if results[-1] else 'WRONG'}", flush=True)
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
