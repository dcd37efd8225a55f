"""Graphs of models with recurrent layers: how many nodes each run of tokens takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.laboratory import Laboratory
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import write_tiny

from tampu import models
from tampu.engine.model_loader import NODES_PER_RUN
from tampu.gguf_compat import read_model
from tampu.kvcache import Cache, CacheSize, CellRange, MicroBatch, StateSpec
from tampu.ml import Backend, GGMLType, Weights
from tampu.models import Architecture, bind_model
from tampu.nn import Batch, StateShape, cache_parts

COUNT = 32  # the fewest tokens between two checkpoints


def nodes(backend: Backend, path: Path, runs: int) -> float:
    """Return the nodes of a graph for so many runs of many tokens, by recurrent layers."""
    with Weights(read_model(path)) as weights:
        model = bind_model(weights)
        shapes = model.cache_shapes()
        recurrent = sum(isinstance(part, StateShape) for part in cache_parts(*shapes))
        cache = Cache(backend, shapes, CacheSize(slots=4, context=128, batch=128))
        weights.load(backend)
        context = backend.context()
        parts = tuple(MicroBatch(1, COUNT) for _ in range(runs))
        is_state = [isinstance(spec, StateSpec) for spec in cache.specs]
        views = [parts if each else CellRange(0, 256) for each in is_state]
        graph = cache.build(context, COUNT * runs, views)
        each, many = (COUNT * runs,), model.positions_per_token > 1
        lengths = (each, (model.positions_per_token, *each) if many else each, each)
        inputs = [context.input("input", length, GGMLType.I32) for length in lengths]
        context.output(
            model.head(model.hidden(Batch(inputs[0], inputs[1], inputs[2]), graph.layers))
        )
        count = context._count
        context.close()
        cache.close()
        return count / recurrent


@pytest.mark.parametrize("tiled", [True, False])
def test_a_run_of_tokens_takes_no_more_nodes_than_are_reserved(
    backend: Backend,
    plain_backend: Backend,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    tiled: bool,
) -> None:
    known = models.architectures()
    entry = known["qwen35" if tiled else "qwen3next"]
    changed = {"qwen35": Architecture(entry.path, entry.constants)}
    monkeypatch.setattr(models, "architectures", lambda: known | changed)
    path = write_tiny(tmp_path / "m.gguf", tiny_hybrid(), weights=hybrid_weights())
    ours, ggmls = (nodes(each, path, 3) - nodes(each, path, 2) for each in (backend, plain_backend))
    assert 0 < ours < ggmls <= NODES_PER_RUN


@pytest.mark.parametrize("name", ["falcon_h1", "jamba"])  # with the most nodes of Mamba 2 and 1
def test_runs_of_mamba_take_no_more_nodes_than_are_reserved(
    backend: Backend, plain_backend: Backend, tmp_path: Path, name: str
) -> None:
    path = Laboratory(tmp_path).file(name, "F32")
    ours, ggmls = (nodes(each, path, 3) - nodes(each, path, 2) for each in (backend, plain_backend))
    assert 0 < ours < ggmls <= NODES_PER_RUN
