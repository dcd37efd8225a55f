"""Scores of given continuations, and of pairs of texts by a rank head."""

from __future__ import annotations

from functools import partial

import numpy as np

from tampu.engine.backend import Handlers
from tampu.engine.completion import RequestHandle
from tampu.engine.native import NativeModel
from tampu.engine.pooling import CLS, LAST, MEAN, pooled, rank_pooling
from tampu.engine.requests import Pair, Rank, Ranked, Score, Scores
from tampu.engine.scoring import AT_ONCE, run_all, scores
from tampu.errors import RequestError
from tampu.runner.pooled import compute_rows
from tampu.runner.sequence import RowCollector, Rows, Sink


def score(model: NativeModel, request: Score) -> Scores:
    """Return how probable continuations of prompts are; see `tampu.engine.scoring`."""
    model.inputs.check_generates()
    options = request.engine_options
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
    if not request.pairs:
        return Ranked(())
    graphs = model.model.graphs
    pooling = rank_pooling(model.info.metadata, graphs.model.default_rank_pooling)
    is_mean = pooling == MEAN  # else the head reads one token's state, in the same graph
    found: list[list[Rows]] = [[] for _ in request.pairs]
    options = request.engine_options

    def begin(pair: tuple[int, Pair], sink: Sink) -> RequestHandle:
        index, given = pair
        collector = RowCollector(
            found[index].append,
            wants_logits=not is_mean,
            last=1 if pooling == LAST and graphs.max_bidirectional_tokens is None else None,
            only_first=pooling == CLS,
        )
        segments = [int(place >= given.second) for place in range(len(given.tokens))]
        return model.inputs.collect(given.tokens, collector, sink, options, segments=segments)

    run_all([*enumerate(request.pairs)], begin, at_once=AT_ONCE)
    states = [pooled(np.concatenate(rows), pooling) for rows in found]
    scores = np.concatenate(states)
    if is_mean:
        scores = compute_rows(graphs.backend, graphs.model.head, scores)
    return Ranked(tuple(map(tuple, scores.tolist())))


HANDLERS: Handlers = {Score: score, Rank: rank}
