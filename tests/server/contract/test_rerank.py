"""`/v1/rerank`, `/v1/reranking`, `/v2/rerank` and `/v1/score`, statement by statement."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.server

QUERY = "What is the sum?"
DOCUMENTS = ["Cats sleep all day.", "The sum is 85.", "Rain falls."]


def rank(client: httpx.Client, path: str = "/v1/rerank", status: int = 200, **more: Any) -> Any:
    body = {"model": "talker", "query": QUERY, "documents": DOCUMENTS} | more
    answer = client.post(path, json={k: v for k, v in body.items() if v is not None})
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/reranking", "/rerank", "/reranking"])
def test_documents_are_in_the_order_of_their_scores(client: httpx.Client, path: str) -> None:
    found = rank(client, path)
    assert (found["object"], found["model"]) == ("list", "talker")
    scores = [result["relevance_score"] for result in found["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert sorted(result["index"] for result in found["results"]) == [0, 1, 2]
    for result in found["results"]:
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 30


def test_the_best_are_returned_with_their_texts(client: httpx.Client) -> None:
    whole = rank(client)["results"]
    assert rank(client, top_n=2, return_documents=True)["results"] == whole[:2]
    bare = [{name: each[name] for name in ("index", "relevance_score")} for each in whole[:2]]
    assert rank(client, top_n=2, return_documents=False)["results"] == bare


def test_documents_may_be_objects(client: httpx.Client) -> None:
    objects = [{"text": text, "title": "x"} for text in DOCUMENTS]
    assert rank(client, documents=objects)["results"] == rank(client)["results"]


def test_fields_of_objects_are_ranked_by_their_names(client: httpx.Client) -> None:
    objects = [{"Title": "A rule", "Content": text, "id": 5} for text in DOCUMENTS]
    texts = [f"Title: A rule\nContent: {text}" for text in DOCUMENTS]
    found = rank(client, documents=objects, rank_fields=["Title", "Content"])
    assert found["results"] == rank(client, documents=texts)["results"]


def test_texts_are_answered_in_the_form_of_tei(client: httpx.Client) -> None:
    whole = rank(client)["results"]
    expected = [{"index": each["index"], "score": each["relevance_score"]} for each in whole]
    assert rank(client, documents=None, texts=DOCUMENTS) == expected
    [best] = rank(client, documents=None, texts=DOCUMENTS, return_text=True, top_n=1)
    assert best["text"] == DOCUMENTS[best["index"]]


def test_cohere_s_form(client: httpx.Client) -> None:
    found = rank(client, "/v2/rerank", max_tokens_per_doc=4096)
    assert {*found} == {"id", "results", "meta"}
    assert found["results"] == rank(client, return_documents=False)["results"]
    assert found["meta"]["tokens"]["input_tokens"] > 30


def test_an_instruction_changes_the_scores(client: httpx.Client) -> None:
    assert rank(client)["results"] == rank(client)["results"]
    usual = rank(client)["usage"]["prompt_tokens"]
    assert rank(client, instruction="Find " * 30)["usage"]["prompt_tokens"] > usual


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"documents": None}, "documents: give them, or texts"),
        ({"texts": ["x"]}, "documents: give them, or texts"),
        ({"documents": []}, "documents: there must be 1 to 2048"),
        ({"documents": ["x"] * 2049}, "documents: there must be 1 to 2048"),
        ({"documents": ["x", " "]}, "documents[1] is empty"),
        ({"documents": [{"title": "x"}]}, "documents[0] must be a text or have one"),
        ({"documents": ["x", "why " * 3000]}, "documents[1]"),
        ({"documents": 5}, "documents"),
        ({"query": " "}, "query is empty"),
        ({"top_n": 0}, "top_n must be 1 or more, not 0"),
        (
            {"rank_fields": ["title", "body"], "documents": [{"text": "x"}]},
            "documents[0] must be a text or have title or body",
        ),
        ({"truncate": True}, "truncate is not supported here"),
        ({"truncation": "auto"}, "truncate is not supported here"),
        ({"raw_scores": True}, "raw_scores is not supported"),
        ({"model": "embedder"}, "does not support generate"),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, more: dict[str, Any], message: str) -> None:
    assert message in rank(client, status=400, **more)["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_a_model_with_a_rank_head_ranks(client: httpx.Client, path: str) -> None:
    found = rank(client, path, model="ranker", query="a", documents=["b", "cd", "b"])["results"]
    assert {result["index"] for result in found} == {0, 1, 2}
    assert all(0 < result["relevance_score"] < 1 for result in found)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", {"input": "a"}, "ranker:latest has no embeddings: it ranks documents"),
        ("/v1/completions", {"prompt": "a"}, "does not support generate"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "instruction": "c"}, "instruction"),
        ("/v1/rerank", {"query": "a", "documents": ["b", "c " * 900]}, "documents[1]"),
    ],
)
def test_what_a_ranker_does_not_do_is_refused(
    client: httpx.Client, path: str, body: dict[str, Any], message: str
) -> None:
    answer = client.post(path, json={"model": "ranker", **body})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_ranker_says_that_it_ranks(client: httpx.Client) -> None:
    assert client.post("/api/show", json={"model": "ranker"}).json()["capabilities"] == ["rerank"]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_pairs_have_the_scores_of_documents(client: httpx.Client, path: str) -> None:
    def scores(first: Any, second: Any, names: Any = ("text_1", "text_2")) -> list[float]:
        body = {"model": "talker", names[0]: first, names[1]: second}
        found = client.post(path, json=body)
        assert found.status_code == 200, found.text
        answer = found.json()
        assert (answer["object"], answer["model"]) == ("list", "talker")
        assert answer["usage"]["total_tokens"] > 10
        assert [each["index"] for each in answer["data"]] == [*range(len(answer["data"]))]
        return [each["score"] for each in answer["data"]]

    ranked = rank(client)["results"]
    by_index = {each["index"]: each["relevance_score"] for each in ranked}
    expected = pytest.approx([by_index[index] for index in range(len(DOCUMENTS))], rel=1e-6)
    assert scores(QUERY, DOCUMENTS) == expected
    assert scores([QUERY], DOCUMENTS, ("queries", "documents")) == expected
    assert scores(QUERY, DOCUMENTS[0]) == pytest.approx([by_index[0]], rel=1e-6)
    other = scores("hens", DOCUMENTS[1])
    pairs = scores([QUERY, "hens", QUERY], [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[2]])
    assert pairs == pytest.approx([by_index[0], *other, by_index[2]], rel=1e-6)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text_1": "a"}, "text_2: there must be 1 to 2048 texts"),
        ({"text_2": "a"}, "text_1: there must be 1 to 2048 texts"),
        ({"text_1": ["a", "b"], "text_2": "c"}, "text_1 has 2 texts and text_2 1"),
        ({"text_1": "a", "text_2": ["b", " "]}, "text_2[1] is empty"),
        ({"text_1": "", "text_2": "b"}, "text_1 is empty"),
        ({"text_1": "a", "text_2": 7}, "text_2"),
        (
            {"text_1": "a", "queries": "a", "documents": "b"},
            "text_1: give queries and documents alone",
        ),
        ({"queries": "a", "documents": "b", "model": "embedder"}, "does not support generate"),
    ],
)
def test_wrong_pairs_are_named(client: httpx.Client, body: dict[str, Any], message: str) -> None:
    response = client.post("/v1/score", json={"model": "talker", **body})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
