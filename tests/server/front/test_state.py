"""The folder of what a server keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.serving import start_server

from tampu.server.front.state import DATABASE, State

WARNING = "cannot be written: there are no batches"


@pytest.mark.server
def test_a_folder_that_cannot_be_written_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "file").touch()
    state = tmp_path / "file" / "state"
    server = start_server(tmp_path / "models", tmp_path, TAMPU_STATE=str(state))
    server.end()
    assert server.log.read_text().count(f"{state} {WARNING}") == 1


@pytest.mark.server
def test_one_that_can_be_made_is_not(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    server = start_server(tmp_path / "models", tmp_path, TAMPU_STATE=str(tmp_path / "a" / "b"))
    server.end()
    assert WARNING not in server.log.read_text()
    assert not (tmp_path / "a" / "b" / DATABASE).exists()


def test_nothing_is_made_to_find_out(tmp_path: Path) -> None:
    assert State(tmp_path / "a" / "b").is_writable
    assert State(None).is_writable
    assert [*tmp_path.iterdir()] == []
