"""Graphs: built once per shape, reused, with all memory reserved at the start."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.running import TinyModel, load_tiny, relative_error
from support.tiny_model import Tiny

from tampu.errors import ComputeError, OutOfMemoryError, ShapeError
from tampu.kvcache import AttentionKind, Segment
from tampu.ml import Backend, Context
from tampu.ml.library import gg
from tampu.runner.graph_cache import WarmUpBatch
from tampu.runner.step_inputs import StepInputs

TEXT = [1, 259, 286, 264, 7, 7, 300, 12, 286, 264, 299, 3, 310, 259, 286, 264, 288, 2, 17, 100]


def step_of(tokens: list[int]) -> StepInputs:
    places = np.arange(len(tokens), dtype=np.int32)
    return StepInputs(np.array(tokens, np.int32), places, places, [Segment(places[None], 0)])


@pytest.fixture
def load(backend: Backend, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made = []

    def load(tiny: Any = None, **options: Any) -> TinyModel:
        made.append(load_tiny(backend, tmp_path, tiny, **options))
        return made[-1]

    yield load
    for each in made:
        each.close()


def test_a_step_of_the_same_shape_reuses_the_graph(load: Callable[..., Any]) -> None:
    model = load()
    model.logits(TEXT, chunk=1)
    counts = model.graphs.counts
    assert (counts.built, counts.reused, counts.evicted) == (1, len(TEXT) - 1, 0)


def test_a_reused_graph_gives_the_same_result_as_a_new_one(load: Callable[..., Any]) -> None:
    model = load()
    for text in (TEXT, TEXT[::-1], TEXT):
        found = model.logits(text, chunk=4)
        fresh = load()
        assert np.array_equal(found, fresh.logits(text, chunk=4))


def test_alternating_shapes_give_the_same_results_as_each_alone(load: Callable[..., Any]) -> None:
    model = load(attention=AttentionKind.MIXED, cells=512)
    expected = {chunk: load(cells=512).logits(TEXT * 5, chunk=chunk) for chunk in (1, 3, 20, 100)}
    for chunk in (100, 1, 20, 3, 1, 100, 3):
        found = model.logits(TEXT * 5, chunk=chunk)
        assert relative_error(found, expected[chunk]) < 1e-4


def test_the_least_recently_used_graphs_are_evicted(load: Callable[..., Any]) -> None:
    model = load(reuse=False)
    for length in (1, 2, 3, 1):
        model.logits(TEXT[:length])
    counts = model.graphs.counts
    assert (counts.built, counts.reused, counts.evicted) == (4, 0, 2)


@pytest.mark.seed("S39", "S40")
@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_memory_does_not_grow_after_the_reservation(
    tmp_path: Path, kind: AttentionKind, architecture: str
) -> None:
    backend = Backend(threads=1)  # one whose memory nothing has used yet
    tiny = Tiny(architecture=architecture)
    model = load_tiny(backend, tmp_path, tiny, cells=512, attention=kind, cache_type="f16")
    model.graphs.reserve(tokens=100, outputs=100)
    reserved = backend.graph_bytes
    assert reserved > 0
    text = (TEXT * 30)[:512]
    for chunk in (100, 64, 63, 7, 1):
        model.logits(text[: 100 if chunk == 1 else 512], chunk=chunk)
        assert backend.graph_bytes == reserved
    model.step([(text[:50], range(50), 0), (text[50:99], range(300, 349), 0)], logits=False)
    assert backend.graph_bytes == reserved
    model.close()
    backend.close()


def test_a_graph_larger_than_the_reservation_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Backend(threads=1)
    model = load_tiny(backend, tmp_path, cells=256)
    model.graphs.reserve(tokens=2, outputs=2)
    expected = model.logits(TEXT, chunk=2)
    model.graphs.check_reservation()
    assert "outgrew" not in caplog.text
    whole = model.logits(TEXT)
    model.graphs.check_reservation()
    assert "outgrew" in caplog.text
    assert relative_error(whole, expected) < 1e-4
    assert np.array_equal(model.logits(TEXT, chunk=2), expected)
    model.close()
    backend.close()


@pytest.mark.seed("S41")
def test_a_failed_reservation_frees_its_graph(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load()
    freed = []
    real = gg.ggml_free
    monkeypatch.setattr(gg, "ggml_backend_sched_reserve", lambda *_: False)
    monkeypatch.setattr(gg, "ggml_free", lambda arena: (freed.append(arena), real(arena)))
    with pytest.raises(OutOfMemoryError):
        model.graphs.reserve(tokens=4, outputs=1)
    assert len(freed) == 1


def test_a_graph_that_cannot_be_built_is_freed(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load()
    freed = []
    real = gg.ggml_free
    monkeypatch.setattr(gg, "ggml_free", lambda arena: (freed.append(arena), real(arena)))
    monkeypatch.setattr(type(model.model), "head", lambda _, hidden: hidden.reshape(7, 7, 7))
    with pytest.raises(ShapeError):
        model.logits(TEXT)
    assert len(freed) == 1


def test_freeing_the_graphs_waits_for_the_one_that_computes(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load()
    model.logits(TEXT[:3])
    events = []
    real_compute, real_free = gg.ggml_backend_sched_graph_compute, gg.ggml_free
    monkeypatch.setattr(
        gg,
        "ggml_backend_sched_graph_compute",
        lambda *given: (events.append("compute"), real_compute(*given), events.append("done"))[1],
    )
    monkeypatch.setattr(gg, "ggml_free", lambda arena: (events.append("free"), real_free(arena))[1])
    result = model.graphs.submit(step_of(TEXT[:3]))
    model.graphs.close()
    assert result.done()
    assert events == ["compute", "done", "free"]


def test_a_step_that_fails_leaves_the_graphs_usable(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load()
    expected = model.logits(TEXT)
    with monkeypatch.context() as patch:
        patch.setattr(gg, "ggml_backend_sched_graph_compute", lambda *_: 1)
        with pytest.raises(ComputeError, match="status 1"):
            model.logits(TEXT)
    assert np.array_equal(model.logits(TEXT), expected)


def test_what_is_computed_while_loading_is_over_before_its_graph_is_freed(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may compile for minutes, and loading be interrupted meanwhile."""
    graphs, busy = load().graphs, []
    close = Context.close

    def interrupt(_done: int) -> None:
        raise KeyboardInterrupt

    def watched(context: Context) -> None:
        busy.append(bool(graphs.backend._queue))
        close(context)

    monkeypatch.setattr(Context, "close", watched)
    monkeypatch.setattr("tampu.runner.graph_cache._TICK_S", 0.0)
    monkeypatch.setattr("tampu.runner.graph_cache.wait", lambda *_: SimpleNamespace(not_done={1}))
    with pytest.raises(KeyboardInterrupt):
        graphs.warm_up([WarmUpBatch(20)], 1, interrupt)
    assert busy == [False]
    monkeypatch.undo()
    done: list[int] = []
    graphs.warm_up(
        [WarmUpBatch(20, is_full=True), WarmUpBatch(4), WarmUpBatch(1, 3)], 4, done.append
    )
    assert done[-1] == 3
