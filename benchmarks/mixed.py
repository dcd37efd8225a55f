"""Requests of every kind for one model: what clients ask over hours (see `benchmarks.soak`).

Formats, tools, grammars and images are new each time, as those of many programs are.
"""

from __future__ import annotations

import asyncio
import base64
import io
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from PIL import Image

from benchmarks.abuse import status_of
from benchmarks.server import request

STAYS, COMES_AND_GOES = "demo", "second"
_WORDS = ("what", "is", "the", "sum", "of", "two", "numbers", "or", "in", "a", "picture")
_LETTERS = "abcdefghijklmnop"
_LONG = 0.05  # of all texts
_LEAVES, _WRONG = 0.1, 0.1
_TIMEOUT_S = 120

Kind = Callable[[random.Random], bytes]


def picture(number: int) -> str:
    """Return a small image in base64, different for each number."""
    file, chance = io.BytesIO(), random.Random(number)
    size = (chance.randint(16, 128), chance.randint(16, 128))
    Image.new("RGB", size, tuple(chance.randrange(256) for _ in range(3))).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def text(chance: random.Random) -> str:
    """Return some words, rarely so many that they are cut."""
    count = 1500 if chance.random() < _LONG else chance.choice((1, 3, 10, 10, 200))
    return " ".join(chance.choices(_WORDS, k=count))


def word(chance: random.Random) -> str:
    """Return a word that has not been there before."""
    return "".join(chance.choices(_LETTERS, k=8))


def schema(chance: random.Random) -> dict[str, Any]:
    """Return a new JSON schema."""
    types: list[dict[str, Any]] = [
        {"type": "integer"},
        {"type": "string", "maxLength": chance.randint(1, 30)},
        {"type": "array", "items": {"type": "number"}, "maxItems": 3},
        {"enum": [word(chance), word(chance)]},
    ]
    fields = {word(chance): chance.choice(types) for _ in range(chance.randint(1, 4))}
    return {"type": "object", "properties": fields, "required": [*fields][:1]}


def tools(chance: random.Random) -> list[dict[str, Any]]:
    """Return new functions."""
    return [
        {"type": "function", "function": {"name": word(chance), "parameters": schema(chance)}}
        for _ in range(chance.randint(1, 3))
    ]


def said(chance: random.Random) -> list[dict[str, Any]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": text(chance)}]


def ollama(path: str, chance: random.Random, **more: Any) -> bytes:
    """Return a short request of Ollama's API."""
    options = {"num_predict": chance.randint(1, 30), "temperature": chance.choice((0, 0.8))}
    model = STAYS if chance.random() < 0.9 else COMES_AND_GOES
    body = {"model": model, "stream": chance.random() < 0.5}
    body["options"] = options | more.pop("options", {})
    return request("POST", path, body | more)


def openai(chance: random.Random, **more: Any) -> bytes:
    """Return a short chat of OpenAI's API."""
    body = {"model": STAYS, "messages": said(chance), "max_tokens": chance.randint(1, 20)}
    return request("POST", "/v1/chat/completions", body | more)


def grammar(chance: random.Random) -> str:
    """Return a new grammar in GBNF."""
    return f'root ::= "{word(chance)}" | [0-9]+ "{word(chance)}"'


def seen(chance: random.Random) -> list[dict[str, Any]]:
    """Return a conversation with an image."""
    return [{"role": "user", "content": text(chance), "images": [picture(chance.randrange(10**9))]}]


USUAL: dict[str, Kind] = {
    "chat": lambda c: ollama("/api/chat", c, messages=said(c)),
    "text": lambda c: ollama("/api/generate", c, prompt=text(c)),
    "raw text": lambda c: ollama("/api/generate", c, prompt=text(c), raw=True),
    "image": lambda c: ollama("/api/chat", c, messages=seen(c)),
    "tools": lambda c: ollama("/api/chat", c, messages=said(c), tools=tools(c)),
    "format": lambda c: ollama("/api/chat", c, messages=said(c), format=schema(c)),
    "JSON": lambda c: ollama("/api/chat", c, messages=said(c), format="json"),
    "penalties": lambda c: ollama(
        "/api/chat",
        c,
        messages=said(c),
        options={"dry_multiplier": 0.8, "dry_sequence_breakers": [word(c)], "repeat_penalty": 1.2},
    ),
    "embeddings": lambda c: request(
        "POST", "/api/embed", {"model": STAYS, "input": [text(c) for _ in range(3)]}
    ),
    "forced call": lambda c: openai(c, tools=tools(c), tool_choice="required"),
    "grammar": lambda c: openai(c, grammar=grammar(c)),
    "regex": lambda c: openai(c, guided_regex=f"{word(c)}|[0-9]+{word(c)}"),
    "log-probs": lambda c: openai(c, logprobs=True, top_logprobs=c.randint(0, 5)),
    "bias and stop": lambda c: openai(c, logit_bias={str(c.randrange(1000)): -9}, stop=[word(c)]),
    "completion": lambda c: request(
        "POST",
        "/v1/completions",
        {"model": STAYS, "prompt": text(c), "max_tokens": 9, "echo": True},
    ),
    "response": lambda c: request(
        "POST", "/v1/responses", {"model": STAYS, "input": text(c), "max_output_tokens": 20}
    ),
    "message": lambda c: request(
        "POST", "/v1/messages", {"model": STAYS, "max_tokens": 9, "messages": said(c)}
    ),
    "count": lambda c: request(
        "POST",
        "/v1/messages/count_tokens",
        {"model": STAYS, "max_tokens": 9, "messages": said(c)},
    ),
    "tokens": lambda c: request("POST", "/api/tokenize", {"model": STAYS, "text": text(c)}),
    "description": lambda _: request("POST", "/api/show", {"model": STAYS}),
    "lists": lambda c: request("GET", c.choice(("/api/tags", "/api/ps", "/metrics", "/health"))),
    "unload": lambda _: request(
        "POST", "/api/generate", {"model": COMES_AND_GOES, "keep_alive": 0}
    ),
}

WRONG: dict[str, Kind] = {
    "model": lambda c: request("POST", "/api/generate", {"model": f"nothing-{c.random()}"}),
    "messages": lambda c: ollama("/api/chat", c, messages=text(c)),
    "schema": lambda c: ollama("/api/generate", c, prompt="x", format={"type": c.randrange(9)}),
    "grammar": lambda c: openai(c, grammar=f"root ::= {word(c)}"),
    "image": lambda c: ollama("/api/chat", c, messages=[{"role": "user", "images": ["aGk="]}]),
    "route": lambda c: request("GET", f"/nothing/{c.random()}"),
}


async def leave(port: int, chance: random.Random) -> None:
    """Request a long answer, and disconnect after a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    asked = {"model": STAYS, "prompt": text(chance), "options": {"num_predict": 2000}}
    writer.write(request("POST", "/api/generate", asked))
    await asyncio.sleep(chance.random() * 0.3)
    if chance.random() < 0.5:
        await reader.read(1000)
    writer.transport.abort()


class Load:
    """Clients that send requests, with pauses, until they are stopped.

    Attributes:
        found: how often each status came; "left": clients that disconnected.
    """

    def __init__(self, port: int, clients: int, seed: int) -> None:
        self.found: Counter[str] = Counter()
        self._port, self._clients = port, clients
        self._chance = random.Random(seed)

    async def run(self, seconds: float, pause_s: float) -> None:
        """Send requests for some time, each client with pauses of this mean."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._client(end, pause_s) for _ in range(self._clients)))

    async def _client(self, end: float, pause_s: float) -> None:
        chance = self._chance
        while time.monotonic() < end:
            kind = chance.random()
            if kind < _LEAVES:
                await leave(self._port, chance)
                self.found["left"] += 1
            else:
                kinds = WRONG if kind < _LEAVES + _WRONG else USUAL
                content = kinds[chance.choice([*kinds])](chance)
                async with asyncio.timeout(_TIMEOUT_S):
                    status = await status_of(self._port, content)
                self.found[str(status)] += 1
            await asyncio.sleep(chance.random() * 2 * pause_s)
