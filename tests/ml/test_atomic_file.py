"""Atomic files: the old content or the new, and one writer at a time."""

import os
from pathlib import Path
from typing import Any, cast

import pytest

from tampu.errors import DiskFullError
from tampu.ml.atomic_file import atomic_file, check_free_space, remove_unlocked


def names(folder: Path) -> list[Any]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_its_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_file(path, mode=0o640) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["file"]


def test_an_error_in_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), atomic_file(path) as file:
        file.write(cast("bytes", "no bytes"))
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_path_without_a_name_is_refused() -> None:
    for path in (Path(), Path("/")):
        with pytest.raises(IsADirectoryError), atomic_file(path):
            pass


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_file(path) as file:
        file.write(b"first")
        with pytest.raises(BlockingIOError, match="another process"), atomic_file(path):
            pass
        assert not remove_unlocked(tmp_path / ".file.partial")
    assert path.read_bytes() == b"first"


def test_a_partial_file_of_a_killed_process_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".file.partial").write_bytes(b"much longer than the new content")
    with atomic_file(tmp_path / "file") as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_all_bytes_are_written_when_the_system_takes_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with atomic_file(tmp_path / "file") as file:
        assert file.write(b"ten bytes.") == 10
    assert (tmp_path / "file").read_bytes() == b"ten bytes."


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    check_free_space(tmp_path / "no" / "such" / "folder", 1)
    with pytest.raises(DiskFullError, match="no space left"):
        check_free_space(tmp_path / "file", 1 << 60)
