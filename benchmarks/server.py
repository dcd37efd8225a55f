"""What the server adds to the engine: `python -m benchmarks.server [--model demo] [--slots 16]`.

Measured against a `tampu serve` of its own on a free port of this machine, through plain sockets,
so that the client's library costs nothing:

- seconds to the first byte of `GET /api/version`, and of an answer of one token;
- tokens per second of streamed chats, one and several at once, beside the engine alone in a
  separate process;
- many concurrent streaming clients: errors, lost tokens, memory per idle connection;
- the CPU time and memory of an idle server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil

from tampu.store.catalog import resolve
from tampu.store.model_info import read_model_info
from tampu.tokenizer.loading import load_tokenizer

PROMPT = "What is 27 + 58?"
MANY_TOKENS = 20
IDLE_S = 10
_READ_BYTES = 1 << 20
HEADERS = "Host: localhost\r\nContent-Type: application/json\r\n"


@contextmanager
def server(model: str, **environment: str) -> Iterator[tuple[psutil.Process, int]]:
    """Run a server; yield its process and port."""
    with tempfile.TemporaryDirectory() as home:
        log = Path(home) / "log"
        files = ["--model", model] if Path(model).is_file() else []
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}  # noqa: TID251
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tampu.cli.entry", "serve", "--port", "0", *files],
                stdout=output,
                stderr=output,
                env={**kept, "HOME": home, **environment},
            )
        try:
            while not (found := re.search(r"Listening on http://[^:]+:(\d+)", log.read_text())):
                if process.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.05)
            yield psutil.Process(process.pid), int(found[1])
        finally:
            process.terminate()
            process.wait()


def request(method: str, path: str, body: object = None) -> bytes:
    """Return the bytes of a request."""
    content = b"" if body is None else json.dumps(body).encode()
    return (
        f"{method} {path} HTTP/1.1\r\n{HEADERS}Content-Length: {len(content)}\r\n\r\n".encode()
        + content
    )


def answer(model: str, tokens: int, ends: list[int]) -> bytes:
    """Return a request for a streamed answer of an exact number of tokens."""
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": {str(token): -100 for token in ends},
    }
    return request("POST", "/v1/completions", body)


async def first_byte(port: int, content: bytes, times: int) -> list[float]:
    """Return the seconds from a request to the first byte of its answer, on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        writer.write(content)
        first = await reader.read(1)
        seconds.append(time.perf_counter() - began)
        await rest(reader, first)
    writer.close()
    return seconds


async def rest(reader: asyncio.StreamReader, first: bytes = b"") -> list[bytes]:
    """Return the chunks or the body of a response that starts with `first`."""
    return await rest_of(reader, first + await reader.readuntil(b"\r\n\r\n"))


async def rest_of(reader: asyncio.StreamReader, head: bytes) -> list[bytes]:
    """Return the chunks or the body of a response with this head."""
    length = re.search(rb"content-length: (\d+)", head.lower())
    if length:
        return [await reader.readexactly(int(length[1]))]
    chunks = []
    while size := int(await reader.readline(), 16):
        chunks.append(await reader.readexactly(size + 2))
    await reader.readline()
    return chunks


async def stream(port: int, content: bytes) -> tuple[int, float, float]:
    """Return the tokens of a streamed answer, and the times of its first and last piece."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(content)
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise RuntimeError(head.decode())
    first = 0.0
    last = b""
    while size := int(await reader.readline(), 16):
        chunk = await reader.readexactly(size + 2)
        if not first and b'"text":""' not in chunk:
            first = time.perf_counter()
        last = chunk if b'"completion_tokens"' in chunk else last
    ended = time.perf_counter()
    writer.close()
    count = re.search(rb'"completion_tokens":(\d+)', last)
    return int(count[1]) if count else 0, first, ended


def served_speed(port: int, content: bytes, streams: int) -> float:
    """Return the tokens per second of concurrent streams together, from the first to the last."""
    with ThreadPoolExecutor(streams) as threads:
        found = list(threads.map(drained, [port] * streams, [content] * streams))
    first, last = min(item[1] for item in found), max(item[2] for item in found)
    return sum(item[0] for item in found) / (last - first)


def drained(port: int, content: bytes) -> tuple[int, float, float]:
    """Return the same as `stream`, with little load on the CPUs shared with the server.

    A client elsewhere would not: after the first piece this one sleeps until the answer is over.
    """
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(content.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        told = b""
        while not re.search(rb'"text":"[^"]', told):
            if not (data := connection.recv(_READ_BYTES)):
                raise RuntimeError(told.decode())
            told += data
        first = time.perf_counter()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _READ_BYTES)
        while data := connection.recv(_READ_BYTES):
            told += data
        ended = time.perf_counter()
    [count] = re.findall(rb'"completion_tokens":(\d+)', told)
    return int(count), first, ended


ENGINE = """
import sys, threading, time
from tampu import Engine
from tampu.runner.generate_options import GenerateOptions
model, tokens, slots, threads = sys.argv[1], *map(int, sys.argv[2:])
with Engine.load(model, context=2048, slots=slots, threads=threads or None) as engine:
    prompt = engine.tokenize("What is 27 + 58?")
    def measure(streams):
        done, first, count = threading.Semaphore(0), [], []
        def sink(event):
            if hasattr(event, "usage"):
                count.append(event.usage.generated_tokens)
                done.release()
            elif not first:
                first.append(time.perf_counter())
        bias = {token: -100.0 for token in engine.tokenizer.eos}
        options = GenerateOptions(
            max_tokens=tokens, temperature=0.0, top_p=1.0, logit_bias=bias
        )
        for _ in range(streams):
            engine.submit(prompt, options, sink)
        for _ in range(streams):
            done.acquire()
        return sum(count) / (time.perf_counter() - first[0])
    for line in sys.stdin:
        print(measure(int(line)), flush=True)
"""


class EngineAlone:
    """The engine in a process without a server."""

    def __init__(self, model: str, tokens: int, slots: int, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, model, str(tokens), str(slots), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def speed(self, streams: int) -> float:
        """Return the tokens per second of concurrent streams together."""
        assert self._process.stdin is not None  # noqa: S101 - our own pipes
        assert self._process.stdout is not None  # noqa: S101
        self._process.stdin.write(f"{streams}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


async def many(port: int, content: bytes, clients: int) -> list[str]:
    """Return the errors of concurrent streaming clients."""
    found = await asyncio.gather(
        *(stream(port, content) for _ in range(clients)), return_exceptions=True
    )
    return [
        repr(item) for item in found if isinstance(item, BaseException) or item[0] != MANY_TOKENS
    ]


async def idle_bytes(process: psutil.Process, port: int, connections: int) -> float:
    """Return the server's memory per idle connection, after a first request."""
    before = process.memory_info().rss
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]
    for reader, writer in opened:
        writer.write(request("GET", "/api/version"))
        await rest(reader)
    after = process.memory_info().rss
    for _, writer in opened:
        writer.close()
    return (after - before) / connections


def speeds(arguments: argparse.Namespace, port: int, name: str, ends: list[int]) -> None:
    """Measure in turns, since speeds vary; the share is the median of adjacent measurements."""
    path = str(resolve(arguments.model))
    content = answer(name, arguments.tokens, ends)
    alone = EngineAlone(path, arguments.tokens, arguments.slots, arguments.threads)
    for streams in arguments.streams:
        pairs = [
            (served_speed(port, content, streams), alone.speed(streams))
            for _ in range(arguments.rounds + 1)
        ][1:]
        served, own = (statistics.median(column) for column in zip(*pairs, strict=True))
        share = statistics.median(pair[0] / pair[1] for pair in pairs)
        print(f"{streams} streams: {served:.1f} tokens/s, engine {own:.1f}: {share:.3f}")
    alone.close()


def resting(process: psutil.Process) -> None:
    time.sleep(1)
    began = process.cpu_times()
    time.sleep(IDLE_S)
    ended = process.cpu_times()
    used = ended.user + ended.system - began.user - began.system
    memory = process.memory_info().rss
    print(f"idle: {used / IDLE_S:.2%} of a CPU, {memory / 1e6:.0f} MB")


def first_bytes(port: int, name: str, ends: list[int]) -> None:
    asyncio.run(first_byte(port, answer(name, 1, ends), 20))
    for what, content, times in (
        ("/api/version", request("GET", "/api/version"), 500),
        ("one-token answer", answer(name, 1, ends), 100),
    ):
        seconds = asyncio.run(first_byte(port, content, times))
        print(f"first byte, {what}: {statistics.median(seconds) * 1e3:.2f} ms (median)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="demo", help="a name, or a GGUF file")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="threads of the engine; 0: default")
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--speed-only", action="store_true")
    arguments = parser.parse_args()
    path = resolve(arguments.model)
    ends = sorted(load_tokenizer(read_model_info(path).metadata).eos)
    name, count = path.stem, arguments.clients
    variables = {"TAMPU_NUM_PARALLEL": str(arguments.slots), "TAMPU_CONTEXT_LENGTH": "2048"}
    if arguments.threads:
        variables["TAMPU_THREADS"] = str(arguments.threads)
    with server(arguments.model, **variables) as (process, port):
        if not arguments.speed_only:
            resting(process)
            first_bytes(port, name, ends)
            each = asyncio.run(idle_bytes(process, port, count))
            print(f"an idle connection: {each / 1e3:.0f} kB")
            wrong = asyncio.run(many(port, answer(name, MANY_TOKENS, ends), count))
            print(f"{count} clients: {len(wrong)} wrong {wrong[:2]}")
        speeds(arguments, port, name, ends)


if __name__ == "__main__":
    main()
