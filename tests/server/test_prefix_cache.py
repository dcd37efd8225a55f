"""A server that is started again continues conversations where they were."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.serving import Server, start_server
from support.tiny_model import Tiny, write_tiny
from support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.slow]

PROMPT = "".join(chr(ord("a") + (at * at + at // 7) % 26) for at in range(600))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    write_tiny(folder / "tiny.gguf", Tiny(context=1024))
    return folder


def started(models: Path, home: Path, limit: str = "1GB") -> Server:
    return start_server(
        models, home, TAMPU_THREADS="1", TAMPU_CONTEXT_LENGTH="1024", TAMPU_PREFIX_CACHE=limit
    )


def ask(server: Server) -> dict[str, Any]:
    """Return the usage of an answer, and its text."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return {"text": found["choices"][0]["text"], **found["usage"]}


def cached(usage: dict[str, Any]) -> int:
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens", 0))


def test_after_a_restart_the_whole_beginning_is_cached(models: Path, tmp_path: Path) -> None:
    answers = []
    for _ in range(2):
        server = started(models, tmp_path)
        try:
            answers.append(ask(server))
            assert server.stop() == 0
        finally:
            server.end()
    first, second = answers
    assert cached(first) == 0
    assert cached(second) == second["prompt_tokens"] - 1
    assert second["text"] == first["text"]


def test_after_a_killed_process_what_was_written_is_cached(models: Path, tmp_path: Path) -> None:
    server = started(models, tmp_path)
    try:
        first = ask(server)
        kept = tmp_path / ".cache" / "tampu" / "prefix"
        wait_until(lambda: len([*kept.rglob("*.rows")]) == 3, "three blocks are written")
        [worker] = server.workers()
        worker.send_signal(signal.SIGKILL)
        wait_until(lambda: worker not in server.workers(), "it has ended")
        second = ask(server)
    finally:
        server.end()
    assert cached(second) == second["prompt_tokens"] - 1
    assert second["text"] == first["text"]


def test_without_the_setting_nothing_is_kept(models: Path, tmp_path: Path) -> None:
    server = started(models, tmp_path, limit="off")
    try:
        ask(server)
        assert server.stop() == 0
    finally:
        server.end()
    assert not (tmp_path / ".cache" / "tampu" / "prefix").exists()
