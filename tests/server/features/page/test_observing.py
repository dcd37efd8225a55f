"""What the server tells those who look after it: health, metrics, logs, numbers of requests."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, NoReturn

import httpx
import pytest

from tampu.engine.events import Reply, ToolCallDelta
from tampu.runner.events import BatchCounts, Done, ReasoningDelta, TextDelta, Usage
from tampu.server.front.errors import BusyError
from tampu.server.front.logs import JSONFormatter, TextFormatter, printable
from tampu.server.serving.admission import Admission
from tampu.server.serving.metrics import Metrics
from tests.server.conftest import Site


def samples(text: str) -> dict[Any, Any]:
    """Return the samples of Prometheus' text by their names and labels."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_requests_tokens_and_models_are_counted(site: Site) -> None:
    async def test(client: httpx.AsyncClient) -> dict[Any, Any]:
        for prompt in ("one two three", "refuse"):
            await client.post("/api/generate", json={"model": "m", "prompt": prompt})
        await client.get("/api/nothing")
        return samples((await client.get("/metrics")).text)

    found = site.run(test)
    path = 'method="POST",route="/api/generate"'
    assert found[f'tampu_requests_total{{{path},status="200"}}'] == 1
    assert found[f'tampu_requests_total{{{path},status="500"}}'] == 1
    assert found['tampu_requests_total{method="GET",route="unknown",status="404"}'] == 1
    assert found['tampu_tokens_total{kind="prompt",model="m"}'] == 3
    assert found['tampu_tokens_total{kind="cached",model="m"}'] == 1
    assert found['tampu_tokens_total{kind="generated",model="m"}'] == 2
    assert found['tampu_time_to_first_token_seconds_count{model="m"}'] == 1
    assert found['tampu_time_between_tokens_seconds_count{model="m"}'] == 2
    assert found['tampu_load_seconds_count{model="m"}'] == 1
    assert found['tampu_errors_total{kind="ComputeError"}'] == 1
    assert found['tampu_model_memory_bytes{model="m"}'] == 1000
    assert found["tampu_requests_waiting"] == 0


def test_tokens_that_came_together_share_the_time_since_those_before() -> None:
    now_s = iter([0.0, 1.0, 3.0, 3.0, 4.0, 5.0])
    metrics = Metrics(clock=lambda: next(now_s))
    events: list[Reply] = [
        TextDelta("a", (1,)),  # 1 s after the request
        TextDelta("bcd", (2, 3, 4, 5)),  # 2 s later: 0.5 s each
        ToolCallDelta("{", 0),  # its tokens come with the next text, or at the end
        ReasoningDelta("e", (6,)),  # 1 s later
        Done("stop", Usage(generated_tokens=7)),  # the token that ends it, 1 s later
    ]
    with metrics.request("m") as count:
        for event in events:
            count(event)
    found = samples(metrics.show().decode())
    name = "tampu_time_between_tokens_seconds"
    assert found[f'{name}_count{{model="m"}}'] == 6  # of seven tokens
    assert found[f'{name}_sum{{model="m"}}'] == pytest.approx(4.0)
    assert found[f'{name}_bucket{{le="0.5",model="m"}}'] == 4
    assert found[f'{name}_bucket{{le="1.0",model="m"}}'] == 6
    assert found['tampu_time_to_first_token_seconds_sum{model="m"}'] == 1.0


def test_llama_servers_names_have_the_counts_of_all_models(site: Site) -> None:
    async def test(client: httpx.AsyncClient) -> Any:
        for model in ("m", "base"):
            asked = {"model": model, "prompt": "one two three", "raw": True}
            await client.post("/api/generate", json=asked)
        return await client.get("/metrics")

    response = site.run(test)
    assert int(response.headers["process-start-time-unix"]) > 0
    found = samples(response.text)
    assert found["llamacpp:prompt_tokens_total"] == 2 * 2
    assert found["llamacpp:prompt_tokens_cached_total"] == 2
    assert found["llamacpp:tokens_predicted_total"] == 2 * 2
    assert found["llamacpp:n_tokens_max"] == 5
    assert found["llamacpp:requests_processing"] == found["llamacpp:requests_deferred"] == 0
    for name in found:
        if name.startswith("llamacpp:"):
            assert f"# HELP {name} " in response.text
            assert f"# TYPE {name} " in response.text


def test_llama_servers_rates_are_those_since_the_last_reading(site: Site) -> None:
    asked = {"model": "m", "prompt": "one two three", "raw": True}

    async def test(client: httpx.AsyncClient) -> list[dict[Any, Any]]:
        found = []
        for asks in (True, False, True):
            if asks:
                await client.post("/api/generate", json=asked)
            found.append(samples((await client.get("/metrics")).text))
        return found

    for name in ("prompt_tokens_seconds", "predicted_tokens_seconds"):
        first, idle, last = (found[f"llamacpp:{name}"] for found in site.run(test))
        assert (idle, last) == (0, first)
        assert first > 0


def test_batches_are_counted_over_all_models(site: Site) -> None:
    async def test(client: httpx.AsyncClient) -> list[dict[Any, Any]]:
        found = [samples((await client.get("/metrics")).text)]
        for model in ("m", "base"):
            asked = {"model": model, "prompt": "one", "raw": True}
            await client.post("/api/generate", json=asked)
        for _, runner in site.start.runners:
            runner.computed(BatchCounts(2, 3))
        return [*found, samples((await client.get("/metrics")).text)]

    before, after = site.run(test)
    names = ("llamacpp:n_decode_total", "llamacpp:n_busy_slots_per_decode")
    assert [before[name] for name in names] == [0, 0]
    assert [after[name] for name in names] == [4, 1.5]


def test_server_is_ready_until_shutdown(site: Site) -> None:
    healthy, ready = site.call(("GET", "/v1/health", {}), ("GET", "/ready", {}))
    assert (healthy.json(), ready.json()) == ({"status": "ok"}, {"status": "ready"})
    site.app.state.is_ready = False
    [ending] = site.call(("GET", "/ready", {}))
    assert ending.status_code == 503


def test_full_queue_refuses_requests_with_retry_after() -> None:
    admission = Admission(2)
    with admission.wait(), admission.wait() as leave:
        with pytest.raises(BusyError) as caught, admission.wait():
            pass
        assert 1 <= caught.value.retry_s <= 60
        leave()
        leave()
        with admission.wait():
            assert admission.waiting == 2
    assert admission.waiting == 0


def test_full_queue_is_503_in_each_apis_format(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "wait", lambda self: refuse(self))

    def refuse(_: object) -> NoReturn:
        raise BusyError("server busy, maximum pending requests exceeded", 7)

    message = [{"role": "user", "content": "x"}]
    told_by: dict[str, Callable[[Any], object]] = {
        "/api/chat": lambda body: body["error"],
        "/v1/chat/completions": lambda body: body["error"]["message"],
        "/v1/messages": lambda body: body["error"]["message"],
    }
    for path, told in told_by.items():
        asked = {"model": "m", "messages": message, "max_tokens": 5, "stream": True}
        [response] = site.call(("POST", path, {"json": asked}))
        assert response.status_code == 503
        assert response.headers["retry-after"] == "7"
        assert told(response.json()) == "server busy, maximum pending requests exceeded"


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert printable("a\x1b[31m\r\nb\t") == r"a\x1b[31m\r\nb\t"
    record = logging.LogRecord("tampu", logging.INFO, "", 0, "model %s", ("\x1b[2J",), None)
    assert "\x1b" not in TextFormatter().format(record)
    assert json.loads(JSONFormatter().format(record))["message"] == r"model \x1b[2J"
