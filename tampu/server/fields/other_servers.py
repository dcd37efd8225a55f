"""Fields that llama-server, vLLM and SGLang have beyond OpenAI's, in chats and completions.

Other names of a parameter have its effect. What is not supported and would change the answer, or
what it contains, is refused with a RequestError that names it, unless it has the value that changes
nothing. What only says where or how an answer is computed is ignored with a warning. The rest, such
as ids and priorities of requests, is ignored. Output formats are in `output_format`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from tampu.errors import RequestError, require
from tampu.sampling.parameters import BY_OLLAMA
from tampu.server.fields.adapters import AdapterScales
from tampu.server.fields.options import given_parameters
from tampu.server.fields.parameter_fields import ParameterBody
from tampu.server.fields.samplers import sampler_parameters
from tampu.server.fields.telemetry import Telemetry


class GeneratingBody(ParameterBody, kw_only=True):
    """A request for an answer, with the names that other servers have for OpenAI's fields."""

    stream: bool | None = None
    # Other names of parameters.
    n_predict: int | None = None
    num_predict: int | None = None
    n_keep: int | None = None
    repetition_penalty: float | None = None
    thinking_token_budget: int | None = None
    # llama-server's
    ignore_eos: bool | None = None
    n_indent: int | None = None
    return_progress: bool | None = None
    samplers: Any = None
    t_max_predict_ms: int | None = None
    timings_per_token: bool | None = None
    # Values inside the model, as `read_capture` takes them.
    include: list[str] | None = None
    include_positions: list[int] | None = None
    include_heads: list[int] | None = None
    # Adapters, as in AdapterBody.
    lora: AdapterScales | None = None
    lora_path: str | None = None

    def telemetry(self) -> Telemetry:
        """Return what the chunks of a stream have beside the answer."""
        return Telemetry(
            is_streaming=bool(self.stream),
            progress=self.return_progress,
            timings=self.timings_per_token,
        )


class UnsupportedFields(GeneratingBody, kw_only=True):
    """The fields of chats and completions that are refused, unless they change nothing.

    A default is the value that changes nothing, besides null and empty ones.
    """

    # llama-server's
    dynatemp_range: Any = 0
    min_keep: Any = 0
    mirostat: Any = 0
    n_probs: Any = 0
    post_sampling_probs: Any = False
    response_fields: Any = None
    return_tokens: Any = False
    # vLLM's
    allowed_token_ids: Any = None
    bad_words: Any = None
    cache_salt: Any = None
    include_stop_str_in_output: Any = False
    logits_processors: Any = None
    logprob_token_ids: Any = None
    min_tokens: Any = 0
    prompt_logprobs: Any = None
    repetition_detection: Any = None
    return_token_ids: Any = False
    return_tokens_as_token_ids: Any = False
    routed_experts_prompt_start: Any = 0
    skip_special_tokens: Any = True
    stop_token_ids: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = False
    vllm_xargs: Any = None
    watermarking: Any = False
    # SGLang's
    custom_logit_processor: Any = None
    custom_params: Any = None
    images_config: Any = None
    no_stop_trim: Any = False
    return_hidden_states: Any = False
    return_routed_experts: Any = False
    session_params: Any = None
    stop_regex: Any = None


class IgnoredFields(UnsupportedFields, kw_only=True):
    """The fields of chats and completions that have no effect, which a warning says."""

    # Prompts and answers on different servers: vLLM's, and SGLang's.
    ec_transfer_params: Any = None
    kv_transfer_params: Any = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_room: Any = None


class UnsupportedInChats(IgnoredFields, kw_only=True):
    """The fields of chats that are refused too."""

    add_special_tokens: Any = False  # the template has them
    chat_template: Any = None
    documents: Any = None
    echo: Any = False
    include_reasoning: Any = True
    input_ids: Any = None
    max_dynamic_patch: Any = None
    media_io_kwargs: Any = None
    min_dynamic_patch: Any = None
    mm_processor_kwargs: Any = None
    parse_tool_calls: Any = True
    reasoning_control: Any = False
    return_meta_info: Any = False
    return_prompt_text: Any = False
    return_prompt_token_ids: Any = False
    task: Any = None
    use_audio_in_video: Any = False


class ChatBody(UnsupportedInChats, kw_only=True):
    """A chat, with other servers' fields."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_format: str | None = None
    separate_reasoning: bool | None = None


class CompletionBody(IgnoredFields, kw_only=True):
    """A completion, with other servers' fields."""

    add_special_tokens: Any = True
    prompt_embeds: Any = None


# The names of the fields that each struct adds to its base.
_PARAMETERS = tuple(ParameterBody.__annotations__)
UNSUPPORTED = tuple(UnsupportedFields.__annotations__)
IGNORED = tuple(IgnoredFields.__annotations__)
UNSUPPORTED_IN_CHATS = tuple(UnsupportedInChats.__annotations__)
UNSUPPORTED_IN_COMPLETIONS = tuple(CompletionBody.__annotations__)
_IN_CHATS = (*UNSUPPORTED, *UNSUPPORTED_IN_CHATS)
_IN_COMPLETIONS = (*UNSUPPORTED, *UNSUPPORTED_IN_COMPLETIONS)
_chat_values, _completion_values = attrgetter(*_IN_CHATS), attrgetter(*_IN_COMPLETIONS)
_chat_defaults, _completion_defaults = (
    _chat_values(ChatBody()),
    _completion_values(CompletionBody()),
)
_ignored_values = attrgetter(*IGNORED)
_parameter_values = attrgetter(*_PARAMETERS)
_HINTS = {
    "chat_template": "a template comes from the model (/api/create)",
    "documents": "send them in chat_template_kwargs",
    "n_probs": "use logprobs and top_logprobs",
    "cache_salt": "all requests share one prefix cache",
}
_REASONING_FORMATS = ("auto", "deepseek", "deepseek-legacy", "none")


def check_chat_fields(body: ChatBody, *, continues: bool) -> None:
    """Refuse unsupported fields of a chat; `continues`: its answer continues the last message."""
    _check(zip(_IN_CHATS, _chat_values(body), _chat_defaults, strict=True))
    for name, given, wanted in (
        ("continue_final_message", body.continue_final_message, continues),
        ("add_generation_prompt", body.add_generation_prompt, not continues),
    ):
        message = (
            f"{name} must be {str(wanted).lower()} here: an answer continues the last message if "
            "it is the assistant's, and only then"
        )
        require(given in (None, wanted), message)


def check_completion_fields(body: CompletionBody) -> None:
    """Refuse unsupported fields of a completion."""
    _check(zip(_IN_COMPLETIONS, _completion_values(body), _completion_defaults, strict=True))


def field_warnings(body: IgnoredFields) -> tuple[str, ...]:
    """Return the warning of fields that have no effect; none without any."""
    values = zip(IGNORED, _ignored_values(body), strict=True)
    ignored = [name for name, value in values if value not in (None, [], {}, "")]
    return (f"fields without effect: {', '.join(ignored)}",) if ignored else ()


def keeps_reasoning(body: ChatBody) -> bool:
    """Whether a chat wants reasoning in the content.

    llama-server has `reasoning_format` for it, SGLang `separate_reasoning`.
    """
    name = body.reasoning_format
    formats = ", ".join(_REASONING_FORMATS)
    require(name in (None, *_REASONING_FORMATS), f"reasoning_format must be one of {formats}")
    is_joined = name == "none" or (name == "deepseek-legacy" and bool(body.stream))
    return is_joined or body.separate_reasoning is False


def parameters_of(body: GeneratingBody, limits: Mapping[str, int | None]) -> dict[str, Any]:
    """Return the parameters of a body, by Ollama's names; `limits` are its own limits on tokens."""
    found = given_parameters(dict(zip(_PARAMETERS, _parameter_values(body), strict=True)))
    for name, own, others in (
        ("num_predict", limits, {"n_predict": body.n_predict, "num_predict": body.num_predict}),
        ("num_keep", {"num_keep": body.num_keep}, {"n_keep": body.n_keep}),
        (
            "repeat_penalty",
            {"repeat_penalty": body.repeat_penalty},
            {"repetition_penalty": body.repetition_penalty},
        ),
        (
            "think_budget",
            {"think_budget": body.think_budget},
            {"thinking_token_budget": body.thinking_token_budget},
        ),
    ):
        given = [field for field, value in others.items() if value is not None]
        if not given:
            continue
        values = {field: value for field, value in {**own, **others}.items() if value is not None}
        are_equal = len({*values.values()}) == 1
        require(are_equal, f"{' and '.join(values)} are the same parameter: give one of them")
        found[name] = BY_OLLAMA[name].check_given(values[given[0]], given[0])
    if body.repetition_penalty is not None and body.repeat_last_n is None:
        found["repeat_last_n"] = -1  # vLLM and SGLang count all tokens
    return found | sampler_parameters(body.samplers)


def line_limits(body: GeneratingBody) -> dict[str, Any]:
    """Return the fields of GenerateOptions for llama-server's limits on lines; None: not given."""
    found: dict[str, Any] = {}
    for option, name, given in (
        ("min_indent", "n_indent", body.n_indent),
        ("max_predict_ms", "t_max_predict_ms", body.t_max_predict_ms),
    ):
        value = given or 0
        require(value < 2**31, f"{name} must be less than 2147483648, not {value}")
        found[option] = value if value > 0 else None
    return found


def _check(given: Iterable[tuple[str, Any, Any]]) -> None:
    for name, value, unchanging in given:
        if value is None or value in ([], {}, "", unchanging):
            continue
        allowed = "" if unchanging is None else f"only {json.dumps(unchanging)}"
        instead = _HINTS.get(name) or allowed
        raise RequestError(f"{name} is not supported" + (f": {instead}" if instead else ""))
