"""The `cohere` package ranks documents on a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cohere
import httpx
import pytest
from support.serving import Server

pytestmark = [pytest.mark.client, pytest.mark.server]

DOCUMENTS = ["Cats sleep all day.", "The sum is 85.", "Rain falls."]


@pytest.fixture
def given(server: Server) -> Iterator[dict[str, Any]]:
    """What both versions of the client take."""
    with httpx.Client(timeout=300) as client:
        yield {"api_key": "none", "base_url": server.url, "httpx_client": client}


def test_documents_are_ranked_by_both_versions(given: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": "demo", "query": "The sum?", "documents": DOCUMENTS}
    newer = cohere.ClientV2(**given).rerank(**asked)
    older = cohere.Client(**given).rerank(**asked)
    ranked = [(result.index, result.relevance_score) for result in newer.results]
    assert [index for index, _ in ranked] == [result.index for result in older.results]
    assert sorted(index for index, _ in ranked) == [0, 1, 2]
    assert ranked == sorted(ranked, key=lambda pair: -pair[1])


def test_the_best_come_with_their_texts(given: dict[str, Any]) -> None:
    [best] = (
        cohere.Client(**given)
        .rerank(model="demo", query="Sum?", documents=DOCUMENTS, top_n=1, return_documents=True)
        .results
    )
    assert best.document is not None
    assert best.document.text == DOCUMENTS[best.index]


def test_a_model_that_is_not_there_is_not_found(given: dict[str, Any]) -> None:
    with pytest.raises(cohere.NotFoundError):
        cohere.ClientV2(**given).rerank(model="nothing", query="Sum?", documents=DOCUMENTS)
