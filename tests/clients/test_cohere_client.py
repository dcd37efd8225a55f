"""The `cohere` package ranks documents on a server."""

from __future__ import annotations

import cohere
import pytest
from support.serving import Server

pytestmark = [pytest.mark.client, pytest.mark.server]

DOCUMENTS = ["Cats sleep all day.", "The sum is 85.", "Rain falls."]


def test_documents_are_ranked_by_both_versions(server: Server) -> None:
    asked = {"model": "demo", "query": "What is the sum?", "documents": DOCUMENTS}
    newer = cohere.ClientV2(api_key="none", base_url=server.url).rerank(**asked)  # type: ignore[arg-type]
    older = cohere.Client(api_key="none", base_url=server.url).rerank(**asked)  # type: ignore[arg-type]
    ranked = [(result.index, result.relevance_score) for result in newer.results]
    assert [index for index, _ in ranked] == [result.index for result in older.results]
    assert sorted(index for index, _ in ranked) == [0, 1, 2]
    assert ranked == sorted(ranked, key=lambda pair: -pair[1])


def test_the_best_come_with_their_texts(server: Server) -> None:
    client = cohere.Client(api_key="none", base_url=server.url)
    [best] = client.rerank(
        model="demo", query="Sum?", documents=DOCUMENTS, top_n=1, return_documents=True
    ).results
    assert best.document is not None
    assert best.document.text == DOCUMENTS[best.index]


def test_a_model_that_is_not_there_is_not_found(server: Server) -> None:
    client = cohere.ClientV2(api_key="none", base_url=server.url)
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="nothing", query="Sum?", documents=DOCUMENTS)
