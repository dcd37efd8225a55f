"""`tampu cache`: what the prefix cache has on disk, listed, pruned and cleared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tampu.kvcache.block_file import CacheKey, PrefixTokens
from tampu.kvcache.block_folder import BlockFolder
from tampu.kvcache.block_index import BlockIndex
from tests.cli.conftest import Run


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TAMPU_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "cache" / "prefix"
    for name in ("a.gguf", "b.gguf"):
        folder = BlockIndex(BlockFolder(root, 10**9, CacheKey({"name": name})))
        tokens = PrefixTokens(np.arange(8, dtype=np.int32), {})
        rows = np.zeros(4000, np.uint8)
        first = folder.write(tokens, [], (0, 4), np.ones((1, 4), np.bool_), [rows])
        assert first
        second = folder.write(tokens, [first], (4, 8), np.ones((1, 4), np.bool_), [rows])
        assert second
        folder.use([first, second])
    return root


@pytest.fixture
def run(run: Run) -> Run:
    return lambda *arguments: run("cache", *arguments)


@pytest.mark.usefixtures("root")
def test_each_model_is_listed_with_its_size_the_last_used_first(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    titles, *lines = out.splitlines()
    assert titles.split() == ["NAME", "KEY", "SIZE", "BLOCKS", "USED"]
    assert [line.split()[0] for line in lines] == ["b.gguf", "a.gguf"]
    assert lines[0].split()[2:5] == ["8.3", "KB", "2"]
    listed = json.loads(run("list", "--json")[1])
    assert [(each["name"], each["blocks"]) for each in listed] == [("b.gguf", 2), ("a.gguf", 2)]


def test_pruning_keeps_what_was_used_last(run: Run, root: Path) -> None:
    code, out, _ = run("prune", "--size", "10KB")
    assert (code, out) == (0, "deleted 8.3 KB\n")
    assert [each["name"] for each in json.loads(run("--json")[1])] == ["b.gguf"]
    code, _, error = run("prune")
    assert code == 2
    assert "TAMPU_PREFIX_CACHE is off: say with --size how much to keep" in error
    assert run("prune", "--size", "0")[0] == 0
    assert list(root.rglob("*.rows")) == []


def test_one_model_is_cleared_by_its_name_or_key(run: Run, root: Path) -> None:
    assert run("clear", "a.gguf")[:2] == (0, "deleted 8.3 KB\n")
    [left] = json.loads(run("--json")[1])
    assert left["name"] == "b.gguf"
    assert run("clear", left["key"][:12])[:2] == (0, "deleted 8.3 KB\n")
    assert list(root.iterdir()) == []


def test_a_model_is_listed_and_cleared_by_the_name_it_is_run_by(run: Run, root: Path) -> None:
    folder = BlockIndex(BlockFolder(root, 10**9, CacheKey({"name": "demo.gguf"})))
    tokens, rows = PrefixTokens(np.arange(4, dtype=np.int32), {}), np.zeros(400, np.uint8)
    assert folder.write(tokens, [], (0, 4), np.ones((1, 4), np.bool_), [rows])
    assert "demo" in [line.split()[0] for line in run()[1].splitlines()]
    listed = json.loads(run("--json")[1])
    assert ("demo", ["demo"], "demo.gguf") in [
        (each["name"], each["models"], each["file"]) for each in listed
    ]
    assert run("clear", "demo:latest")[0] == 0
    assert [each["name"] for each in json.loads(run("--json")[1])] == ["b.gguf", "a.gguf"]


@pytest.mark.usefixtures("root")
def test_what_is_not_there_or_no_size_is_an_error_with_what_to_do(run: Run) -> None:
    code, _, error = run("clear", "c.gguf")
    assert code == 2
    assert "nothing of 'c.gguf': see `tampu cache`" in error
    code, _, error = run("prune", "--size", "much")
    assert code == 2
    assert "--size is 'much': it must be bytes, such as 20GB" in error
    assert "on or off" not in error
    assert run("prune", "--size", "on")[0] == 2


def test_an_empty_cache_is_an_empty_list(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMPU_CACHE", str(tmp_path))
    assert json.loads(run("--json")[1]) == []
    assert run("clear")[:2] == (0, "deleted 0 B\n")
