"""Scores of pairs of texts, as vLLM has them: how well each second text matches its first.

Each function raises RequestError for an invalid field, which the message names.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import uuid4

import msgspec

from tampu.engine.questions import Decisions
from tampu.engine.requests import Decided
from tampu.errors import require
from tampu.server.features.decisions.rerank import RerankRequest, parse_rerank
from tampu.server.fields.adapters import AdapterBody
from tampu.server.fields.options import MAX_INPUTS
from tampu.server.serving.generation_request import ModelCall
from tampu.server.serving.model_defaults import ModelDefaults

Texts: TypeAlias = str | list[str]
_NAMES = (
    ("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"),
)  # fmt: skip


class ScoreRequest(AdapterBody, kw_only=True):
    """`POST /v1/score`: the texts under one of the pairs of names in `_NAMES`."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    instruction: str | None = None


def parse_scores(body: ScoreRequest, defaults: ModelDefaults) -> dict[str, ModelCall[Decided]]:
    """Return for each first text the request to rank its second ones, in their order."""
    matched: dict[str, list[str]] = {}
    for query, document in _pairs(body):
        matched.setdefault(query, []).append(document)
    fields = msgspec.structs.fields(AdapterBody)
    common = {field.name: getattr(body, field.name) for field in fields}
    return {
        query: parse_rerank(
            RerankRequest(
                **common, query=query, documents=[*documents], instruction=body.instruction
            ),
            defaults,
        )
        for query, documents in matched.items()
    }


def score_response(body: ScoreRequest, found: dict[str, Decisions]) -> dict[str, Any]:
    """Return the response: the scores in the order of the pairs."""
    scores = {query: iter(each.answers) for query, each in found.items()}
    data = [
        {"index": index, "object": "score", "score": next(scores[query]).probabilities[0]}
        for index, (query, _) in enumerate(_pairs(body))
    ]
    tokens = sum(each.input_tokens for each in found.values())
    return {
        "id": f"score-{uuid4().hex}", "object": "list", "created": int(time.time()),
        "model": body.model, "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }  # fmt: skip


def _pairs(body: ScoreRequest) -> list[tuple[str, str]]:
    """Return the pairs: a single first text belongs to all second ones."""
    names, *others = sorted(_NAMES, key=lambda pair: -_given(body, pair))
    given = {name for pair in others for name in pair if getattr(body, name) is not None}
    clash = ", ".join(sorted(given.difference(names)))
    require(not clash, f"{clash}: give {names[0]} and {names[1]} alone")
    firsts, seconds = (_texts(getattr(body, name), name) for name in names)
    if len(firsts) == 1:
        firsts = [*firsts] * len(seconds)
    counts = f"{names[0]} has {len(firsts)} texts and {names[1]} {len(seconds)}"
    require(len(firsts) == len(seconds), f"{counts}: there must be one, or as many")
    return [*zip(firsts, seconds, strict=True)]


def _given(body: ScoreRequest, pair: tuple[str, str]) -> int:
    """Return how many of two fields a request has."""
    return sum(getattr(body, name) is not None for name in pair)


def _texts(given: Texts | None, name: str) -> Sequence[str]:
    texts = [given] if isinstance(given, str) else given
    require(texts and len(texts) <= MAX_INPUTS, f"{name}: there must be 1 to {MAX_INPUTS} texts")
    for index, text in enumerate(texts or ()):
        require(text.strip(), f"{name} is empty" if given == text else f"{name}[{index}] is empty")
    return texts or ()
