"""The `cohere` package ranks and embeds texts on a server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import cohere
import httpx
import numpy as np
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


def test_texts_have_embeddings_of_several_types(given: dict[str, Any]) -> None:
    client = cohere.ClientV2(**given)
    kinds: Any = ["float", "base64", "binary", "ubinary"]
    found = client.embed(
        model="demo", texts=DOCUMENTS, input_type="search_document", embedding_types=kinds
    )
    assert found.texts == DOCUMENTS
    floats = np.array(found.embeddings.float_, np.float32)
    assert floats.shape[0] == 3
    assert np.linalg.norm(floats, axis=1) == pytest.approx(1, abs=1e-5)
    bytes_of = [base64.b64decode(each) for each in found.embeddings.base64 or ()]
    assert np.array([np.frombuffer(each, "<f4") for each in bytes_of]).tolist() == floats.tolist()
    signs = np.packbits(floats > 0, axis=1).astype(int)
    assert found.embeddings.ubinary == signs.tolist()
    assert found.embeddings.binary == (signs - 128).tolist()
    openai_form = httpx.post(
        f"{given['base_url']}/v1/embeddings",
        json={"model": "demo", "input": DOCUMENTS},
        timeout=300,
    ).json()
    # How many texts share a step differs, and with AMX the rounding of the products with it.
    assert floats[0] == pytest.approx(openai_form["data"][0]["embedding"], abs=5e-3)


def test_parts_of_an_input_are_one_text_and_vectors_may_be_shorter(given: dict[str, Any]) -> None:
    client = cohere.ClientV2(**given)
    parts: Any = [
        {"content": [{"type": "text", "text": "Rain "}, {"type": "text", "text": "falls."}]}
    ]
    asked: dict[str, Any] = {"model": "demo", "input_type": "search_query", "output_dimension": 16}
    joined = client.embed(inputs=parts, **asked)
    whole = client.embed(texts=["Rain falls."], **asked)
    assert joined.embeddings == whole.embeddings
    assert [len(each) for each in joined.embeddings.float_ or ()] == [16]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"embedding_types": ["int8"]}, "embedding_types must be of float, base64"),
        ({"truncate": "START"}, "truncate must be NONE or END"),
        ({"texts": ["why " * 3000], "truncate": "NONE"}, "context"),
        ({"texts": []}, "texts: there must be 1 to 2048"),
        ({"inputs": []}, "texts: give them, or inputs, or images"),
        ({"images": ["data:image/png;base64,"]}, "texts: give them, or inputs, or images"),
        ({"max_tokens": 5}, "max_tokens is not supported"),
    ],
)
def test_what_cannot_be_embedded_is_named(
    given: dict[str, Any], more: dict[str, Any], told: str
) -> None:
    asked = {"model": "demo", "input_type": "search_query", "texts": ["x"]} | more
    with pytest.raises(cohere.BadRequestError, match=told):
        cohere.ClientV2(**given).embed(**asked)
