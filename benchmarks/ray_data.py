"""Rows of Ray Data with a model in an actor: `python -m benchmarks.ray_data [--rows N]`.

Texts are embedded, and sums are answered, by the built-in model: read from Parquet and written to
it, with checkpoints. The program is killed after a third of the rows and run
again; then it is checked that each row is there once. Beside it: rows a second of the engine alone,
how many requests the model's steps had (from the run loop's records), and for how much of the time
between its first and its last step it computed.

It needs `tampu[ray-data]` and, with 100,000 rows, about ten minutes; `--answers` are fewer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.cluster_utils import Cluster
from ray.data.checkpoint import CheckpointConfig

from tampu import Engine
from tampu.cluster.data import Chat, Embed

MODEL = "demo"
SLOTS, TOKENS = 8, 8
CPUS = 4  # for Ray's count: one for the actor, others for reading and for leaving out rows
BATCH, BLOCK = {"embed": 256, "chat": 64}, {"embed": 2048, "chat": 512}
STORE_BYTES = 200 * 2**20
POLL_S = 0.1


def text_of(number: int) -> str:
    """Return a sum; there are 6,400."""
    return f"What is {10 + number % 80} + {11 + number // 80 % 80}?"


class Watch(threading.Thread):
    """Keeps in a file what the steps of a model had; one for each process."""

    def __init__(self, engine: Engine, folder: str) -> None:
        super().__init__(daemon=True)
        self._engine = engine
        self._path = Path(folder) / f"steps-{os.getpid()}.json"
        self._sizes: Counter[int] = Counter()
        self._compute_ms = self._first_ms = self._last_ms = 0.0

    def run(self) -> None:
        """Take records until the process ends."""
        while True:
            for step in self._engine.runner.observe().steps:
                self._sizes[len(step.parts)] += 1
                self._compute_ms += step.compute_ms
                self._first_ms = self._first_ms or step.began_ms
                self._last_ms = step.began_ms + step.compute_ms
            self._path.with_suffix(".new").write_text(json.dumps({
                "sizes": self._sizes,
                "compute_ms": self._compute_ms,
                "ms": self._last_ms - self._first_ms,
            }))  # fmt: skip
            self._path.with_suffix(".new").rename(self._path)
            time.sleep(POLL_S)


class WatchedChat(Chat):
    """Answers, watched."""

    def __init__(self, folder: str, **given: Any) -> None:
        super().__init__(**given)
        Watch(self._engine, folder).start()


class WatchedEmbed(Embed):
    """Embeddings, watched."""

    def __init__(self, folder: str, **given: Any) -> None:
        super().__init__(**given)
        Watch(self._engine, folder).start()


def work(part: str, folder: Path) -> None:
    """Do the rows that are not done: the program that is killed and run again."""
    ray.init(log_to_driver=False, logging_level="ERROR")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.checkpoint_config = CheckpointConfig(
        id_column="id", checkpoint_path=str(folder / "checkpoints")
    )
    context.checkpoint_config.delete_checkpoint_on_success = False
    given: dict[str, Any] = {"folder": str(folder), "model": MODEL, "load": {"slots": SLOTS}}
    if part == "chat":
        given |= {"column": "text", "max_tokens": TOKENS, "temperature": 0}
    rows = ray.data.read_parquet(str(folder / "rows"))
    rows.repartition(target_num_rows_per_block=BLOCK[part]).map_batches(
        WatchedChat if part == "chat" else WatchedEmbed,
        fn_constructor_kwargs=given,
        batch_size=BATCH[part],
        num_cpus=1,
        concurrency=1,
    ).write_parquet(str(folder / "done"))


def start(part: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start the program."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.ray_data", "--work", part]
    return subprocess.Popen([*command, "--folder", str(folder)])


def committed(folder: Path) -> int:
    """Return how many rows are written, by the checkpoints."""
    found = (folder / "checkpoints").glob("*.parquet")
    return sum(pq.read_metadata(each).num_rows for each in found if ".pending" not in each.name)


def report_steps(folder: Path) -> None:
    """Print what the steps of each actor had."""
    for path in sorted(folder.glob("steps-*.json"), key=lambda each: each.stat().st_mtime):
        told = json.loads(path.read_text())
        sizes = {int(size): count for size, count in told["sizes"].items()}
        steps = sum(sizes.values())
        if not steps:
            continue
        requests = sum(size * count for size, count in sizes.items())
        full = sum(count for size, count in sizes.items() if size >= SLOTS)
        print(
            f"  {steps} steps, of {requests / steps:.1f} requests in the mean; {full / steps:.3f} "
            f"of them of {SLOTS} or more; it computed for {told['compute_ms'] / told['ms']:.3f} of "
            f"{told['ms'] / 1e3:.1f} s",
            flush=True,
        )


def by_ray(part: str, count: int, folder: Path) -> None:
    """Print how fast rows are done, in two runs, the first of which is killed."""
    (folder / "rows").mkdir(parents=True)
    table = pa.table({"id": range(count), "text": [text_of(number) for number in range(count)]})
    pq.write_table(table, folder / "rows" / "all.parquet")
    began = time.perf_counter()
    running = start(part, folder)
    while running.poll() is None and committed(folder) < count / 3:
        time.sleep(POLL_S)
    running.kill()
    running.wait()
    killed, seconds = committed(folder), time.perf_counter() - began
    print(f"{part}: killed after {seconds:.1f} s, {killed} of {count} rows written", flush=True)
    began = time.perf_counter()
    status = start(part, folder).wait()
    seconds = time.perf_counter() - began
    found = pq.read_table(folder / "done", columns=["id", "error"])
    ids = found["id"].to_pylist()
    twice, failed = len(ids) - len({*ids}), sum(map(bool, found["error"].to_pylist()))
    print(
        f"{part}: run again: status {status}, the other {count - killed} rows in {seconds:.1f} s "
        f"({(count - killed) / seconds:.0f} a second, with the start); {len({*ids})} rows are "
        f"written, {twice} of them twice, {failed} with an error",
        flush=True,
    )
    report_steps(folder)


def alone(part: str, count: int) -> float:
    """Return the rows a second of the engine alone."""
    texts = [text_of(number) for number in range(count)]
    parts = [texts[at : at + BATCH[part]] for at in range(0, count, BATCH[part])]

    async def answer(engine: Engine) -> None:
        for each in parts:
            rows = [[{"role": "user", "content": text}] for text in each]
            asked = (engine.achat(row, max_tokens=TOKENS, temperature=0) for row in rows)
            await asyncio.gather(*asked)

    with Engine.load(MODEL, slots=SLOTS, threads=1) as engine:
        began = time.perf_counter()
        if part == "chat":
            asyncio.run(answer(engine))
        else:
            for each in parts:
                engine.embed(each)
        return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows of Ray Data with a model in an actor.")
    parser.add_argument("--rows", type=int, default=100_000, help="that are embedded")
    parser.add_argument("--answers", type=int, default=20_000, help="that are answered")
    parser.add_argument("--work", choices=("embed", "chat"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.folder)
        return
    size = {"num_cpus": CPUS, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    with tempfile.TemporaryDirectory() as name:
        cluster = Cluster(initialize_head=True, head_node_args=size)
        os.environ["RAY_ADDRESS"] = cluster.address  # noqa: TID251 - for programs
        for part, count in (("embed", arguments.rows), ("chat", arguments.answers)):
            by_ray(part, count, Path(name) / part)
        cluster.shutdown()
    for part in ("embed", "chat"):
        print(f"{part}: the engine alone {alone(part, 5000):.0f} rows a second", flush=True)


if __name__ == "__main__":
    main()
