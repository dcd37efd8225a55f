"""Traces of requests, received by a collector on this machine."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.batches import Batches, line
from support.fake_runner import FakeStart
from support.serving import Server
from support.traces import Collector, collecting

from tampu.errors import SettingsError
from tampu.server.app import create_app
from tampu.server.features.tracing.middleware import TraceMiddleware, start_tracing
from tampu.server.options import ServerOptions
from tampu.store.catalog import Catalog
from tests.server.conftest import Site

pytestmark = pytest.mark.slow

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = {"traceparent": f"00-{TRACE}-{CLIENT}-01"}
CHAT = "/v1/chat/completions"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture
def traced(model_folder: Path, collector: Collector) -> Site:
    return Site(model_folder, FakeStart(), ServerOptions(otlp_endpoint=collector.url))


def chat(text: str = "a b", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def asked(site: Site, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    [answer] = site.call(("POST", path, {"json": body, "headers": TRACED | headers}))
    return answer


def test_a_request_is_part_of_its_clients_trace(traced: Site, collector: Collector) -> None:
    answer = asked(traced, CHAT, chat(temperature=0.5, max_tokens=7, seed=3))
    spans = collector.spans()
    assert {each.trace for each in spans} == {TRACE}
    request, model = collector.span(f"POST {CHAT}"), collector.span("chat m")
    assert request.parent == CLIENT
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["http.route"] == CHAT
    assert request.attributes["tampu.request_id"] == answer.headers["x-request-id"]
    assert model.parent == request.id
    parts = [each for each in spans if each.parent == model.id]
    assert {each.name for each in parts} == {"load", "queue", "prompt", "answer"}
    assert model.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tampu",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": pytest.approx(model.attributes["gen_ai.request.top_p"]),
        "gen_ai.request.top_k": model.attributes["gen_ai.request.top_k"],
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.seed": 3,
        "gen_ai.request.choice.count": 1,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.response.finish_reasons": ["stop"],
    }


def test_parts_last_as_long_as_the_models_process_says(traced: Site, collector: Collector) -> None:
    asked(traced, CHAT, chat())
    queue, prompt, answer = (collector.span(name) for name in ("queue", "prompt", "answer"))
    assert (prompt.ended_ns - prompt.began_ns, answer.ended_ns - answer.began_ns) == (5, 7)
    assert queue.ended_ns == prompt.began_ns
    assert prompt.ended_ns == answer.began_ns


def test_a_model_in_memory_is_not_loaded(traced: Site, collector: Collector) -> None:
    traced.call(("POST", CHAT, {"json": chat()}), ("POST", CHAT, {"json": chat()}))
    names = [each.name for each in collector.spans()]
    assert (names.count("load"), names.count("answer")) == (1, 2)


def test_each_choice_has_its_parts(traced: Site, collector: Collector) -> None:
    asked(traced, CHAT, chat(n=3, stream=True))
    found = [each for each in collector.spans() if each.name == "answer"]
    assert sorted(each.attributes["tampu.choice"] for each in found) == [0, 1, 2]
    assert collector.span("chat m").attributes["gen_ai.usage.output_tokens"] == 6


def test_other_uses_of_models_are_traced(traced: Site, collector: Collector) -> None:
    traced.call(
        ("POST", "/v1/completions", {"json": {"model": "m", "prompt": "a"}}),
        ("POST", "/v1/embeddings", {"json": {"model": "embedder", "input": ["a", "b"]}}),
    )
    assert collector.span("text_completion m").attributes["gen_ai.usage.output_tokens"] == 2
    assert collector.span("embeddings embedder").attributes["gen_ai.usage.input_tokens"] == 4


def test_a_failure_is_in_the_trace(traced: Site, collector: Collector) -> None:
    asked(traced, CHAT, chat("refuse"))
    model, request = collector.span("chat m"), collector.span(f"POST {CHAT}")
    assert (model.has_failed, model.attributes["error.type"]) == (True, "ComputeError")
    assert (request.has_failed, request.attributes["http.response.status_code"]) == (True, 500)


def test_texts_are_not_in_a_trace(traced: Site, collector: Collector) -> None:
    asked(traced, CHAT, chat("geheim geheim"))
    assert collector.spans()
    assert not any(b"geheim" in each.body for each in collector.server.requests)


def test_a_client_chooses_what_is_traced(traced: Site, collector: Collector) -> None:
    asked(traced, CHAT, chat(), traceparent=f"00-{TRACE}-{CLIENT}-00")
    assert collector.spans() == []


@pytest.mark.parametrize("given", ["", "x", f"00-{'0' * 32}-{CLIENT}-01", "00-" + "f" * 5000])
def test_an_invalid_parent_begins_a_new_trace(
    traced: Site, collector: Collector, given: str
) -> None:
    asked(traced, CHAT, chat(), traceparent=given)
    request = collector.span(f"POST {CHAT}")
    assert request.parent == ""
    assert request.trace not in (TRACE, "0" * 32)


def test_health_checks_and_lists_are_not_traced(traced: Site, collector: Collector) -> None:
    traced.call(("GET", "/health", {}), ("GET", "/v1/models", {}), ("HEAD", "/", {}))
    assert collector.spans() == []


def test_rows_of_batches_are_not_traced(
    model_folder: Path, tmp_path: Path, collector: Collector
) -> None:
    options = ServerOptions(otlp_endpoint=collector.url, state=tmp_path)
    site = Site(model_folder, FakeStart(), options)

    async def test(client: Any) -> None:
        batches = Batches(client)
        assert (await batches.ended(await batches.begin([line("a")])))["status"] == "completed"

    site.run(test)
    assert {each.name for each in collector.spans()} == {"POST /v1/files", "POST /v1/batches"}


def test_a_collector_that_is_not_there_costs_no_request(model_folder: Path) -> None:
    options = ServerOptions(otlp_endpoint="http://127.0.0.1:1")
    site = Site(model_folder, FakeStart(), options)
    assert asked(site, CHAT, chat()).status_code == 200


def test_without_an_endpoint_nothing_of_it_is_loaded(site: Site) -> None:
    asked(site, CHAT, chat())
    assert all(each.cls is not TraceMiddleware for each in site.app.user_middleware)
    code = "import sys, tampu.server.app; print([n for n in sys.modules if 'opentelemetry' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_opentelemetry_an_endpoint_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tampu.server.features.tracing.otlp", None)
    with pytest.raises(SettingsError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT .* 'tampu\[otel\]'"):
        create_app(replace(ServerOptions(), otlp_endpoint="http://127.0.0.1:1"), Catalog(), None)


def test_variables_of_opentelemetry_apply(
    monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k")
    tracer = start_tracing(collector.url + "/")
    tracer.request_span("POST", {}, {}).end()
    tracer.close()
    [export] = collector.exports()
    [resource] = export.resource_spans
    told = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert told["service.name"] == "mine"
    assert "service.version" in told
    assert collector.server.requests[0].headers["x-key"] == "k"


@pytest.mark.server
def test_a_request_is_followed_to_the_batches_that_computed_it(
    start: Callable[..., Server], collector: Collector
) -> None:
    server = start(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, TAMPU_SPEC_TYPE="none")
    body = chat("a", max_tokens=8, ignore_eos=True) | {"model": "tiny"}
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(2):
            client.post(CHAT, json=body, headers=TRACED).raise_for_status()
        told = client.get("/metrics").text
    assert server.stop() == 0
    batches = int(float(re.search(r"^llamacpp:n_decode_total (.*)", told, re.MULTILINE)[1]))
    first, second = (
        [each.attributes for each in collector.spans() if each.name == name]
        for name in ("prompt", "answer")
    )
    ranges = [
        (each["tampu.batch.first"], each["tampu.batch.last"])
        for pair in zip(first, second, strict=True)
        for each in pair
    ]
    # The first batch gives the first token, and is of the prompt too; seven more give the others.
    assert ranges == [(1, 1), (1, 8), (9, 9), (9, 16)]
    assert batches == 16
    assert {each.trace for each in collector.spans()} == {TRACE}
