"""Scores of given continuations, and what follows from them: decisions and ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tampu.chat.images import with_images
from tampu.engine import decisions, ranking
from tampu.engine.backend import Backend
from tampu.engine.completion import RequestHandle
from tampu.engine.decisions import Scorer, rerank_messages
from tampu.engine.native import NativeModel
from tampu.engine.requests import (
    Computation,
    Decide,
    Decided,
    Pair,
    Rank,
    Ranked,
    Rerank,
    Score,
    Scores,
)
from tampu.engine.scoring import AT_ONCE, Prompts, Scored, run_all, scores
from tampu.errors import RequestError
from tampu.runner.request import GenerateOptions
from tampu.runner.sequence import RowCollector, Rows, Sink


def score(model: NativeModel, request: Score) -> Scores:
    """Return how probable continuations of prompts are; see `tampu.engine.scoring`."""
    model.inputs.check_generates()
    options = _options(request)
    if model.model.scheduler.kv_manager.grid is not None and len(request.shared):
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


def decide(model: Backend, request: Decide) -> Decided:
    """Return the answers to questions about a conversation; see `tampu.engine.decisions`.

    Raises:
        RequestError: for invalid questions, and if the model has no template or its template
            rejects the conversation.
        ContextLengthError: naming the question that is too long.
    """
    prompt = request.prompt
    messages = with_images(prompt.messages, model.requests.prepare_file)
    scorer = _scorer(model, request, messages, prompt.tools, "\n\n")
    return Decided(decisions.decide(request.questions, scorer))


def rerank(model: Backend, request: Rerank) -> Decided:
    """Return for each document the probabilities that it matches the query, and not; as above."""
    query, documents, instruction = request.query, request.documents, request.instruction
    if (pairs := model.requests.pairs) is not None:

        def ranked(given: Sequence[Pair]) -> Sequence[Sequence[float]]:
            asked = Rank(given, lora=request.lora, priority=request.priority)
            return model.ask(asked).scores

        context = model.requests.context
        return Decided(ranking.rank(pairs, ranked, context, query, documents, instruction))
    scorer = _scorer(model, request, rerank_messages(query, instruction), None, "")
    return Decided(decisions.rerank(documents, scorer))


def _scorer(
    model: Backend,
    request: Computation[Decided],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    separator: str,
) -> Scorer:
    requests = model.requests
    if requests.prompts is None:
        raise RequestError("the model has no chat template: it cannot be asked questions")
    build_forks = partial(requests.prompts.build_forks, messages, tools=tools, separator=separator)

    def scored(shared: Sequence[Any], prompts: Prompts) -> list[Scored]:
        asked = Score(shared, prompts, lora=request.lora, priority=request.priority)
        return [*map(Scored.of, model.ask(asked).prompts)]

    return Scorer(build_forks, scored, [*requests.tokenizer.eos], requests.context)


def _options(request: Computation[Any]) -> GenerateOptions:
    return GenerateOptions(max_tokens=0, priority=request.priority, lora=request.lora)
