"""`POST /slots/{id}`: saved, restored and erased over HTTP, also by a server started again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.serving import start_server
from support.tiny_model import Tiny, write_tiny

pytestmark = [pytest.mark.server, pytest.mark.slow]

PROMPT = "".join(chr(ord("a") + (at * at + at // 7) % 26) for at in range(200))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    write_tiny(folder / "tiny.gguf", Tiny(context=512))
    write_tiny(folder / "other.gguf", Tiny(context=512, seed=1))
    (tmp_path / "slots").mkdir()
    return folder


@contextmanager
def server(models: Path, home: Path, *options: str) -> Iterator[httpx.Client]:
    """Give a client of a server."""
    running = start_server(
        models, home, *options, TAMPU_THREADS="1", TAMPU_DEFAULT_MODEL="tiny",
        TAMPU_CONTEXT_LENGTH="512",
    )  # fmt: skip
    try:
        with httpx.Client(base_url=running.url, timeout=120) as client:
            yield client
    finally:
        running.end()


def ask(client: httpx.Client) -> int:
    """Return how many tokens of a prompt were cached."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    usage = client.post("/v1/completions", json=body).json()["usage"]
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens", 0))


def act(client: httpx.Client, action: str, **body: Any) -> httpx.Response:
    return client.post(f"/slots/0?action={action}", json=body)


def test_a_saved_conversation_is_restored_by_the_next_server(models: Path, tmp_path: Path) -> None:
    options = ("--slot-save-path", str(tmp_path / "slots"))
    with server(models, tmp_path, *options) as client:
        assert ask(client) == 0
        saved = act(client, "save", filename="talk.bin").json()
        assert saved["timings"].keys() == {"save_ms"}
        size = (tmp_path / "slots" / "talk.bin").stat().st_size
        assert (saved["id_slot"], saved["filename"], saved["n_written"]) == (0, "talk.bin", size)
        count = saved["n_saved"]
        assert count > 190
        assert act(client, "erase").json() == {"id_slot": 0, "n_erased": count}
        assert ask(client) == 0
    with server(models, tmp_path, *options) as client:
        restored = act(client, "restore", filename="talk.bin").json()
        assert (restored["n_restored"], restored["n_read"]) == (count, size)
        assert restored["timings"].keys() == {"restore_ms"}
        assert ask(client) == count - 4  # but for the prompt's last token, and the answer's
        other = act(client, "restore", filename="talk.bin", model="other")
        assert other.status_code == 400
        assert "another model or of other options; different: model, name" in other.text


def test_what_is_wrong_is_said_and_nothing_is_written(models: Path, tmp_path: Path) -> None:
    options = ("--slot-save-path", str(tmp_path / "slots"))
    with server(models, tmp_path, *options) as client:
        wrong = {
            "slot 0 has had no request": act(client, "save", filename="talk"),
            "without folders": act(client, "save", filename="../talk"),
            "filename ''": act(client, "restore"),
            "snapshot talk not found": act(client, "restore", filename="talk"),
            "action must be": act(client, "copy", filename="talk"),
            "there is no slot 8": client.post("/slots/8?action=save", json={"filename": "talk"}),
            "must be a number": client.post("/slots/x?action=save", json={"filename": "talk"}),
        }
    for reason, answer in wrong.items():
        assert answer.status_code == 400, reason
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == (400, "invalid_request_error")
        assert reason in error["message"]
    assert [*(tmp_path / "slots").iterdir()] == []
    with server(models, tmp_path) as client:
        assert "--slot-save-path" in act(client, "save", filename="talk").text
