"""tampu and llama.cpp as subjects of the benchmark, on a model of a few numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import handmade_checkpoints as handmade
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import write_tiny

from tampu.bench.bench import Native, Plan, Subject, Work
from tampu.bench.llama_cpp import LlamaCpp, find_library, missing_sets
from tampu.convert import convert
from tampu.errors import ComputeError, RequestError, RunnerDiedError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    config = handmade.CONFIG | {"bos_token_id": 8, "eos_token_id": 9}
    convert(handmade.write(folder / "tiny", config=config), folder / "tiny.gguf", "F32")
    return folder / "tiny.gguf"


def exercise(subject: Subject) -> None:
    assert subject.vocabulary == handmade.ROWS
    subject.rewind([1, 2, 3])
    assert subject.prefill([4, 5]) > 0
    subject.rewind([1, 2, 3])
    assert subject.decode([6]) > 0
    subject.rewind([1, 2])
    subject.rewind([5, 2, 7, 1])
    assert subject.prefill([0]) > 0
    subject.rewind([])
    assert subject.decode([1, 1]) > 0
    subject.close()
    subject.close()


def test_tampu_can_be_measured(model: Path) -> None:
    exercise(Native(model, threads=1, context=16))


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "hybrid.gguf", tiny_hybrid(), weights=hybrid_weights())


def test_tampu_can_be_measured_with_recurrent_layers(hybrid: Path) -> None:
    subject = Native(hybrid, threads=1, context=16)
    subject.rewind([1, 2, 3])
    subject.decode([4])
    built = subject.graph_counts.built + subject.graph_counts.reused
    subject.rewind([1, 2, 3])  # its states are gone: all is computed again
    assert subject.graph_counts.built + subject.graph_counts.reused == built + 1
    subject.close()


def test_shared_history_is_computed_once(model: Path) -> None:
    subject = Native(model, threads=1, context=16)
    subject.rewind([1, 2, 3])
    subject.decode([4])
    built = subject.graph_counts.built + subject.graph_counts.reused
    subject.rewind([1, 2, 3])
    assert subject.graph_counts.built + subject.graph_counts.reused == built
    subject.rewind([1, 2, 3, 4])
    assert subject.graph_counts.built + subject.graph_counts.reused == built + 1
    subject.close()


@pytest.mark.server
def test_llama_cpp_can_be_measured(model: Path) -> None:
    peer = LlamaCpp(model, threads=1, context=16)
    assert "llama.cpp" in peer.name
    exercise(peer)
    with pytest.raises(RunnerDiedError, match="closed"):
        peer.rewind([])


@pytest.mark.server
def test_both_take_turns(model: Path) -> None:
    ours = Native(model, threads=1, context=16)
    peer = LlamaCpp(model, threads=1, context=16)
    plan = Plan(works=[Work("pp", 8), Work("tg", 2)], depths=[0, 4], threads=1, repetitions=1)
    results = plan.run(ours, peer)
    assert [(result.test, result.depth) for result in results] == [
        ("pp8", 0),
        ("tg2", 0),
        ("pp8", 4),
        ("tg2", 4),
    ]
    assert all(result.ratio is not None and result.ratio > 0 for result in results)
    ours.close()
    peer.close()


@pytest.mark.server
def test_load_errors_of_llama_cpp_are_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF no")
    with pytest.raises(ComputeError, match=r"llama\.cpp: cannot load the model"):
        LlamaCpp(tmp_path / "bad.gguf", threads=1, context=16)


@pytest.mark.server
def test_crashed_child_is_reported(tmp_path: Path, model: Path) -> None:
    (tmp_path / "library.so").write_text("not a library")
    with pytest.raises(RunnerDiedError, match="ended with code 1"):
        LlamaCpp(model, threads=1, context=16, library=tmp_path / "library.so")


def test_missing_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no library"):
        find_library(tmp_path / "libllama.so")


def test_the_instruction_sets_that_a_build_lacks_are_named() -> None:
    system = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | FMA = 1 | OPENMP = 1 | REPACK = 1"
    assert missing_sets({"AVX2", "AVX512", "AVX512_BF16", "FMA"}, system) == [
        "AVX512",
        "AVX512_BF16",
    ]
    assert missing_sets({"AVX2", "SSE3"}, system) == []


def test_tampu_names_its_own_instruction_sets(model: Path) -> None:
    subject = Native(model, threads=1, context=16)
    assert subject.instruction_sets.isdisjoint({"OPENMP", "REPACK", "LLAMAFILE"})
    subject.close()
