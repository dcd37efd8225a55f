"""Models that compute NaN: an error of the model with status 500, in every API."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from support.serving import Server, start_server
from support.tiny_model import Tiny, tiny_weights, write_tiny

pytestmark = pytest.mark.server

GOOD, BAD = [5, 6, 7], [5, 9, 7]
PLACE = "the model computed NaN or infinite embeddings for input"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    weights = tiny_weights(Tiny())
    weights["token_embd.weight"][9] = np.nan
    write_tiny(folder / "embedder.gguf", Tiny(), weights=weights, pooling=1)
    for name, value in (("nan", np.nan), ("infinite", np.inf)):
        head = np.full((1, Tiny().embedding), value, np.float32)
        ranking = tiny_weights(Tiny()) | {"cls.output.weight": head}
        write_tiny(folder / f"{name}-ranker.gguf", Tiny(), weights=ranking, pooling=4)
    started = start_server(folder, tmp_path_factory.mktemp("home"), TAMPU_THREADS="1")
    yield started
    started.end()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {}),
        ("/v1/embeddings", {"encoding_format": "base64"}),
        ("/v1/embeddings", {"dimensions": 4}),
        ("/v1/embeddings", {"embd_normalize": -1}),
        ("/v1/embeddings", {"embd_normalize": 0}),
        ("/embeddings", {}),
        ("/embedding", {}),
    ],
)
def test_an_embedding_with_nan_is_an_error_of_the_model(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    with ThreadPoolExecutor(2) as pool:
        good = pool.submit(client.post, path, json={"model": "embedder", "input": [GOOD], **body})
        bad = client.post(path, json={"model": "embedder", "input": [GOOD, BAD, GOOD], **body})
    assert bad.status_code == 500
    assert f"{PLACE}[1]" in bad.text
    assert good.result().status_code == 200
    assert "null" not in good.result().text.lower().replace('"param":null', "")


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings", "/v2/embed"])
def test_an_embedding_of_a_text_with_nan_is_an_error_of_the_model(
    client: httpx.Client, path: str
) -> None:
    told = client.post("/api/detokenize", json={"model": "embedder", "tokens": [9]}).json()
    field = {"/api/embed": "input", "/api/embeddings": "prompt", "/v2/embed": "texts"}[path]
    text: Any = [told["text"]] if field == "texts" else told["text"]
    more = {"input_type": "search_query"} if field == "texts" else {}
    response = client.post(path, json={"model": "embedder", field: text, **more})
    assert response.status_code == 500
    assert f"{PLACE}[0]" in response.text


@pytest.mark.parametrize("name", ["nan", "infinite"])
@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_a_score_that_is_not_finite_is_an_error_of_the_model(
    client: httpx.Client, name: str, path: str
) -> None:
    body = {"model": f"{name}-ranker", "query": "a", "documents": ["b", "c"]}
    response = client.post(path, json=body)
    assert response.status_code == 500
    assert "NaN or infinite scores for documents[0]" in response.text
