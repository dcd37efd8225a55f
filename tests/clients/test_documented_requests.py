"""Requests in the shapes that the documentation of llama-server, vLLM and OpenAI shows.

The answers are read as it says. Ollama's examples are in `test_ollama_examples`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest
from support.scripted import write_scripted
from support.serving import Server, start_server
from support.sse import blocks_of
from support.tiny_adapter import write_tiny_adapter
from support.tiny_model import Tiny, write_tiny

from tests.clients.test_openai_batches import ended

pytestmark = [pytest.mark.client, pytest.mark.server]

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
SAID = ["One", ",", " two", "."]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, adapters: Path) -> Iterator[Server]:
    """A server as llama-server is started: with a default model, and a folder for slots."""
    models = tmp_path_factory.mktemp("models")
    write_scripted(models / "filler.gguf", SAID, template=TEMPLATE, can_insert=True)
    write_tiny(models / "embedder.gguf", Tiny(context=64), pooling=1)
    write_tiny(models / "tiny.gguf", template=TEMPLATE)
    write_tiny_adapter(adapters / "poet.gguf", models / "tiny.gguf")
    server = start_server(
        models,
        tmp_path_factory.mktemp("home"),
        "--slot-save-path",
        str(tmp_path_factory.mktemp("slots")),
        TAMPU_DEFAULT_MODEL="filler",
        TAMPU_ADAPTERS=str(adapters),
        TAMPU_THREADS="1",
        TAMPU_NUM_PARALLEL="2",
    )
    yield server
    server.end()


def test_the_decisions_of_our_documentation(server: Server) -> None:
    """Its examples with the clients' packages, as they are but for the model's name."""
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.split("\n## Decisions\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    text = "\n".join(blocks).replace('"qwen3"', '"tiny"').replace("ollama.Client()", "own")
    own = ollama.Client(server.url)
    openais = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    answers = []
    with openais as client, closing(own._client):
        for call in ast.parse(text).body:
            assert isinstance(call, ast.Expr)
            names = {"client": client, "own": own}
            answers.append(eval(ast.unparse(call), names))
    first, second, third = answers
    assert [each.type for each in first.answers] == ["predicate", "choice"]
    labels = [each.label for each in second.answers[0].probabilities]
    assert labels == ["calm", "annoyed", "furious"]
    assert {*third.answers} == {"refund", "team", "anger"}


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        yield client


def post(client: httpx.Client, path: str, body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


# -- llama-server ----------------------------------------------------------------------------------


def test_a_completion_needs_a_prompt_only(client: httpx.Client) -> None:
    found = post(client, "/completion", {"prompt": "Count to three:", "n_predict": 16})
    assert found["content"] == "".join(SAID)
    assert found["stop"] is True
    assert found["timings"]["predicted_n"] == found["tokens_predicted"]


def test_a_streamed_completion_has_content_tokens_and_stop(client: httpx.Client) -> None:
    body = {"prompt": "Count:", "n_predict": 16, "stream": True, "id_slot": 0, "cache_prompt": True}
    with client.stream("POST", "/completion", json=body) as response:
        response.read()
        chunks = [json.loads(block["data"]) for block in blocks_of(response)]
    assert "".join(chunk["content"] for chunk in chunks) == "".join(SAID)
    assert [chunk["stop"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(isinstance(token, int) for chunk in chunks for token in chunk["tokens"])


def test_the_shapes_of_prompts(client: httpx.Client) -> None:
    def found(prompt: Any) -> Any:
        return post(client, "/completion", {"prompt": prompt, "n_predict": 4})

    for one in ("a", [260, 261], [260, "a", 261], {"prompt_string": "a"}):
        assert found(one)["content"]
    several: list[list[Any]] = [
        ["a", "b"],
        ["a", [260, 261], {"prompt_string": "b"}],
        [[260, "a"], [260], "b"],
    ]
    for many in several:
        assert len(found(many)) == len(many)


def test_probabilities_have_ids_tokens_and_bytes(client: httpx.Client) -> None:
    found = post(client, "/completion", {"prompt": "a", "n_predict": 2, "n_probs": 3})
    for one in found["completion_probabilities"]:
        assert one.keys() == {"id", "logprob", "token", "bytes", "top_logprobs"}
        assert 1 <= len(one["top_logprobs"]) <= 3
    body = {"prompt": "a", "n_predict": 2, "n_probs": 3, "post_sampling_probs": True}
    for one in post(client, "/completion", body)["completion_probabilities"]:
        assert 0 <= one["prob"] <= 1
        assert all(0 <= top["prob"] <= 1 for top in one["top_probs"])


def test_fields_of_an_answer_are_chosen(client: httpx.Client) -> None:
    fields = ["content", "generation_settings/n_predict", "none/of/these"]
    found = post(client, "/completion", {"prompt": "a", "n_predict": 2, "response_fields": fields})
    assert found.keys() == {"content", "generation_settings/n_predict"}


@pytest.mark.parametrize(
    "bias", [[[260, 1.0]], [[260, -1.0]], [[260, False]], [["a b", -0.5]], {"260": 1, "a b": -1}]
)
def test_the_forms_of_a_bias(client: httpx.Client, bias: Any) -> None:
    found = post(client, "/completion", {"prompt": "a", "n_predict": 2, "logit_bias": bias})
    assert found["content"]


def test_a_text_becomes_tokens_and_tokens_a_text(client: httpx.Client) -> None:
    tokens = post(client, "/tokenize", {"content": "a b", "add_special": True})["tokens"]
    assert "a b" in post(client, "/detokenize", {"tokens": tokens})["content"]
    body = {"content": "á", "with_pieces": True}
    pieces = [one["piece"] for one in post(client, "/tokenize", body)["tokens"]]
    assert pieces[-2:] == [[195], [161]]


def test_a_template_is_applied_and_its_prompt_completed(client: httpx.Client) -> None:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    prompt = post(client, "/apply-template", {"messages": messages})["prompt"]
    assert "Be short." in prompt
    assert post(client, "/completion", {"prompt": f"{prompt} Sure!", "n_predict": 4})["content"]


def test_infill_takes_a_prefix_a_suffix_and_other_files(client: httpx.Client) -> None:
    extra = [{"filename": "sums.py", "text": "def double(x):\n    return 2 * x\n"}]
    body = {"input_extra": extra, "input_prefix": "def half(x):\n", "input_suffix": "\n",
            "prompt": "    ret", "n_predict": 8}  # fmt: skip
    assert post(client, "/infill", body)["content"]


def test_embeddings_of_both_routes(client: httpx.Client) -> None:
    [own] = post(client, "/embedding", {"content": "a b", "model": "embedder"})
    body = {"input": ["a b", "c"], "model": "embedder", "encoding_format": "float"}
    listed = post(client, "/v1/embeddings", body)
    assert own["index"] == 0
    assert own["embedding"] == [listed["data"][0]["embedding"]]


@pytest.mark.parametrize("path", ["/reranking", "/rerank", "/v1/rerank", "/v1/reranking"])
def test_documents_are_ranked(client: httpx.Client, path: str) -> None:
    documents = ["no", "a fruit", "The lulo is a fruit of the Andes, sour and green inside."]
    body = {"model": "filler", "query": "What is a lulo?", "top_n": 3, "documents": documents}
    results = post(client, path, body)["results"]
    assert sorted(one["index"] for one in results) == [0, 1, 2]
    assert all(isinstance(one["relevance_score"], float) for one in results)


def test_a_model_is_described(client: httpx.Client) -> None:
    props = client.get("/props").json()
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["params"]["n_predict"] == -1
    slots = client.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1]


def test_a_slot_is_saved_restored_and_erased(client: httpx.Client) -> None:
    post(client, "/completion", {"prompt": "A long story, " * 20, "n_predict": 4})
    file = {"filename": "story.bin"}
    saved = post(client, "/slots/0?action=save", file)
    assert saved.keys() == {"id_slot", "filename", "n_saved", "n_written", "timings"}
    assert post(client, "/slots/0?action=erase", {}) == {"id_slot": 0, "n_erased": saved["n_saved"]}
    restored = post(client, "/slots/0?action=restore", file)
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])


def test_models_are_loaded_listed_and_unloaded(client: httpx.Client) -> None:
    def status() -> str:
        models = client.get("/models").json()["data"]
        [found] = [one for one in models if one["id"].partition(":")[0] == "tiny"]
        return str(found["status"]["value"])

    assert post(client, "/models/load", {"model": "tiny"}) == {"success": True}
    assert status() == "loaded"
    assert post(client, "/models/unload", {"model": "tiny"}) == {"success": True}
    assert status() == "unloaded"


def test_questions_about_a_state_without_a_model(client: httpx.Client) -> None:
    body = {
        "state": "Guest: the shower in room 12 has been cold since Monday.",
        "questions": {
            "who": {"type": "choice", "instructions": "Who should come?",
                    "criteria": {"plumber": None, "cleaner": None}},
            "upset": {"type": "noul", "instructions": "Is the guest upset?"},
            "when": {"type": "score", "instructions": "How soon?",
                     "criteria": ["this month", "this week", "now"]},
        },
    }  # fmt: skip
    found = post(client, "/v1/systemone", body)
    who, upset, when = (found["answers"][name] for name in ("who", "upset", "when"))
    assert who["choice"] in who["probabilities"]
    assert 0 <= upset["noul"] <= 1
    assert when["legend"] == {"0": "this month", "1": "this week", "2": "now"}
    assert 0 <= when["score"] <= 2
    assert found["usage"]["output_tokens"] == 0


# -- vLLM ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_results_have_their_documents_where_vllm_s_clients_ask(
    client: httpx.Client, path: str
) -> None:
    documents = ["By the road.", "In the sea."]
    body = {"model": "filler", "query": "Where is the tambo?", "top_n": 1,
            "documents": documents}  # fmt: skip
    found = post(client, path, body)
    [best] = found["results"]
    assert best["index"] in (0, 1)
    assert 0 <= best["relevance_score"] <= 1
    if path != "/v2/rerank":  # Cohere's has no documents
        assert best["document"]["text"] == documents[best["index"]]
        assert found["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_pairs_of_texts_are_scored(client: httpx.Client, path: str) -> None:
    for first, second in (
        ("Where do runners rest?", "In a tambo."),
        ("Where do runners rest?", ["In a tambo.", "At sea."]),
        (["Where do runners rest?", "What is a lulo?"], ["In a tambo.", "A fruit."]),
    ):
        found = post(client, path, {"model": "filler", "text_1": first, "text_2": second})
        assert found["id"].startswith("score-")
        for names in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
            same = post(client, path, {"model": "filler", names[0]: first, names[1]: second})
            assert same["data"] == found["data"]
        count = len(second) if isinstance(second, list) else 1
        assert [one["index"] for one in found["data"]] == [*range(count)]
        assert all(one["object"] == "score" and 0 <= one["score"] <= 1 for one in found["data"])


def test_samplers_in_their_usual_order_change_nothing(client: httpx.Client) -> None:
    shown = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc",
             "temperature"]  # fmt: skip
    for samplers in (shown, ";".join(shown), "edskypmxt"):
        body = {"prompt": "Count:", "n_predict": 16, "samplers": samplers}
        assert post(client, "/completion", body)["content"] == "".join(SAID)


def test_an_adapter_is_loaded_by_its_whole_path(client: httpx.Client, adapters: Path) -> None:
    body = {"lora_name": "verse", "lora_path": str(adapters / "poet.gguf"), "model": "tiny"}
    response = client.post("/v1/load_lora_adapter", json=body)
    assert response.status_code == 200, response.text
    client.post("/v1/unload_lora_adapter", json={"lora_name": "verse"}).raise_for_status()
    elsewhere = [adapters.parent / "poet.gguf", adapters / ".." / "poet.gguf", adapters / ".."]
    for path in elsewhere:
        response = client.post("/v1/load_lora_adapter", json={**body, "lora_path": str(path)})
        assert response.status_code == 400
        assert "the server's folder of adapters" in response.json()["error"]["message"]


def test_an_adapter_is_loaded_used_scaled_and_unloaded(client: httpx.Client) -> None:
    body = {"lora_name": "verse", "lora_path": "poet.gguf"}
    response = client.post("/v1/load_lora_adapter", json={**body, "model": "tiny"})
    assert response.text == "Success: LoRA adapter 'verse' added successfully."
    [parent] = [one["parent"] for one in client.get("/v1/models").json()["data"] if "parent" in one]
    assert parent == "tiny"
    said = {"model": "verse", "prompt": "Spring", "max_tokens": 4, "temperature": 0}
    assert post(client, "/v1/completions", said)["choices"][0]["text"]
    # llama-server's routes of the same adapters
    [listed] = client.get("/lora-adapters", params={"model": "tiny"}).json()
    assert listed.keys() >= {"id", "path", "scale"}
    changed = client.post(
        "/lora-adapters", params={"model": "tiny"}, json=[{"id": listed["id"], "scale": 0.5}]
    )
    assert changed.status_code == 200
    chosen = {"model": "tiny", "prompt": "a", "n_predict": 2, "lora": [{"id": 0, "scale": 0.5}]}
    assert post(client, "/completion", chosen)["content"]
    response = client.post("/v1/unload_lora_adapter", json={"lora_name": "verse"})
    assert response.text == "Success: LoRA adapter 'verse' removed successfully."


# -- OpenAI ----------------------------------------------------------------------------------------


def test_a_conversation_goes_on_from_a_response(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        first = client.responses.create(model="filler", input="Count to two.")
        again = [{"role": "user", "content": "Once more."}]
        second = client.responses.create(
            model="filler",
            previous_response_id=first.id,
            input=again,  # type: ignore[arg-type]
        )
        assert second.previous_response_id == first.id
        assert second.output_text == "".join(SAID)
        assert client.responses.retrieve(first.id).output_text == first.output_text


def test_a_batch_is_made_of_a_file_and_read(server: Server, tmp_path: Path) -> None:
    row = {
        "custom_id": "row-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "filler", "messages": [{"role": "user", "content": "Hi"}],
                 "max_tokens": 10},
    }  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        file = client.files.create(file=path, purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"about": "a test"},
        )
        assert batch.status in ("validating", "in_progress", "completed")
        batch = ended(client, batch.id)
        assert batch.status == "completed"
        [line] = client.files.content(str(batch.output_file_id)).text.splitlines()
    answer = json.loads(line)
    assert (answer["custom_id"], answer["response"]["status_code"]) == ("row-1", 200)
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == "".join(SAID)
