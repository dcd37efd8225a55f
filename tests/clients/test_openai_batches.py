"""Files and batches through the `openai` package, after `kill -9`, and beside live requests."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.batches import ENDED, jsonl, line
from support.serving import Server, start_server
from support.waiting import wait_until

pytestmark = [pytest.mark.client, pytest.mark.server]


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def asked(count: int, **body: Any) -> bytes:
    options: dict[str, Any] = {"model": "demo", "max_tokens": 4, "temperature": 0} | body
    return jsonl(line(f"row {n}", f"What is {n} + 1?", **options) for n in range(count))


def begin(client: openai.OpenAI, content: bytes) -> str:
    file = client.files.create(file=("rows.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    ).id


def ended(client: openai.OpenAI, id: str) -> openai.types.Batch:
    def found() -> openai.types.Batch | None:
        batch = client.batches.retrieve(id)
        return batch if batch.status in ENDED else None

    batch = wait_until(found, "the batch has ended", 300.0)
    assert batch is not None
    return batch


def lines(client: openai.OpenAI, file: str | None) -> dict[str, Any]:
    assert file is not None
    found = [json.loads(each) for each in client.files.content(file).text.splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


def test_the_documented_steps_of_a_batch(native: Server, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(asked(3))
    with client_of(native) as client:
        file = client.files.create(file=path, purpose="batch")
        assert (file.filename, file.purpose, file.bytes) == ("rows.jsonl", "batch", len(asked(3)))
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"description": "sums"},
        )
        assert batch.id in [each.id for each in client.batches.list(limit=2)]
        batch = ended(client, batch.id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 3, "completed": 3, "failed": 0}
        assert batch.usage is not None
        assert batch.usage.output_tokens > 0
        found = lines(client, batch.output_file_id)
        direct = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "What is 2 + 1?"}],
            max_tokens=4,
            temperature=0,
        )
        answer = found["row 2"]["response"]["body"]["choices"][0]["message"]["content"]
        assert answer == direct.choices[0].message.content
        assert client.files.retrieve(file.id).id == file.id
        assert file.id in [each.id for each in client.files.list(purpose="batch")]
        assert client.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(file.id)


@pytest.mark.slow
def test_after_kill_9_no_row_is_lost_or_done_again(models: Path, tmp_path: Path) -> None:
    first = start_server(models, tmp_path)
    try:
        with client_of(first) as client:
            id = begin(client, asked(30))

            def completed() -> int:
                counts = client.batches.retrieve(id).request_counts
                return counts.completed if counts else 0

            wait_until(lambda: completed() >= 5, "some rows are done", 300.0)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    finally:
        first.end()
    place = tmp_path / ".local" / "state" / "tampu" / "state.sqlite3"
    with sqlite3.connect(place) as state:
        query = "SELECT custom_id, result FROM rows WHERE result IS NOT NULL"
        done = {name: json.loads(result) for name, result in state.execute(query)}
    state.close()
    assert 5 <= len(done) < 30
    second = start_server(models, tmp_path)
    try:
        with client_of(second) as client:
            batch = ended(client, id)
            assert batch.status == "completed"
            assert batch.request_counts is not None
            assert batch.request_counts.to_dict() == {"total": 30, "completed": 30, "failed": 0}
            found = lines(client, batch.output_file_id)
            assert [*found] == [f"row {n}" for n in range(30)]
            assert {name: found[name] for name in done} == done
    finally:
        second.end()


def running(server: Server) -> int:
    """How many requests use the model `tiny`."""
    text = httpx.get(f"{server.url}/metrics").text
    found = re.search(r'^tampu_model_requests\{model="tiny[^"]*"\} (\d+)', text, re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_live_request_is_answered_before_rows_that_never_end(own_server: Server) -> None:
    with client_of(own_server) as client:
        rows = asked(6, model="tiny", max_tokens=10**9)
        id = begin(client, rows)
        wait_until(lambda: running(own_server) > 0, "rows run")
        for _ in range(3):
            stream = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "x"}],
                max_tokens=3,
                temperature=0,  # sampling may take the end token
                stream=True,
            )
            assert [*stream][-1].choices[0].finish_reason == "length"
        batch = client.batches.retrieve(id)
        assert batch.status == "in_progress"
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 0
        client.batches.cancel(id)
        assert ended(client, id).status == "cancelled"
