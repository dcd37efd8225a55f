"""Packed weights on disk: mapped when they are right, else packed anew and replaced."""

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pytest
from support.engines import GREEDY, PROMPT, SMALL
from support.tiny_model import Tiny, tiny_weights, write_tiny

from tampu.engine.engine import Engine
from tampu.errors import LoadCancelledError
from tampu.ml import Backend, Weights
from tampu.ml.atomic_file import remove_unlocked
from tampu.ml.buffer_types import WeightUse
from tampu.ml.gguf import read_gguf
from tampu.ml.kernels import Kernels, repack_cache
from tampu.ml.kernels.repack_cache import RepackCache

LIMIT = 10**9


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Every call that packs strips; it packs as always."""
    calls = []
    pack = Kernels.pack

    def count(self: Any, *arguments: Any) -> None:
        calls.append(arguments)
        pack(self, *arguments)

    monkeypatch.setattr(Kernels, "pack", count)
    return calls


@pytest.fixture
def cache(tmp_path: Path) -> RepackCache:
    return RepackCache(tmp_path / "cache" / "packed", LIMIT)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "tiny.gguf")


def write(path: Path, seed: int = 0) -> Path:
    """Write a model whose matrices have a packed layout."""
    tiny = Tiny(seed=seed)
    names = [name for name, values in tiny_weights(tiny).items() if values.ndim == 2]
    return write_tiny(path, tiny, types=dict.fromkeys(names, "Q8_0"))


def pair(cache: RepackCache | None) -> tuple[Path, int] | None:
    """The cache as an option of loading."""
    return (cache.folder, cache.limit_bytes) if cache else None


def logits(model: Path, cache: RepackCache | None) -> npt.NDArray[np.float32]:
    with Engine.load(model, repack_cache=pair(cache), **SMALL) as engine:
        return engine.logits(engine.tokenize(PROMPT))


@contextmanager
def loaded(
    model: Path, cache: RepackCache, backend: Backend, cancelled: Callable[[], bool] | None = None
) -> Iterator[Weights]:
    """Load all matrices of a file for products, nothing else."""
    with Weights(read_gguf(model)) as weights:
        for name, info in weights.file.tensors.items():
            if len(info.shape) == 2:
                weights.use(name, WeightUse.PRODUCT)
        weights.load(backend, cache=cache, cancelled=cancelled)
        yield weights


def kept(cache: RepackCache) -> Path:
    (path,) = cache.folder.iterdir()
    return path


def change(path: Path, place: int, by: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(place, os.SEEK_SET if place >= 0 else os.SEEK_END)
        value = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([value ^ by]))


def warnings(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [each.message for each in caplog.records if each.levelno >= logging.WARNING]


def test_the_second_load_packs_nothing_and_computes_the_same(
    model: Path,
    cache: RepackCache,
    packings: list[tuple[Any, ...]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    without = logits(model, None)
    first = logits(model, cache)
    assert packings
    packings.clear()
    second = logits(model, cache)
    assert not packings
    np.testing.assert_array_equal(first, without)
    np.testing.assert_array_equal(second, without)
    assert not warnings(caplog)


def test_several_models_answer_from_one_folder(tmp_path: Path, cache: RepackCache) -> None:
    files = [write(tmp_path / f"{seed}.gguf", seed) for seed in (1, 2)]
    answers = []
    for file in files * 2:
        with Engine.load(file, repack_cache=pair(cache), **SMALL) as engine:
            answers.append(engine.generate(PROMPT, max_tokens=8, **GREEDY).tokens)
    assert answers[:2] == answers[2:]
    assert answers[0] != answers[1]
    assert len(list(cache.folder.iterdir())) == 2


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_cut, id="truncated"),
        pytest.param(lambda path: os.truncate(path, 0), id="empty"),
        pytest.param(lambda path: path.write_bytes(b"?" * path.stat().st_size), id="foreign"),
        pytest.param(lambda path: change(path, 0), id="no magic"),
        pytest.param(lambda path: change(path, 12), id="other layouts"),
        pytest.param(lambda path: change(path, 30), id="another key"),
        pytest.param(lambda path: change(path, repack_cache._HEAD.size), id="a checksum"),
        pytest.param(lambda path: change(path, 4096 + 777, by=64), id="a bit"),
        pytest.param(lambda path: change(path, -100, by=1), id="a bit near the end"),
    ],
)
def test_damaged_files_are_packed_again(
    damage: Callable[[Any], Any] | Callable[[Any], None],
    model: Path,
    cache: RepackCache,
    backend: Backend,
    packings: list[tuple[Any, ...]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with loaded(model, cache, backend):
        pass
    right = kept(cache).read_bytes()
    damage(kept(cache))
    packings.clear()
    with loaded(model, cache, backend):
        assert packings
    assert kept(cache).read_bytes() == right
    (line,) = warnings(caplog)
    assert "is damaged" in line


def test_other_layouts_another_level_and_a_changed_file_have_their_own(
    model: Path,
    cache: RepackCache,
    backend: Backend,
    packings: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def packs() -> bool:
        packings.clear()
        with loaded(model, cache, backend):
            return bool(packings)

    assert [packs(), packs()] == [True, False]
    with monkeypatch.context() as patch:
        patch.setattr(repack_cache, "LAYOUT_VERSION", 999)
        assert [packs(), packs()] == [True, False]
    with monkeypatch.context() as patch:
        patch.setattr(backend.kernels, "level", "another")
        assert [packs(), packs()] == [True, False]
    assert not packs()
    status = model.stat()
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert [packs(), packs()] == [True, False]


def test_a_blob_is_identified_by_its_digest(
    model: Path,
    tmp_path: Path,
    cache: RepackCache,
    backend: Backend,
    packings: list[tuple[Any, ...]],
) -> None:
    names = [f"sha256-{7:064x}", f"sha256-{8:064x}"]
    blobs = [tmp_path / name for name in names]
    for blob in blobs:
        blob.write_bytes(model.read_bytes())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "link.gguf"
    link.symlink_to(blobs[0].rename(elsewhere / names[0]))
    counts = []
    for path in (elsewhere / names[0], link, blobs[1]):
        packings.clear()
        with loaded(path, cache, backend):
            counts.append(bool(packings))
    assert counts == [True, False, True]


def test_weights_that_must_be_copied_do_not_come_from_a_mapping(
    model: Path, cache: RepackCache, backend: Backend
) -> None:
    for _ in range(2):
        with Weights(read_gguf(model)) as weights:
            weights.use("output.weight", WeightUse.PRODUCT)
            weights.load(backend, mapped=False, cache=cache)
            assert weights.mapped_bytes == 0
    assert not cache.folder.exists()


def test_verifying_checksums_can_be_cancelled(
    model: Path, cache: RepackCache, backend: Backend
) -> None:
    with loaded(model, cache, backend):
        pass
    asked = iter([False, True])
    with (
        pytest.raises(LoadCancelledError),
        loaded(model, cache, backend, cancelled=lambda: next(asked)),
    ):
        pass
    assert remove_unlocked(kept(cache))  # its lock went too


def test_an_unwritable_folder_is_ignored(
    model: Path,
    cache: RepackCache,
    backend: Backend,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really_open = os.open

    def refuse(path: Path, flags: int, *rest: Any) -> int:
        if flags & os.O_CREAT and cache.folder in path.parents:
            raise OSError(errno.EROFS, "Read-only file system")
        return really_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    without = logits(model, None)
    np.testing.assert_array_equal(logits(model, cache), without)
    (line,) = warnings(caplog)
    assert "not cached" in line
    monkeypatch.undo()
    np.testing.assert_array_equal(logits(model, cache), without)
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "utime", lambda *_: refuse(cache.folder / "x", os.O_CREAT))
    with loaded(model, cache, backend):
        pass


def test_a_path_that_is_not_a_folder_is_ignored(
    model: Path, tmp_path: Path, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with loaded(model, RepackCache(tmp_path / "file" / "packed", LIMIT), backend):
        assert True
    (line,) = warnings(caplog)
    assert "not cached" in line


def test_a_full_disk_leaves_no_partial_file(
    model: Path,
    cache: RepackCache,
    backend: Backend,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with loaded(model, cache, backend):
        pass
    assert list(cache.folder.iterdir()) == []
    assert ["not cached" in line for line in warnings(caplog)] == [True]


SCRIPT = """
import sys
from tampu.engine.engine import Engine
cache = (sys.argv[2], 10**9)
with Engine.load(sys.argv[1], context=64, threads=1, batch=16, repack_cache=cache) as engine:
    print("loaded", flush=True)
    print(engine.generate("the cat", max_tokens=6, temperature=0.0).tokens, flush=True)
    sys.stdin.read()
"""


def start(model: Path, cache: RepackCache) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, model, cache.folder],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_two_concurrent_processes_share_one_cached_file(model: Path, cache: RepackCache) -> None:
    both = [start(model, cache) for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("loaded\n[")
    assert kept(cache).suffix == ".packed"


def test_a_file_in_use_by_another_process_is_not_deleted(
    model: Path, tmp_path: Path, cache: RepackCache
) -> None:
    logits(model, cache)
    path = kept(cache)
    other = write(tmp_path / "other.gguf", 5)
    small = RepackCache(cache.folder, path.stat().st_size * 3 // 2)
    with start(model, cache) as process:
        assert process.stdout.readline() == "loaded\n"
        os.utime(path, (0, 0))
        logits(other, small)
        assert kept(cache) == path
        process.communicate()
    logits(other, small)
    assert kept(cache) != path


def test_the_least_recently_used_file_is_deleted_first(
    tmp_path: Path, cache: RepackCache, backend: Backend
) -> None:
    models = [write(tmp_path / f"{seed}.gguf", seed) for seed in range(1, 4)]
    with loaded(models[0], cache, backend):
        pass
    first = kept(cache)
    small = RepackCache(cache.folder, first.stat().st_size * 5 // 2)
    with loaded(models[1], small, backend):
        pass
    (second,) = set(cache.folder.iterdir()) - {first}
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    with loaded(models[0], small, backend):  # it is the later one now
        pass
    with loaded(models[2], small, backend):
        pass
    left = set(cache.folder.iterdir())
    assert len(left) == 2
    assert first in left
    assert second not in left


def test_packed_weights_above_the_limit_are_not_cached(
    model: Path, cache: RepackCache, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    with loaded(model, cache, backend):
        pass
    before = kept(cache)
    with loaded(write(model.with_name("other.gguf"), 5), RepackCache(cache.folder, 10), backend):
        pass
    assert kept(cache) == before
    assert any("above the limit" in line for line in warnings(caplog))


def test_a_partial_file_of_a_dead_process_is_deleted(
    model: Path, cache: RepackCache, backend: Backend
) -> None:
    cache.folder.mkdir(parents=True)
    (cache.folder / "0123.packed.growing").write_bytes(b"half")
    with loaded(model, cache, backend):
        pass
    assert kept(cache).suffix == ".packed"


def test_kernels_without_packed_weights_cache_nothing(model: Path, cache: RepackCache) -> None:
    with Engine.load(model, repack_cache=pair(cache), kernels="off", **SMALL):
        pass
    assert not cache.folder.exists()


def test_a_lock_of_the_writer_keeps_others_from_writing(
    model: Path, cache: RepackCache, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = read_gguf(model)
    layout = repack_cache.Layout.of(file, backend.kernels, {}, 100)
    weights = np.arange(100, dtype=np.uint8)
    meanwhile = []
    write = os.write

    def write_and_try(*arguments: Any) -> int:
        monkeypatch.setattr(os, "write", write)
        meanwhile.append(cache.write(layout, weights))
        return write(*arguments)

    monkeypatch.setattr(os, "write", write_and_try)
    assert cache.write(layout, weights)
    assert meanwhile == [False]
    found = cache.find(layout, 1, lambda _part: None)
    np.testing.assert_array_equal(found.weights, weights)
    found.close()
