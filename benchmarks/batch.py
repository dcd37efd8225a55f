"""Rows of a batch beside one live stream: what they take from each other.

    python -m benchmarks.batch MODEL.gguf --rows 10000 --slots 8

Prints a table: the live stream's time between two pieces without and with the batch (median and
99th percentile), its time to the first piece, and the batch's tokens per second beside the stream
and alone. Alone means the same rows with nothing beside them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.server import server

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


def run_batch(url: str, model: str, rows: int, tokens: int) -> tuple[float, dict[str, Any]]:
    """Run a batch; return its seconds and what the server says of it at the end."""
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": model,
                "messages": [{"role": "user", "content": f"Write about the number {number}."}],
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


def described(live: Live) -> str:
    """Return the figures of a live stream, in milliseconds."""
    gaps = sorted(live.gaps_s)
    first = statistics.median(live.first_s) * 1000
    rare = gaps[int(len(gaps) * 0.99)] * 1000
    return f"{statistics.median(gaps) * 1000:.1f} | {rare:.1f} | {first:.1f}"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=32, help="of each row's answer")
    parser.add_argument("--stream-tokens", type=int, default=256)
    parser.add_argument("--slots", type=int, default=8)
    given = parser.parse_args()
    name = given.model.stem
    with server(str(given.model), TAMPU_NUM_PARALLEL=str(given.slots)) as (_, port):
        url = f"http://127.0.0.1:{port}"
        Live(url, name, 1).chat()  # loads the model
        alone = Live(url, name, given.stream_tokens)
        for _ in range(3):
            alone.chat()
        offline_s, batch = run_batch(url, name, given.rows, given.tokens)
        beside = Live(url, name, given.stream_tokens)
        with beside.running():
            seconds, beside_batch = run_batch(url, name, given.rows, given.tokens)
    print("| | median gap, ms | 99th percentile, ms | first piece, ms | rows done | tokens/s |")
    print("|---|---|---|---|---|---|")
    print(f"| stream alone | {described(alone)} | | |")
    done = batch["request_counts"]["completed"]
    print(f"| batch alone | | | | {done} | {batch['usage']['output_tokens'] / offline_s:.1f} |")
    done, tokens = beside_batch["request_counts"]["completed"], beside_batch["usage"]
    print(f"| both | {described(beside)} | {done} | {tokens['output_tokens'] / seconds:.1f} |")


if __name__ == "__main__":
    main()
