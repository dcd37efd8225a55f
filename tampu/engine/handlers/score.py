"""Scores of given continuations, and of pairs of texts by a rank head."""

from __future__ import annotations

from functools import partial
from typing import Any

from tampu.engine.backend import Handlers
from tampu.engine.completion import RequestHandle
from tampu.engine.native import NativeModel
from tampu.engine.request import Computation
from tampu.engine.requests import Pair, Rank, Ranked, Score, Scores
from tampu.engine.scoring import AT_ONCE, run_all, scores
from tampu.errors import RequestError
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.sequence import RowCollector, Rows, Sink


def score(model: NativeModel, request: Score) -> Scores:
    """Return how probable continuations of prompts are; see `tampu.engine.scoring`."""
    model.inputs.check_generates()
    options = _options(request)
    if model.model.scheduler.kv_manager.has_states and len(request.shared):
        # The others resume from the state that is kept at its end.
        model.inputs.rows(request.shared, options, wants_logits=True, last=1)
    collect = partial(model.inputs.collect, options=options)
    return Scores(scores(request.prompts, collect, at_once=AT_ONCE))


def rank(model: NativeModel, request: Rank) -> Ranked:
    """Return the scores of queries with documents, by the model's rank head.

    Raises:
        RequestError: if it has none.
    """
    if not model.model.graphs.model.ranks:
        raise RequestError(f"{model.info.name} does not rank documents: it has no rank head")
    found: list[list[float]] = [[]] * len(request.pairs)
    options = _options(request)
    is_encoder = model.model.graphs.max_bidirectional_tokens is not None

    def begin(pair: tuple[int, Pair], sink: Sink) -> RequestHandle:
        index, given = pair

        def keep(rows: Rows) -> None:
            found[index] = rows[0].tolist()

        collector = RowCollector(keep, last=None if is_encoder else 1, only_first=is_encoder)
        return model.inputs.collect(given.tokens, collector, sink, options, second=given.second)

    run_all([*enumerate(request.pairs)], begin, at_once=AT_ONCE)
    return Ranked(tuple(map(tuple, found)))


def _options(request: Computation[Any]) -> GenerateOptions:
    return GenerateOptions(max_tokens=0, priority=request.priority, lora=request.lora)


HANDLERS: Handlers = {Score: score, Rank: rank}
