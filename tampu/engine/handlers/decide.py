"""Decisions and ranking, with probabilities, on a model of any engine that answers `Score`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tampu.chat.media import with_media
from tampu.engine import decisions, ranking
from tampu.engine.backend import Backend, Handlers
from tampu.engine.decisions import Scorer, rerank_messages
from tampu.engine.request import Computation
from tampu.engine.requests import Decide, Decided, Pair, Rank, Rerank, Score
from tampu.engine.scoring import Prompts, Scored
from tampu.errors import RequestError


def decide(model: Backend, request: Decide) -> Decided:
    """Return the answers to questions about a conversation; see `tampu.engine.decisions`.

    Raises:
        RequestError: for invalid questions, and if the model has no template or its template
            rejects the conversation.
        ContextLengthError: naming the question that is too long.
    """
    prompt = request.prompt
    messages = with_media(prompt.messages, model.requests.prepare_file, prompt.places)
    scorer = _scorer(model, request, messages, prompt.tools, "\n\n")
    return Decided(decisions.decide(request.questions, scorer))


def rerank(model: Backend, request: Rerank) -> Decided:
    """Return for each document the probabilities that it matches the query, and not; as above."""
    query, documents, instruction = request.query, request.documents, request.instruction
    if (pairs := model.requests.pairs) is not None:

        def ranked(given: Sequence[Pair]) -> Sequence[Sequence[float]]:
            asked = Rank(given, **request.conditions)
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
        asked = Score(shared, prompts, **request.conditions)
        return [*map(Scored.of, model.ask(asked).prompts)]

    return Scorer(build_forks, scored, [*requests.tokenizer.eos], requests.context)


HANDLERS: Handlers = {Decide: decide, Rerank: rerank}
