"""Batches of Ray Data, as docs/ray-data.md has them, on a node of this machine: `make ray-test`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from ray.cluster_utils import Cluster
from support.serving import start_server
from support.waiting import wait_until

from tampu import Engine
from tampu.cluster.data import Chat, Embed

ROWS = 1200
PAGE = Path(__file__).parents[2] / "docs" / "ray-data.md"
STORE_BYTES = 120 * 1024 * 1024


@pytest.fixture(autouse=True)
def no_threads_left() -> None:
    """Ray's threads stay as long as the connection to the cluster."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    size = {"num_cpus": 4, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=size)
    ray.init(found.address, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield found
    ray.shutdown()
    found.shutdown()


def question(number: int) -> tuple[str, str]:
    """A question, and its answer."""
    first, second = 10 + number % 80, 11 + number * 7 % 80
    return f"What is {first} + {second}?", f"{first + second}"


def write_questions(folder: Path, count: int) -> None:
    texts = [question(number)[0] for number in range(count)]
    (folder / "questions").mkdir()
    table = pa.table({"id": range(count), "question": texts})
    pq.write_table(table, folder / "questions" / "all.parquet")


def program(number: int, folder: Path) -> str:
    """A program of the page, with its files in a folder."""
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    return str(programs[number]).replace("/data/", f"{folder}/")


def started(code: str, folder: Path, cluster: Cluster) -> subprocess.Popen[bytes]:
    told = {"RAY_ADDRESS": cluster.address, "TAMPU_THREADS": "1"}
    environment = os.environ | told  # noqa: TID251 - for a program
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
        )


def check_run(code: str, folder: Path, cluster: Cluster) -> None:
    status = started(code, folder, cluster).wait()
    assert status == 0, (folder / "output").read_text()[-3000:]


def written(folder: Path) -> dict[str, int]:
    """The files of answers, and their times."""
    return {each.name: each.stat().st_mtime_ns for each in (folder / "answers").glob("*.parquet")}


def test_a_run_that_was_killed_goes_on_and_does_no_row_twice(
    cluster: Cluster, tmp_path: Path
) -> None:
    write_questions(tmp_path, ROWS)
    code = program(0, tmp_path)
    running = started(code, tmp_path, cluster)
    wait_until(lambda: len(committed(tmp_path)) > 2, "some rows are written")
    running.kill()
    running.wait()
    done = pq.read_table(committed(tmp_path))["id"]
    assert 0 < len(done) < ROWS
    files = [name for name in written(tmp_path) if is_whole(tmp_path / "answers" / name)]
    before = {name: time for name, time in written(tmp_path).items() if name in files}

    check_run(code, tmp_path, cluster)
    table = pq.read_table(tmp_path / "answers")
    assert sorted(table["id"].to_pylist()) == [*range(ROWS)]
    answers = dict(zip(table["id"].to_pylist(), table["generated_text"].to_pylist(), strict=True))
    assert answers == {number: question(number)[1] for number in range(ROWS)}
    assert set(table["error"].to_pylist()) == {""}
    kept = before.items() & written(tmp_path).items()
    rows = [pq.read_table(tmp_path / "answers" / name)["id"] for name, _ in kept]
    assert {*done.to_pylist()} <= {each for ids in rows for each in ids.to_pylist()}


def committed(folder: Path) -> list[Path]:
    """The files with the ids of rows that are written."""
    found = (folder / "checkpoints").glob("*.parquet")
    return [each for each in found if ".pending" not in each.name]


def is_whole(path: Path) -> bool:
    try:
        pq.read_metadata(path)
    except (pa.ArrowInvalid, OSError):
        return False
    return True


def test_a_server_answers_the_rows_of_rays_own_processor(cluster: Cluster, tmp_path: Path) -> None:
    write_questions(tmp_path, 50)
    server = start_server(tmp_path, tmp_path, TAMPU_NUM_PARALLEL="8", TAMPU_THREADS="1")
    try:
        code = program(1, tmp_path).replace("http://127.0.0.1:11434", server.url)
        check_run(code, tmp_path, cluster)
    finally:
        server.end()
    table = pq.read_table(tmp_path / "answers")
    answers = dict(zip(table["id"].to_pylist(), table["answer"].to_pylist(), strict=True))
    assert answers == {number: question(number)[1] for number in range(50)}


@pytest.mark.usefixtures("cluster")
def test_conversations_are_answered_and_a_bad_row_is_told_beside_the_others() -> None:
    rows = [
        [{"role": "user", "content": "What is 27 + 58?"}],
        [{"role": "user", "content": "word " * 5000}],
        [{"role": "system", "content": "Hello."}, {"role": "user", "content": "What is 12 + 13?"}],
    ]
    found = ray.data.from_items([{"id": n, "messages": row} for n, row in enumerate(rows)])
    given = {"model": "demo", "max_tokens": 20}
    answers = found.map_batches(Chat, fn_constructor_kwargs=given, num_cpus=0.5, concurrency=1)
    first, second, third = sorted(answers.take_all(), key=lambda row: int(row["id"]))
    assert (first["generated_text"], first["finish_reason"], first["error"]) == ("85", "stop", "")
    assert first["num_generated_tokens"] > 0
    assert second["finish_reason"] == "error"
    assert "prompt" in second["error"]
    assert third["generated_text"] == "25"


@pytest.mark.usefixtures("cluster")
def test_texts_are_embedded_as_by_the_engine() -> None:
    texts = [f"a text of {number}" for number in range(40)] + ["word " * 5000]
    found = ray.data.from_items([{"id": n, "text": text} for n, text in enumerate(texts)])
    embedded = found.map_batches(
        Embed, fn_constructor_kwargs={"model": "demo"}, batch_size=16, num_cpus=0.5, concurrency=1
    )
    *rows, bad = sorted(embedded.take_all(), key=lambda row: int(row["id"]))
    with Engine.load("demo") as engine:
        expected = engine.embed(texts[:-1])
    # With AMX the rounding of the products depends on how many texts share a step.
    np.testing.assert_allclose([row["embeddings"] for row in rows], expected, atol=5e-3)
    assert {row["error"] for row in rows} == {""}
    assert np.isnan(bad["embeddings"]).all()
    assert bad["error"]
