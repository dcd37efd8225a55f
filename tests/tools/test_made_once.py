"""What tests make is made once, and again if anything that it depends on has changed."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.made_once import key_of, made_once


def test_a_folder_is_made_once_and_each_test_has_its_own(tmp_path: Path) -> None:
    calls: list[Path] = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "a").write_text("made")

    first = made_once("key", "name", tmp_path / "1", make, tmp_path / "kept")
    (first / "a").write_text("changed by a test")
    second = made_once("key", "name", tmp_path / "2", make, tmp_path / "kept")
    assert (second / "a").read_text() == "made"
    made_once("key", "other name", tmp_path / "3", make, tmp_path / "kept")
    made_once("other key", "name", tmp_path / "4", make, tmp_path / "kept")
    assert len(calls) == 3


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        made_once("key", "name", tmp_path / "1", fail, tmp_path / "kept")
    assert [*(tmp_path / "kept").iterdir()] == []
    made_once("key", "name", tmp_path / "1", Path.exists, tmp_path / "kept")


def test_two_may_make_the_same_at_the_same_time(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def make(folder: Path) -> None:
        both.wait(60)
        (folder / "a").write_text("made")

    def one(number: int) -> None:
        made_once("key", "name", tmp_path / str(number), make, tmp_path / "kept")

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(one, range(2)))
    assert [(tmp_path / str(number) / "a").read_text() for number in range(2)] == ["made"] * 2
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"key"}


def test_folders_that_no_run_used_for_a_week_are_deleted(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for key in ("old", "used"):
        made_once(key, "name", tmp_path / key, Path.exists, kept)
        os.utime(kept / key, (0, 0))
    made_once("used", "name", tmp_path / "used", Path.exists, kept)
    made_once("new", "name", tmp_path / "new", Path.exists, kept)
    assert {path.name for path in kept.iterdir()} == {"used", "new"}


def test_the_key_changes_with_the_source_what_it_imports_and_versions(tmp_path: Path) -> None:
    support = tmp_path / "tests" / "support"
    support.mkdir(parents=True)
    (support / "one.py").write_text("from support.two import x\n")
    (support / "two.py").write_text("x = 1\n")
    (support / "three.py").write_text("x = 1\n")

    def key(*versions: str) -> str:
        return key_of(["tests/support/one.py"], versions, tmp_path)

    found = {key("1"), key("2")}
    (support / "three.py").write_text("x = 2\n")
    assert key("1") in found
    (support / "two.py").write_text("x = 2\n")
    found.add(key("1"))
    (support / "one.py").write_text("from support.two import x as y\n")
    found.add(key("1"))
    assert len(found) == 4
