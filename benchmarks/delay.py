"""How much later first tokens come beside a slow request: `python -m benchmarks.delay`.

Against a `tampu serve` of its own with the built-in model. A process of its own asks short
questions, one after the other, and takes the time to the first token of each: alone, then while a
slow request is prepared, then after such a request whose client has left at once.

- text: a message of 8 MB; refused: the same by OpenAI's API, which does not cut it.
- messages: a conversation of 10,000 messages.
- images: 16 large images.
- tokenize: 8 MB for `/api/tokenize`; pieces: the same with the text of each token.
- schema: an answer in the form of a large JSON schema.

Ends with an error if a first token beside one of them is more than a tenth of a second later than
the median alone.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import multiprocessing
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.server import request, rest, server

MAX_S = 0.1
LEAVES_AFTER_S = 0.3
WATCHED_S = 4.0  # after a client has left
ALONE = 40
MB = 1_000_000
CASES = ("text", "refused", "messages", "images", "tokenize", "pieces", "schema")


def prose(size: int) -> str:
    """Return text of many different words."""
    source = " ".join(path.read_text("utf-8") for path in sorted(Path("docs").glob("*.md")))
    words = source.split(" ")
    order = np.random.default_rng(1).permutation(len(words))
    mixed = " ".join(words[index] for index in order)
    return (mixed * (size // len(mixed) + 1))[:size]


def picture(side: int, seed: int) -> str:
    """Return a PNG file in base64 that is small for its number of pixels."""
    columns = np.arange(side, dtype=np.uint32)
    pixels = (columns[:, None] * (seed + 1) + columns[None, :] * 3) // 64 % 256
    file = io.BytesIO()
    Image.fromarray(np.stack([pixels.astype(np.uint8)] * 3, axis=2)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def schema() -> dict[str, Any]:
    """Return a JSON schema of many different objects."""
    words = sorted(set(prose(MB).split()))[:1500]
    choice = {"enum": words}
    return {"type": "object", "properties": {f"p{n}": choice for n in range(4)}}


def slow_request(case: str, images: int, side: int) -> bytes:
    """Return the bytes of a slow request."""
    chat: dict[str, Any] = {"model": "demo", "options": {"num_predict": 1}, "stream": False}
    match case:
        case "text":
            chat["messages"] = [{"role": "user", "content": prose(8 * MB)}]
        case "refused":
            messages = [{"role": "user", "content": prose(8 * MB)}]
            body = {"model": "demo", "messages": messages, "max_tokens": 1}
            return request("POST", "/v1/chat/completions", body)
        case "messages":
            text = prose(10_000 * 40)
            chat["messages"] = [
                {"role": ("user", "assistant")[n % 2], "content": text[40 * n : 40 * n + 40]}
                for n in range(9_999)
            ]
        case "images":
            shown = [picture(side, seed) for seed in range(images)]
            chat["messages"] = [{"role": "user", "content": "What?", "images": shown}]
        case "schema":
            chat |= {"messages": [{"role": "user", "content": "x"}], "format": schema()}
        case _:
            body = {"model": "demo", "text": prose(8 * MB), "pieces": case == "pieces"}
            return request("POST", "/api/tokenize", body)
    return request("POST", "/api/chat", chat)


def first_token(port: int, number: int) -> float:
    """Return the seconds to the first token of a short answer."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"What is {number % 90} + 5?"}],
        "options": {"num_predict": 1, "temperature": 0},
    }
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request("POST", "/api/chat", body))
        received = b""
        while b"\r\n\r\n" not in received or b'"content"' not in received:
            if not (part := client.recv(65_536)):
                raise RuntimeError(received.decode("utf-8", "replace"))
            received += part
        if b" 200 " not in received.split(b"\r\n", 1)[0]:
            raise RuntimeError(received.decode("utf-8", "replace"))
    return time.perf_counter() - began


def probe(port: int, began: Event, ended: Event, found: Any) -> None:
    """Measure first tokens until told to end, in a process of its own."""
    first_token(port, 0)
    began.set()
    seconds: list[float] = []
    while not ended.is_set():
        seconds.append(first_token(port, len(seconds)))
        time.sleep(0.005)
    found.put(seconds)


@contextmanager
def probed(port: int) -> Iterator[list[float]]:
    """Measure first tokens during the block; they are complete at its end."""
    spawn = multiprocessing.get_context("spawn")
    began, ended, found = spawn.Event(), spawn.Event(), spawn.Queue()
    process = spawn.Process(target=probe, args=(port, began, ended, found))
    process.start()
    began.wait(30)
    seconds: list[float] = []
    yield seconds
    ended.set()
    seconds += found.get(timeout=60)
    process.join()


async def whole(port: int, content: bytes) -> tuple[int, float]:
    """Return the status of a slow request, and how long it took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 30)
    began = time.perf_counter()
    writer.write(content)
    head = await reader.readuntil(b"\r\n")
    await rest(reader, head)
    writer.close()
    return int(head.split()[1]), time.perf_counter() - began


async def left(port: int, content: bytes) -> None:
    """Send a slow request and leave; wait for as long as its work may show."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content)
    await writer.drain()
    await asyncio.sleep(LEAVES_AFTER_S)
    writer.transport.abort()
    await asyncio.sleep(WATCHED_S)


def line(name: str, seconds: list[float], alone: float) -> str:
    """Return first tokens as a line: their median, the longest, and how much later that is."""
    middle, longest = np.median(seconds) * 1e3, max(seconds) * 1e3
    later = longest - alone * 1e3
    times = f"{middle:6.1f} ms, the longest {longest:7.1f}, {later:7.1f} later"
    return f"{name:10} {len(seconds):4} first tokens: {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=CASES)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--side", type=int, default=4000, help="of an image, in pixels")
    arguments = parser.parse_args()
    most = 0.0
    variables = {"TAMPU_NUM_PARALLEL": "4", "TAMPU_THREADS": "1", "TAMPU_CONTEXT_LENGTH": "4096"}
    with server("demo", **variables) as (_, port):
        calm = [first_token(port, number) for number in range(ALONE)][ALONE // 4 :]
        alone = float(np.median(calm))
        print(line("alone", calm, alone), flush=True)
        for case in arguments.only:
            content = slow_request(case, arguments.images, arguments.side)
            with probed(port) as seconds:
                status, took_s = asyncio.run(whole(port, content))
            print(line(case, seconds, alone), f"({status} after {took_s:.1f} s)", flush=True)
            with probed(port) as after:
                asyncio.run(left(port, content))
            print(line("  left", after, alone), flush=True)
            most = max(most, max(seconds) - alone, max(after) - alone)
    print(f"at most {most * 1e3:.0f} ms later")
    sys.exit(0 if most <= MAX_S else 1)


if __name__ == "__main__":
    main()
