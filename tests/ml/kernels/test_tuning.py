"""How weights are read from memory: chosen by measuring, kept for the CPU, or asked for."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tampu.errors import RequestError
from tampu.ml import Backend, GGMLType
from tampu.ml.kernels import tuning
from tampu.ml.kernels.library import DEFAULT_FETCH, STREAMS, Fetch, Hint
from tampu.ml.kernels.matmul import PackedMemory
from tampu.ml.kernels.tuning import (
    CANDIDATES,
    choose_fetch,
    fetch_cache,
    parse_fetch,
    word_of,
)

FASTEST = CANDIDATES[5]
SLOWEST = CANDIDATES[6]
ROWS, INPUTS = 32, 64
CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Xeon
stepping\t: 8
microcode\t: {microcode}
cpu MHz\t\t: 2000.000
cache size\t: 107520 KB

processor\t: 1
model\t\t: 1
"""


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = Backend(threads=1, max_nodes=256)
    yield backend
    backend.close()


@pytest.fixture
def weights(backend: Backend) -> Iterator[list[Any]]:
    """Eight weights of one shape, and one of another."""
    shapes = [(GGMLType.Q8_0, ROWS, INPUTS)] * 8 + [(GGMLType.Q8_0, 16, INPUTS)]
    sizes = [backend.kernels.packed_bytes(*shape) for shape in shapes]
    context = backend.context(32)
    memory = PackedMemory(context.arena, backend.kernels, sizes)
    memory.bytes[:] = 0x11
    yield [memory.place(*shape, size) for shape, size in zip(shapes, sizes, strict=True)]
    memory.close()
    context.close()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Make one way faster than all others, by this factor; return what was timed."""
    timed = []

    def script(factor: float) -> list[tuple[Any, int]]:
        def time(_: object, weights: Any, fetch: Any) -> int:
            timed.append((fetch, len(weights)))
            return int(1000 * {FASTEST: factor, SLOWEST: 3}.get(fetch, 1))

        monkeypatch.setattr(tuning, "_time", time)
        monkeypatch.setattr(tuning, "_MIN_BYTES", 1)
        return timed

    return script


def test_the_fastest_fetch_is_used_and_cached(
    backend: Backend,
    weights: list[Any],
    scripted: Callable[[Any], Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    timed = scripted(0.5)
    folder = tmp_path / "new" / "tuning"
    with caplog.at_level(logging.INFO, "tampu.ml"):
        choose_fetch(backend, weights, folder=folder)
    assert backend.kernels.fetch == FASTEST
    assert {fetch for fetch, _ in timed} == set(CANDIDATES)
    (path,) = folder.iterdir()
    told = json.loads(path.read_text())
    assert told["fetch"] == word_of(FASTEST)
    assert (told["for"]["threads"], told["for"]["level"]) == (1, backend.kernels.level)
    timed.clear()
    backend.kernels.fetch = DEFAULT_FETCH
    with caplog.at_level(logging.INFO, "tampu.ml"):
        choose_fetch(backend, weights, folder=folder)
    assert (backend.kernels.fetch, timed) == (FASTEST, [])
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"kernels: weights are read with {word_of(FASTEST)} ({origin})"
        for origin in ("measured", "as measured before")
    ]


def test_a_small_gain_keeps_the_default(
    backend: Backend, weights: list[Any], scripted: Callable[[Any], Any]
) -> None:
    scripted(0.98)
    choose_fetch(backend, weights)
    assert backend.kernels.fetch == DEFAULT_FETCH


def test_varying_memory_speed_does_not_change_the_choice(
    backend: Backend, weights: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round is as slow as others make it; the ways are compared within one."""
    load, current = iter([1, 9, 2, 5]), [0]

    def time(_: object, __: object, fetch: Any) -> int:
        if fetch == CANDIDATES[0]:
            current[0] = next(load)
        return int(1000 * current[0] * (0.8 if fetch == FASTEST else 1))

    monkeypatch.setattr(tuning, "_time", time)
    assert tuning.measure_fetch(backend, weights[:8]) == FASTEST


def test_every_candidate_computes_the_same(backend: Backend, weights: list[Any]) -> None:
    x = np.random.default_rng(1).standard_normal((1, INPUTS), np.float32)
    found = []
    for fetch in CANDIDATES:
        assert parse_fetch(word_of(fetch)) == fetch
        backend.kernels.fetch = fetch
        context = backend.context(16)
        given = context.input("x", x.shape, GGMLType.F32)
        product = weights[0].multiply(context, given)
        out = context.output(context.wrap(product, (1, ROWS), GGMLType.F32))
        found.append(backend.compute(context, [(given, x)], [out]).outputs[0].tobytes())
        context.close()
    assert len(set(found)) == 1


def test_the_real_clock_chooses_one_of_the_candidates(
    backend: Backend, weights: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_MIN_BYTES", 1)
    choose_fetch(backend, weights)
    assert backend.kernels.fetch in CANDIDATES


def test_a_model_that_fits_into_caches_is_not_measured(
    backend: Backend, weights: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tampu.ml"):
        choose_fetch(backend, weights, folder=tmp_path)
    assert (backend.kernels.fetch, caplog.records) == (DEFAULT_FETCH, [])
    assert list(tmp_path.iterdir()) == []


def test_a_chosen_fetch_is_not_measured(
    backend: Backend,
    weights: list[Any],
    scripted: Callable[[Any], Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    timed = scripted(0.5)
    with caplog.at_level(logging.INFO, "tampu.ml"):
        choose_fetch(backend, weights, "nta:4096:1", tmp_path)
    assert backend.kernels.fetch == Fetch(Hint.NTA, 4096, 1)
    assert (timed, list(tmp_path.iterdir())) == ([], [])
    assert "nta:4096:1 (as asked)" in caplog.text


@pytest.mark.parametrize(
    "word", ["fast", "", "t3:1:1", "t0:1024", "t0:1024:0", "t0:1024:17", "t0:9999999:1", "T0:1:1"]
)
def test_an_unknown_fetch_word_is_refused_with_the_known_ones(backend: Backend, word: str) -> None:
    with pytest.raises(RequestError, match=r"HINT:AHEAD:STREAMS .* such as t0:1024:8; not '"):
        choose_fetch(backend, [], word)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[]", b"null", b"{}", b'{"for": 1, "fetch": "t0:1024:8"}', b"[" * 100_000],
)
def test_a_damaged_file_is_logged_and_replaced(
    backend: Backend,
    weights: list[Any],
    scripted: Callable[[Any], Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
) -> None:
    scripted(0.5)
    kept = fetch_cache(tmp_path, backend.kernels.level, 1)
    kept.path.write_bytes(content)
    choose_fetch(backend, weights, folder=tmp_path)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "is damaged; measuring again" in warning.getMessage()
    assert kept.read() == FASTEST
    assert list(tmp_path.iterdir()) == [kept.path]


@pytest.mark.parametrize(
    "change", [{"fetch": "t9:1:1"}, {"fetch": None}, {"for": {"processor": "another"}}]
)
def test_a_file_of_another_machine_or_version_is_not_used(
    backend: Backend, tmp_path: Path, change: dict[str, Any]
) -> None:
    kept = fetch_cache(tmp_path, backend.kernels.level, 1)
    kept.write(FASTEST)
    assert kept.read() == FASTEST
    kept.path.write_text(json.dumps(json.loads(kept.path.read_text()) | change))
    assert kept.read() is None


def test_an_unwritable_folder_is_logged(
    backend: Backend,
    weights: list[Any],
    scripted: Callable[[Any], Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scripted(0.5)
    (tmp_path / "file").write_text("no folder")
    choose_fetch(backend, weights, folder=tmp_path / "file")
    assert backend.kernels.fetch == FASTEST
    assert "cannot be written" in caplog.text


def test_each_cpu_level_and_number_of_threads_has_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = {fetch_cache(tmp_path, level, n).path for level in ("avx2", "avx512") for n in (1, 2)}
    monkeypatch.setattr(tuning, "cpu_name", lambda: "another")
    names.add(fetch_cache(tmp_path, "avx2", 1).path)
    monkeypatch.setattr(tuning, "LAYOUT_VERSION", 999)
    names.add(fetch_cache(tmp_path, "avx2", 1).path)
    assert len(names) == 6


def test_a_cpu_is_identified_by_its_model_only(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO.format(microcode="0x1"))
    name = tuning.cpu_name(path)
    assert name == "GenuineIntel, 6, 143, Xeon, 8, 107520 KB"
    path.write_text(CPUINFO.format(microcode="0x2"))
    assert tuning.cpu_name(path) == name
    path.write_text("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
    assert tuning.cpu_name(path) == "0x41, 0xd0c"
    assert tuning.cpu_name(tmp_path / "none")


def test_without_kernels_no_fetch_is_chosen(plain_backend: Backend) -> None:
    choose_fetch(plain_backend, [], "t0:1024:8")
    with pytest.raises(RequestError, match="fetch is auto or"):
        choose_fetch(plain_backend, [], "fast")


def test_the_candidates_are_supported_by_the_library() -> None:
    assert all(1 <= fetch.streams <= STREAMS for fetch in CANDIDATES)
    assert len(set(CANDIDATES)) == len(CANDIDATES)
