"""Every field that llama-server, vLLM and SGLang have beyond OpenAI's in chats and completions.

Each works, changes nothing, or is refused by its name, unless it has the value that changes
nothing. The lists are those of llama-server's README and of the other two's protocol modules, in
2026; what OpenAI's package knows too is in the tables of `test_fields_of_openai`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from support.fields import (
    USER,
    Check,
    Route,
    both,
    effect,
    keys_of,
    nothing,
    read,
    refused,
    said,
    text,
)

from tampu.server.fields.other_servers import (
    UNSUPPORTED,
    UNSUPPORTED_IN_CHATS,
    UNSUPPORTED_IN_COMPLETIONS,
)
from tampu.server.front.http_response import WARNING

pytestmark = [pytest.mark.client, pytest.mark.server, pytest.mark.slow]

LLAMA_SERVER = """
    prompt temperature dynatemp_range dynatemp_exponent top_k top_p min_p n_predict n_indent n_keep
    n_cmpl n_cache_reuse stream stop typical_p repeat_penalty repeat_last_n presence_penalty
    frequency_penalty dry_multiplier dry_base dry_allowed_length dry_penalty_last_n
    dry_sequence_breakers xtc_probability xtc_threshold mirostat mirostat_tau mirostat_eta grammar
    json_schema seed ignore_eos logit_bias n_probs min_keep t_max_predict_ms id_slot cache_prompt
    return_tokens samplers timings_per_token return_progress sse_ping_interval post_sampling_probs
    response_fields lora response_format
"""
LLAMA_SERVER_CHAT = """
    messages chat_template_kwargs reasoning_effort reasoning_format reasoning_control
    parallel_tool_calls parse_tool_calls tools tool_choice add_generation_prompt
    continue_final_message
"""
VLLM = """
    model frequency_penalty logit_bias logprobs max_tokens n presence_penalty response_format seed
    stop stream stream_options temperature top_p user thinking_token_budget use_beam_search top_k
    min_p repetition_penalty watermarking length_penalty stop_token_ids include_stop_str_in_output
    ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens
    truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
    add_special_tokens structured_outputs priority request_id session_id return_tokens_as_token_ids
    return_token_ids routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt
    kv_transfer_params ec_transfer_params vllm_xargs repetition_detection stream_interval
    guided_json guided_regex guided_choice guided_grammar guided_decoding_backend
    guided_whitespace_pattern structural_tag logits_processors
"""
VLLM_CHAT = """
    messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort
    include_reasoning parallel_tool_calls add_generation_prompt continue_final_message documents
    chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text
"""
SGLANG = """
    model frequency_penalty logit_bias logprobs max_tokens n presence_penalty response_format seed
    stop stream stream_options temperature top_p user return_hidden_states return_routed_experts
    routed_experts_start_len return_cached_tokens_details return_token_ids top_k min_p min_tokens
    regex ebnf json_schema repetition_penalty stop_token_ids stop_regex no_stop_trim ignore_eos
    skip_special_tokens lora_path session_id session_params custom_params custom_logit_processor
    images_config bootstrap_host bootstrap_port bootstrap_room routed_dp_rank
    disagg_prefill_dp_rank data_parallel_rank rid extra_key cache_salt ngram_corpus_id priority
    custom_labels
"""
SGLANG_CHAT = """
    messages top_logprobs max_completion_tokens tools tool_choice parallel_tool_calls
    return_prompt_token_ids return_meta_info reasoning_effort task continue_final_message
    separate_reasoning stream_reasoning chat_template_kwargs max_dynamic_patch min_dynamic_patch
    use_audio_in_video input_ids
"""

YES = 'root ::= "yes"'
SCHEMA = {"enum": ["yes"]}


def form(name: str, *values: Any, wanted: str = "yes", wrong: Any = 7) -> Check:
    """The field is a format that the answer follows; a wrong value is refused."""
    return both(
        effect(lambda ask: [text(ask(**{name: value})) for value in values]
               == [wanted] * len(values)),
        refused(wrong),
    )  # fmt: skip


def parameter(name: str, value: Any, wrong: Any, **fields: Any) -> Check:
    """The field is a parameter that changes what is said with these fields."""
    return both(
        effect(lambda ask: text(ask(**fields)) != text(ask(**fields, **{name: value}))),
        refused(wrong),
    )


def unless(default: Any, *others: Any) -> Check:
    """The field is refused, except with the value that changes nothing."""
    return both(nothing(default), refused(*others))


def warned(value: Any) -> Check:
    """The field has no effect, and a warning names it."""

    def check(route: Route, name: str) -> None:
        header = route.post(**{name: value}).headers[WARNING]
        assert f"fields without effect: {name}" in header

    return both(nothing(value), check)


LOOPING = {"model": "looper", "max_tokens": 20}
STUTTERING = {**LOOPING, "temperature": 0.2, "seed": 1}
WARM = {"temperature": 20, "seed": 1, "max_tokens": 8}
SHARED: Mapping[str, Check] = {
    # Forms
    "ebnf": form("ebnf", YES, wrong="root ::= ("),
    "format": form("format", {"choices": ["yes"]}),
    "grammar": form("grammar", YES, 'start: "yes"', wrong='root ::= "y'),
    "guided_choice": form("guided_choice", ["yes"], wrong=[]),
    "guided_grammar": form("guided_grammar", YES, 'start: "yes"', wrong='root ::= "y'),
    "guided_json": form("guided_json", SCHEMA, json.dumps(SCHEMA), wanted='"yes"', wrong="{"),
    "guided_regex": form("guided_regex", "y[e]s"),
    "json_schema": form("json_schema", SCHEMA, json.dumps(SCHEMA), wanted='"yes"', wrong="{"),
    "regex": form("regex", "y[e]s"),
    "response_format": form(
        "response_format",
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA},
        wanted='"yes"',
        wrong={"type": "structural_tag", "structures": [], "triggers": []},
    ),
    "structured_outputs": both(
        form("structured_outputs", {"choice": ["yes"]}, {"regex": "yes"}, {"grammar": YES},
             {"choice": ["yes"], "backend": "xgrammar", "disable_any_whitespace": False},
             wrong={"json": SCHEMA, "regex": "yes"}),
        form("structured_outputs", {"json": SCHEMA}, {"json": json.dumps(SCHEMA)},
             wanted='"yes"', wrong={"jsn": SCHEMA}),
        effect(lambda ask: text(ask(structured_outputs={"json_object": True},
                                    max_tokens=4)).startswith("{")),
        refused({"choice": ["yes"], "whitespace_pattern": " "}, {}, {"choice": "yes"}),
    ),
    # Parameters
    "dry_allowed_length": parameter("dry_allowed_length", 0, -2, dry_multiplier=9, **LOOPING),
    "dry_base": parameter("dry_base", 1, 0, dry_multiplier=0.2, **LOOPING),
    "dry_multiplier": parameter("dry_multiplier", 100, -1, **LOOPING),
    "dry_penalty_last_n": parameter("dry_penalty_last_n", 0, -2, dry_multiplier=100, **LOOPING),
    "dry_sequence_breakers": parameter(
        "dry_sequence_breakers", ["la"], ["x"] * 17, dry_multiplier=100, **LOOPING
    ),
    "ignore_eos": effect(lambda ask: _tokens(ask(ignore_eos=True, max_tokens=9)) == 9),
    "min_p": parameter("min_p", 1, 2, **WARM),
    "n_cmpl": both(effect(lambda ask: len(ask(n_cmpl=2)["choices"]) == 2), refused(0)),
    "n_keep": both(nothing(2), refused(-2)),
    "n_predict": both(
        effect(lambda ask: text(ask(n_predict=2)) == "Hello,"),
        effect(lambda ask: text(ask(n_predict=-1)) == "Hello, world."),
        effect(lambda ask: text(ask(n_predict=2, max_tokens=2)) == "Hello,"),
        refused(1.5),
    ),
    "repeat_last_n": parameter("repeat_last_n", 0, -2, repeat_penalty=100, **STUTTERING),
    "repeat_penalty": parameter("repeat_penalty", 100, 0, **STUTTERING),
    "repetition_penalty": parameter("repetition_penalty", 100, 0, **STUTTERING),
    "thinking_token_budget": both(nothing(-1), refused(1.5)),
    "top_k": parameter("top_k", 1, -2, **WARM),
    "typical_p": both(nothing(1), refused(2)),
    "xtc_probability": both(nothing(0), refused(2)),
    "xtc_threshold": both(nothing(0.6), refused(2)),
    # Without effect: there is no mode that they belong to,
    "dynatemp_exponent": nothing(2), "length_penalty": nothing(2.0), "mirostat_eta": nothing(0.2),
    "mirostat_tau": nothing(4), "truncation_side": nothing("left"),
    # labels, and hints for scheduling and caches; prompts are always cached,
    "cache_prompt": nothing(True, False), "custom_labels": nothing({"a": "b"}),
    "data_parallel_rank": nothing(0), "disagg_prefill_dp_rank": nothing(0),
    "extra_key": nothing("x"), "guided_decoding_backend": nothing("xgrammar"),
    "id_slot": nothing(-1, 0), "n_cache_reuse": nothing(256), "ngram_corpus_id": nothing("x"),
    "priority": nothing(5), "request_id": nothing("x"), "rid": nothing("x"),
    "routed_dp_rank": nothing(0), "routed_experts_start_len": nothing(0),
    "session_id": nothing("x"),
    # how often what is sent, and what is there anyway.
    "return_cached_tokens_details": nothing(True), "return_mm_kwargs": nothing(False),
    "return_progress": nothing(True), "return_token_offsets": nothing(True),
    "spaces_between_special_tokens": nothing(False), "sse_ping_interval": nothing(5),
    "stream_interval": nothing(5), "timings_per_token": nothing(True),
    # Lines
    "n_indent": parameter("n_indent", 2, "x", grammar=r'root ::= "a:\n" "  b\n" "c"'),
    "t_max_predict_ms": parameter(
        "t_max_predict_ms", 1, "x", grammar=r'root ::= ("a" "\n"){40}', max_tokens=64
    ),
    # Which samplers are used
    "samplers": both(
        parameter("samplers", ["top_k"], ["temperature", "dry"], **WARM),
        nothing(["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]),
    ),
    # Adapters: this model has none; the tests of features/adapters have models that do.
    "lora": unless([], [{"id": 0, "scale": 1}]), "lora_path": refused("x"),
    # Refused
    "allowed_token_ids": unless([], [5]), "bad_words": unless([], ["x"]),
    "bootstrap_host": warned("x"), "bootstrap_port": warned(5), "bootstrap_room": warned(5),
    "cache_salt": refused("x"), "custom_logit_processor": refused("x"),
    "custom_params": unless({}, {"a": 1}), "dynatemp_range": unless(0.0, 0.5),
    "ec_transfer_params": both(nothing({}), warned({"a": 1})),
    "guided_whitespace_pattern": refused(" ?"),
    "images_config": unless({}, {"a": 1}), "include_stop_str_in_output": unless(False, True),
    "kv_transfer_params": both(nothing({}), warned({"a": 1})),
    "logits_processors": unless([], ["x"]),
    "logprob_token_ids": refused([5]),
    "min_keep": unless(0, 1), "min_tokens": unless(0, 5),
    "mirostat": unless(0, 1, 2), "n_probs": unless(0, 3),
    "no_stop_trim": unless(False, True), "post_sampling_probs": unless(False, True),
    "prompt_logprobs": refused(0, 1), "repetition_detection": refused({"min_count": 3}),
    "response_fields": unless([], ["content"]), "return_hidden_states": unless(False, True, "last"),
    "return_routed_experts": unless(False, True), "return_token_ids": unless(False, True),
    "return_tokens": unless(False, True), "return_tokens_as_token_ids": unless(False, True),
    "routed_experts_prompt_start": unless(0, 5),
    "session_params": unless({}, {"id": "x"}), "skip_special_tokens": unless(True, False),
    "stop_regex": refused("x+"), "stop_token_ids": unless([], [5]),
    "structural_tag": refused("{}"),
    "truncate_prompt_tokens": refused(5, -1), "use_beam_search": unless(False, True),
    "vllm_xargs": unless({}, {"a": 1}), "watermarking": unless(False, True),
}  # fmt: skip
CONTINUED = [*USER, {"role": "assistant", "content": "Hello"}]


def _tokens(answer: Any) -> Any:
    return answer["usage"]["completion_tokens"]


def only(*, true_if_continued: bool) -> Check:
    """The field says what the last message's role decides; the contrary is refused."""

    def check(route: Route, name: str) -> None:
        for messages, is_continued in ((USER, False), (CONTINUED, True)):
            value = is_continued is true_if_continued
            route.ask(messages=messages, **{name: value})
            response = route.post(messages=messages, **{name: not value})
            assert response.status_code == 400
            assert name in response.json()["error"]["message"]

    return check


CHAT: Mapping[str, Check] = {
    **SHARED,
    "add_generation_prompt": only(true_if_continued=False),
    "add_special_tokens": unless(False, True),
    "chat_template": refused("{{ messages }}"),
    "chat_template_kwargs": effect(
        lambda ask: read(ask(model="tryer", chat_template_kwargs={"enable_thinking": False}))
        != read(ask(model="tryer"))
    ),
    "continue_final_message": only(true_if_continued=True),
    "documents": unless([], [{"title": "x", "text": "y"}]),
    "echo": unless(False, True),
    "include_reasoning": unless(True, False),
    "input_ids": refused([5, 6]),
    "max_dynamic_patch": refused(5),
    "media_io_kwargs": unless({}, {"image": {}}),
    "min_dynamic_patch": refused(5),
    "mm_processor_kwargs": unless({}, {"a": 1}),
    "parse_tool_calls": unless(True, False),
    "reasoning_control": unless(False, True),
    "reasoning_format": both(
        nothing("auto", "deepseek"),
        refused("other"),
        effect(lambda ask: ask(model="thinker", reasoning_format="none") != ask(model="thinker")),
    ),
    "return_meta_info": unless(False, True),
    "return_prompt_text": unless(False, True),
    "return_prompt_token_ids": unless(False, True),
    "separate_reasoning": effect(
        lambda ask: ask(model="thinker", separate_reasoning=False) != ask(model="thinker")
    ),
    "stream_reasoning": nothing(True, False),
    "task": refused("title"),
    "thinking_token_budget": both(
        effect(lambda ask: _thought(ask(model="thinker", thinking_token_budget=1))
               != _thought(ask(model="thinker"))),
        refused(1.5),
    ),
    "use_audio_in_video": unless(False, True),
}  # fmt: skip
COMPLETION: Mapping[str, Check] = {
    **SHARED,
    "add_special_tokens": unless(True, False),
    "prompt_embeds": refused("AAAA"),
}


def _thought(answer: Any) -> Any:
    return answer["choices"][0]["message"]["reasoning"]


def test_every_documented_field_has_a_verdict() -> None:
    """One that OpenAI has too has it in the tables of `test_fields_of_openai`."""
    chats = {*keys_of(chat_params.CompletionCreateParamsStreaming)}
    completions = {*keys_of(completion_create_params.CompletionCreateParamsStreaming)}
    shared = {*f"{LLAMA_SERVER} {VLLM} {SGLANG} format".split()}
    only_chats = {*f"{LLAMA_SERVER_CHAT} {VLLM_CHAT} {SGLANG_CHAT}".split()}
    assert {*CHAT} - {"response_format"} == (shared - {"prompt"} | only_chats) - chats
    assert {*COMPLETION} == (shared | {"prompt_embeds"}) - completions


def test_the_documented_table_of_refused_fields_is_that_of_the_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
    table = page.split("| of | chats and completions | chats alone | completions alone |")[1]
    rows = [line.split("|")[2:5] for line in table.split("\n\n")[0].splitlines()[2:]]
    columns = [{*re.findall(r"`(\w+)`", " ".join(each))} for each in zip(*rows, strict=True)]
    formats = {"guided_whitespace_pattern", "structural_tag"}
    assert columns == [
        {*UNSUPPORTED} | formats, {*UNSUPPORTED_IN_CHATS}, {*UNSUPPORTED_IN_COMPLETIONS}
    ]  # fmt: skip


@pytest.mark.parametrize("name", [*CHAT])
def test_a_field_of_a_chat(client: httpx.Client, name: str) -> None:
    plain = {"model": "talker", "messages": USER, "temperature": 0}
    CHAT[name](Route(client, "/v1/chat/completions", plain), name)


@pytest.mark.parametrize("name", [*COMPLETION])
def test_a_field_of_a_completion(client: httpx.Client, name: str) -> None:
    plain = {"model": "talker", "prompt": "x", "temperature": 0}
    COMPLETION[name](Route(client, "/v1/completions", plain), name)


TYPED = {"type": "json_schema", "name": "x", "schema": SCHEMA}
FORMS: Mapping[str, Any] = {
    "ebnf": YES, "grammar": YES, "guided_choice": ["yes"], "guided_grammar": YES,
    "guided_regex": "yes", "regex": "yes", "structured_outputs": {"choice": ["yes"]},
    "guided_json": SCHEMA, "json_schema": SCHEMA, "format": SCHEMA,
    # OpenAI's and Anthropic's
    "response_format": TYPED, "output_format": TYPED, "text": {"format": TYPED},
    "output_config": {"format": TYPED},
}  # fmt: skip
# Each API's route, a request, the field of its own form, that form, and the text of an answer.
ROUTES: Mapping[str, tuple[dict[str, Any], str, Any, Callable[[Any], str]]] = {
    "/v1/chat/completions": (
        {"messages": USER}, "response_format", {"type": "json_object"}, text
    ),
    "/v1/completions": ({"prompt": "x"}, "response_format", {"type": "json_object"}, text),
    "/v1/responses": ({"input": "x"}, "text", {"format": {"type": "json_object"}}, said),
    "/v1/messages": (
        {"messages": USER, "max_tokens": 9},
        "output_config",
        {"format": {"type": "json_schema", "schema": SCHEMA}},
        lambda answer: str(answer["content"][0]["text"]),
    ),
    "/api/chat": (
        {"messages": USER, "stream": False},
        "format",
        "json",
        lambda answer: str(answer["message"]["content"]),
    ),
    "/api/generate": (
        {"prompt": "x", "stream": False}, "format", "json", lambda answer: str(answer["response"])
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("name", FORMS)
def test_every_api_understands_every_form_and_refuses_two_at_once(
    client: httpx.Client, path: str, name: str
) -> None:
    plain, own, form, text_of = ROUTES[path]
    route = Route(client, path, {"model": "talker", **plain})
    wanted = '"yes"' if "enum" in json.dumps(FORMS[name]) else "yes"
    assert text_of(route.ask(**{name: FORMS[name]})) == wanted
    other = "regex" if name != "regex" else "grammar"
    for fields in ({own: form}, {other: FORMS[other]}):
        if name in fields:
            continue  # the API's own
        response = route.post(**fields, **{name: FORMS[name]})
        assert response.status_code == 400, fields
        assert name in response.text
        assert "at most one output format" in response.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "json_object", "regex": "x"},
        {"type": "text", "schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "gbnf", "grammar": YES},
        {"type": "grammar"},
    ],
)
def test_a_form_that_does_not_belong_to_its_type_is_refused(
    client: httpx.Client, wrong: dict[str, Any]
) -> None:
    body = {"model": "talker", "messages": USER, "response_format": wrong}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "response_format" in response.json()["error"]["message"]


def test_two_limits_that_differ_are_refused(client: httpx.Client) -> None:
    for path, prompt in (("/v1/completions", {"prompt": "x"}),
                         ("/v1/chat/completions", {"messages": USER})):  # fmt: skip
        body = {"model": "talker", **prompt, "max_tokens": 3, "n_predict": 2}
        response = client.post(path, json=body)
        assert response.status_code == 400
        assert "max_tokens and n_predict" in response.json()["error"]["message"]
