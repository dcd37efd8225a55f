"""Each API reports how many tokens of an answer were guessed, and how many of these were right."""

from __future__ import annotations

import pytest

from tampu.errors import RequestError
from tampu.runner.events import Done, Usage
from tampu.server.features.llama_server.metrics import LlamaServerMetrics
from tampu.server.fields.telemetry import timings
from tampu.server.openai.fields import read_prediction
from tampu.server.openai.output import usage_object
from tampu.server.serving.events import total_usage
from tampu.server.serving.metrics import Metrics

USAGE = Usage(
    prompt_tokens=5, generated_tokens=9, drafted_tokens=7, accepted_tokens=4, drafts=3
)  # fmt: skip


def test_openai_s_usage() -> None:
    done = [Done("stop", USAGE, choice=choice) for choice in range(2)]
    details = usage_object(total_usage(done, 2))["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == 2 * 4
    assert details["rejected_prediction_tokens"] == 2 * 3


def test_llama_server_s_timings() -> None:
    found = timings(USAGE)
    assert (found["draft_n"], found["draft_n_accepted"]) == (7, 4)
    assert not {"draft_n", "draft_n_accepted"} & timings(Usage(generated_tokens=9)).keys()


def test_llama_server_s_metrics() -> None:
    metrics = LlamaServerMetrics()
    for _ in range(2):
        metrics.answered(USAGE)
    lines = metrics.show().decode().splitlines()
    for name, count in (("draft_tokens", 14), ("accepted_tokens", 8), ("drafts", 6)):
        assert f"llamacpp:spec_decode_num_{name}_total {float(count)}" in lines


def test_the_server_s_own_metrics() -> None:
    metrics = Metrics()
    with metrics.request("m") as count:
        count(Done("stop", USAGE))
    shown = metrics.show().decode()
    assert 'tampu_tokens_total{kind="drafted",model="m"} 7.0' in shown
    assert 'tampu_tokens_total{kind="accepted",model="m"} 4.0' in shown


def test_the_text_of_a_prediction() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read_prediction(None) == ""
    assert read_prediction({"type": "content", "content": "ab"}) == "ab"
    assert read_prediction({"type": "content", "content": parts}) == "ab"
    with pytest.raises(RequestError, match="prediction must have the type 'content'"):
        read_prediction({"type": "content", "content": ["a"]})
