"""Every field of Ollama's requests and answers: it is read or written, or named why not.

The names are those of `api/types.go` in Ollama's sources, as of August 2026.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest
from support.contract import Answer, Case

from tampu.sampling.parameters import BY_OLLAMA
from tampu.server.features.manage import requests as manage
from tampu.server.ollama import lists as ollama_lists
from tampu.server.ollama import output as ollama_output
from tampu.server.ollama import requests as ollama
from tampu.store.registry.progress import Progress
from tests.server.contract import (
    test_chat,
    test_create,
    test_embed,
    test_generate,
    test_ground_rules,
    test_lists,
    test_show,
    test_transfer,
)

SHARED = (
    "model stream format keep_alive options think truncate shift logprobs top_logprobs "
    "entropy _debug_render_only"
)
REQUESTS = {
    ollama.GenerateRequest: f"{SHARED} prompt suffix system template context raw images",
    ollama.ChatRequest: f"{SHARED} messages tools",
    ollama.EmbedRequest: "model input truncate dimensions keep_alive options",
    ollama.EmbeddingsRequest: "model prompt keep_alive options",
    ollama.ShowRequest: "model name system template verbose options",
    manage.CreateRequest: (
        "model name from files adapters template license system parameters messages quantize "
        "quantization stream renderer parser requires info remote_host draft_files draft_quantize"
    ),
    manage.TransferRequest: "model name insecure stream username password",
    manage.CopyRequest: "source destination",
    manage.NamedRequest: "model name",
    ollama.Message: "role content thinking images tool_calls tool_name tool_call_id",
    ollama.ToolCall: "id function",
    ollama.ToolFunction: "index name arguments",
}
# No model is elsewhere, so there are no `remote_model` and `remote_host`; a generated text has no
# tools that it could call.
METRICS = (
    "done done_reason total_duration load_duration prompt_eval_count prompt_eval_cached_count "
    "prompt_eval_duration eval_count eval_duration logprobs"
)
ANSWERS = {
    ollama_output.GenerateLine: f"model created_at response thinking context {METRICS}",
    ollama_output.ChatLine: f"model created_at message {METRICS}",
    ollama.DebugResponse: "model created_at response message done _debug_info",
    ollama.DebugInfo: "rendered_template image_count",
    ollama_output.LogprobEntry: "token logprob bytes top_logprobs entropy",
    ollama.EmbedResponse: "model embeddings total_duration load_duration prompt_eval_count",
    ollama_lists.ListedModel: "name model modified_at size digest details capabilities",
    ollama_lists.RunningModel: "name model size digest details expires_at size_vram context_length",
    ollama_lists.Details: (
        "parent_model format family families parameter_size quantization_level context_length "
        "embedding_length"
    ),
    ollama_lists.ModelDetails: (
        "license modelfile parameters template system renderer parser details messages model_info "
        "projector_info tensors capabilities modified_at requires"
    ),
    ollama_lists.TensorDetails: "name type shape",
    Progress: "status digest total completed",
}
# Ours: an older spelling, texts of before (/api/create), and what Ollama's API has not.
FORMS = {  # other names of `format`
    "json_schema", "grammar", "ebnf", "regex", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "structured_outputs", "response_format", "text", "output_config",
    "output_format", "guided_whitespace_pattern", "structural_tag",
}  # fmt: skip
LINE = ("truncated", "limit", "timings", "draft_count", "draft_accepted_count", "captured")
INSIDE = {"include", "include_positions", "include_heads", "control_vectors"}
MORE = {
    ollama.GenerateRequest: FORMS | INSIDE | {"truncation", "timings_per_token"},
    ollama.ChatRequest: FORMS
    | INSIDE
    | {"truncation", "tool_choice", "parallel_tool_calls", "timings_per_token"},
    ollama.EmbedRequest: INSIDE | {"truncation", "images"},
    ollama.Message: {"name"},
    ollama_output.GenerateLine: {*LINE},
    ollama_output.ChatLine: {*LINE},
    ollama.EmbedResponse: {"truncated", "captured"},
    ollama.EmbeddingsRequest: {"truncate", "truncation", "control_vectors", "images"},
    ollama.ShowRequest: {"tensors", "memory"},
    ollama_lists.TensorDetails: {"size"},
    manage.CreateRequest: {"modelfile", "path"},
    ollama_lists.ListedModel: {"origin"},
    ollama_lists.RunningModel: {
        "engine", "slots", "slot_size", "devices", "placement", "loading",
    },
    ollama_lists.ModelDetails: {"engine", "memory", "template_problem"},
}  # fmt: skip
PATHS = {
    "/api/generate": ollama.GenerateRequest,
    "/api/chat": ollama.ChatRequest,
    "/api/embed": ollama.EmbedRequest,
    "/api/embeddings": ollama.EmbeddingsRequest,
    "/api/show": ollama.ShowRequest,
    "/api/create": manage.CreateRequest,
    "/api/copy": manage.CopyRequest,
    "/api/delete": manage.NamedRequest,
}
STATED: list[Case] = [
    case
    for table in (
        test_ground_rules.RULES, test_generate.CASES, test_chat.CASES, test_embed.CASES,
        test_lists.CASES, test_show.CASES, test_create.CASES, test_transfer.CASES,
    )
    for case in table.values()
]  # fmt: skip
TABLE = REQUESTS | ANSWERS
OPTIONS = (
    "num_keep seed num_predict top_k top_p min_p typical_p temperature repeat_last_n "
    "repeat_penalty presence_penalty frequency_penalty stop num_ctx num_batch num_gpu main_gpu "
    "use_mmap num_thread draft_num_predict penalize_newline low_vram f16_kv logits_all "
    "vocab_only use_mlock mirostat mirostat_tau mirostat_eta numa tfs_z"
)
MORE_OPTIONS = {
    "think_budget", "engine", "top_n_sigma", "xtc_probability", "xtc_threshold", "dry_multiplier",
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
    "n_cpu_moe", "kv_offload", "infill", "deterministic",
}  # fmt: skip


def names_of(struct: type[msgspec.Struct]) -> set[Any]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


@pytest.mark.parametrize("struct", TABLE, ids=lambda struct: struct.__name__)
def test_a_struct_has_all_fields_and_no_others(struct: type[msgspec.Struct]) -> None:
    assert names_of(struct) == set(TABLE[struct].split()) | MORE.get(struct, set())


def test_the_options_are_those_of_ollama_and_our_own() -> None:
    assert set(BY_OLLAMA) == set(OPTIONS.split()) | MORE_OPTIONS


@pytest.mark.parametrize("path", PATHS)
def test_every_field_of_a_request_has_a_statement(path: str) -> None:
    asked = [case.body for case in STATED if case.path == path and isinstance(case.body, dict)]
    fields = set(REQUESTS[PATHS[path]].split())
    assert fields - {name for body in asked for name in body} == set()


def test_every_field_of_a_transfer_has_a_statement() -> None:
    asked = [case.body for case in STATED if case.path in ("/api/pull", "/api/push")]
    assert set(REQUESTS[manage.TransferRequest].split()) == {name for b in asked for name in b}


@pytest.mark.server
def test_tool_reaches_the_template_with_all_its_fields(client: httpx.Client) -> None:
    place = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/place"}], "description": "where"}
    parameters = {
        "type": "object",
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}}},
        "required": ["place"],
        "properties": {
            "place": place,
            "unit": {"type": ["string", "null"], "enum": ["C", "F"]},
            "days": {"type": "array", "items": {"type": "integer"}},
        },
    }
    function = {"name": "weather", "description": "The weather.", "parameters": parameters}
    body = {
        "model": "caller", "messages": test_chat.USER, "_debug_render_only": True,
        "tools": [{"type": "function", "function": function, "items": []}],
    }  # fmt: skip
    shown = Answer(client.post("/api/chat", json=body)).json["_debug_info"]["rendered_template"]
    [line] = [line for line in shown.splitlines() if line.startswith('{"')]
    assert json.loads(line)["function"] == function


@pytest.mark.server
def test_obsolete_options_are_accepted_without_effect(client: httpx.Client) -> None:
    options = {
        "penalize_newline": True, "low_vram": False, "f16_kv": True, "logits_all": False,
        "vocab_only": False, "use_mlock": False, "mirostat": 1, "mirostat_tau": 5.0,
        "mirostat_eta": 0.1, "numa": False, "tfs_z": 1.0, "draft_num_predict": 4,
    }  # fmt: skip
    body = {"model": "talker", "prompt": "x", "options": options, "stream": False}
    assert Answer(client.post("/api/generate", json=body)).json["response"] == "Hello, world."
