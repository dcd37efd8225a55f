"""Rows of a batch beside one live stream: what they take from each other.

    python -m benchmarks.batch MODEL.gguf --rows 10000 --slots 8

Prints a table: the live stream's time between two pieces without and with the batch (median, 99th
percentile and longest), its time to the first piece, and the tokens per second of the rows in the
engine without a server, of the batch alone, and beside the stream; then the processor time of a row
in the server's process and in the others. Alone means the same rows with nothing beside them. With
1 billion weights in Q4_K_M on two cores the default number of rows takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.server import server
from tampu.engine.engine import Engine

_POLL_S = 0.2
_ENDED = ("completed", "failed", "expired", "cancelled")


class Live:
    """One chat after another, streamed, until it is stopped.

    Attributes:
        first_s: the times to the first piece.
        gaps_s: those between two pieces.
    """

    def __init__(self, url: str, model: str, tokens: int) -> None:
        self.first_s: list[float] = []
        self.gaps_s: list[float] = []
        self._url, self._tokens, self._model = url, tokens, model
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Stream within the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()

    def chat(self) -> None:
        """Stream one answer."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": "Tell a long story."}],
            "max_tokens": self._tokens,
            "stream": True,
            "ignore_eos": True,
        }
        last_s, is_first = time.perf_counter(), True
        with httpx.stream(
            "POST", f"{self._url}/v1/chat/completions", json=body, timeout=None
        ) as answer:
            for text in answer.iter_lines():
                if '"content":' not in text or '"content":null' in text:
                    continue
                now_s = time.perf_counter()
                (self.first_s if is_first else self.gaps_s).append(now_s - last_s)
                last_s, is_first = now_s, False

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.chat()


def messages(number: int) -> list[dict[str, Any]]:
    """Return the conversation of a row."""
    return [{"role": "user", "content": f"Write about the number {number}."}]


def run_engine(model: str, rows: int, tokens: int, slots: int) -> float:
    """Answer the rows in an engine of this process, all slots busy; return tokens per second."""
    options: dict[str, Any] = {"max_tokens": tokens, "ignore_eos": True}
    with (
        Engine.load(model, context=1024, slots=slots) as engine,
        ThreadPoolExecutor(2 * slots) as pool,
    ):
        engine.chat(messages(0), **options)
        since_s = time.perf_counter()
        found = pool.map(lambda number: engine.chat(messages(number), **options), range(rows))
        done = sum(answer.usage.generated_tokens for answer in found)
        return done / (time.perf_counter() - since_s)


def run_batch(url: str, model: str, rows: int, tokens: int) -> tuple[float, dict[str, Any]]:
    """Run a batch; return its seconds and what the server says of it at the end."""
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": model,
                "messages": messages(number),
                "max_tokens": tokens,
                "ignore_eos": True,
            },
        }
        for number in range(rows)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with httpx.Client(base_url=url, timeout=None) as client:
        file = client.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("rows.jsonl", content)}
        ).json()
        since_s = time.perf_counter()
        body = {
            "input_file_id": file["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        batch = client.post("/v1/batches", json=body).json()
        while batch["status"] not in _ENDED:
            time.sleep(_POLL_S)
            batch = client.get(f"/v1/batches/{batch['id']}").json()
        return time.perf_counter() - since_s, batch


def processor_s(process: psutil.Process) -> tuple[float, float]:
    """Return the processor time of a server, and of the model's and the sandboxes' processes."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    own, *others = (each.user + each.system for each in times)
    return own, sum(others)


def described(live: Live) -> str:
    """Return the figures of a live stream, in milliseconds."""
    gaps = sorted(live.gaps_s)
    rare = gaps[int(len(gaps) * 0.99)]
    shown = (statistics.median(gaps), rare, gaps[-1], statistics.median(live.first_s))
    return " | ".join(f"{seconds * 1000:.1f}" for seconds in shown)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a file, or the name of the built-in model")
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--tokens", type=int, default=32, help="of each row's answer")
    parser.add_argument("--stream-tokens", type=int, default=256)
    parser.add_argument("--slots", type=int, default=8)
    given = parser.parse_args()
    rows, tokens = given.rows, given.tokens
    name = Path(given.model).stem
    offline = run_engine(given.model, rows, tokens, given.slots)
    with server(given.model, TAMPU_NUM_PARALLEL=str(given.slots)) as (process, port):
        url = f"http://127.0.0.1:{port}"
        Live(url, name, 1).chat()  # loads the model
        alone = Live(url, name, given.stream_tokens)
        alone.chat()
        before = processor_s(process)
        alone_s, batch = run_batch(url, name, rows, tokens)
        after = processor_s(process)
        beside = Live(url, name, given.stream_tokens)
        with beside.running():
            seconds, beside_batch = run_batch(url, name, rows, tokens)
    print("| | median gap, ms | 99 % | longest | first piece | rows | tokens/s | of the engine |")
    print("|---|---|---|---|---|---|---|---|")
    print(f"| rows in the engine | | | | | {rows} | {offline:.1f} | |")
    print(f"| stream alone | {described(alone)} | | | |")
    for what, live, took_s, found in (
        ("batch alone", " | | | ", alone_s, batch),
        ("both", described(beside), seconds, beside_batch),
    ):
        done = found["request_counts"]["completed"]
        rate = found["usage"]["output_tokens"] / took_s
        print(f"| {what} | {live} | {done} | {rate:.1f} | {rate / offline:.2f} |")
    gap = statistics.median(beside.gaps_s) / statistics.median(alone.gaps_s)
    print(f"the stream's median gap beside the batch: {gap:.2f} of that alone")
    own, others = ((b - a) / rows * 1e3 for a, b in zip(before, after, strict=True))
    print(
        f"a row alone: {own:.2f} ms of processor time in the server, {others:.2f} ms in the others"
    )


if __name__ == "__main__":
    main()
