"""Fields that llama-server, vLLM and SGLang have beyond OpenAI's, in chats and completions.

Other names of a parameter have its effect. What is not supported and would change the answer is
refused with a RequestError that names it, unless it has the value that changes nothing. The rest,
such as ids and priorities of requests, is ignored. Output formats are in `output_format`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from tampu.errors import RequestError
from tampu.sampling.parameters import BY_OLLAMA
from tampu.server.generation_request import require
from tampu.server.wire.adapters import AdapterBody
from tampu.server.wire.options import ModelBody, with_fields
from tampu.server.wire.samplers import sampler_parameters

S = TypeVar("S", bound=msgspec.Struct)

# Parameters by Ollama's names: the fields of OpenAI's API, and other servers' names for them.
_NAMES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "num_predict": (("max_tokens", "max_completion_tokens", "max_output_tokens"),
                    ("n_predict", "num_predict")),
    "num_keep": (("num_keep",), ("n_keep",)),
    "repeat_penalty": (("repeat_penalty",), ("repetition_penalty",)),
    "think_budget": (("think_budget",), ("thinking_token_budget",)),
}  # fmt: skip
_OFF, _ON, _ZERO = (False,), (True,), (0,)
# Fields that are not supported, and the values that change nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    # llama-server's
    "dynatemp_range": _ZERO, "min_keep": _ZERO, "mirostat": _ZERO, "n_probs": _ZERO,
    "post_sampling_probs": _OFF, "response_fields": (), "return_tokens": _OFF,
    # vLLM's
    "allowed_token_ids": (), "bad_words": (), "cache_salt": (), "ec_transfer_params": (),
    "include_stop_str_in_output": _OFF, "kv_transfer_params": (),
    "logits_processors": (), "logprob_token_ids": (), "min_tokens": _ZERO, "prompt_logprobs": (),
    "repetition_detection": (), "return_token_ids": _OFF, "return_tokens_as_token_ids": _OFF,
    "routed_experts_prompt_start": _ZERO, "skip_special_tokens": _ON, "stop_token_ids": (),
    "truncate_prompt_tokens": (), "use_beam_search": _OFF, "vllm_xargs": (),
    "watermarking": _OFF,
    # SGLang's
    "bootstrap_host": (), "bootstrap_port": (), "bootstrap_room": (), "custom_logit_processor": (),
    "custom_params": (), "images_config": (), "no_stop_trim": _OFF,
    "return_hidden_states": _OFF, "return_routed_experts": _OFF, "session_params": (),
    "stop_regex": (),
}  # fmt: skip
UNSUPPORTED_IN_CHATS: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": _OFF, "chat_template": (), "documents": (), "echo": _OFF,
    "include_reasoning": _ON, "input_ids": (), "max_dynamic_patch": (), "media_io_kwargs": (),
    "min_dynamic_patch": (), "mm_processor_kwargs": (), "parse_tool_calls": _ON,
    "reasoning_control": _OFF,
    "return_meta_info": _OFF, "return_prompt_text": _OFF, "return_prompt_token_ids": _OFF,
    "task": (), "use_audio_in_video": _OFF,
}  # fmt: skip
UNSUPPORTED_IN_COMPLETIONS: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": _ON, "prompt_embeds": (),
}  # fmt: skip
# What llama-server has and OpenAI's API has not.
_LLAMA_SERVERS: Mapping[str, Any] = {
    "n_indent": int | None, "samplers": Any, "t_max_predict_ms": int | None,
}  # fmt: skip
_REASONING_FORMATS = ("auto", "deepseek", "deepseek-legacy", "none")
_HINTS = {
    "chat_template": "a template comes from the model (/api/create)",
    "documents": "send them in chat_template_kwargs",
    "n_probs": "use logprobs and top_logprobs",
    "cache_salt": "all requests share one prefix cache",
}


def with_other_names(body: type[S]) -> type[S]:
    """Return the struct of a body with a field for each other name of a parameter."""
    fields = {
        field: BY_OLLAMA[name].kind | None for name, (_, more) in _NAMES.items() for field in more
    }
    more = dict.fromkeys(("ignore_eos", "return_progress", "timings_per_token"), bool | None)
    own = {field.name for field in msgspec.structs.fields(ModelBody)}
    chosen = msgspec.structs.fields(AdapterBody)
    adapters = {field.name: field.type for field in chosen if field.name not in own}
    return with_fields(body, {**fields, **more, **adapters})


def with_chat_fields(body: type[S]) -> type[S]:
    """Return the struct of a chat's body with other servers' fields."""
    names = (*UNSUPPORTED, *UNSUPPORTED_IN_CHATS)
    decided = {"add_generation_prompt": bool | None, "continue_final_message": bool | None}
    own = {**_LLAMA_SERVERS, "reasoning_format": str | None, "separate_reasoning": bool | None}
    added = {**dict.fromkeys(names, Any), **decided, **own}
    return with_fields(with_other_names(body), added)


def with_completion_fields(body: type[S]) -> type[S]:
    """Return the struct of a completion's body with other servers' fields."""
    names = (*UNSUPPORTED, *UNSUPPORTED_IN_COMPLETIONS)
    added = {**dict.fromkeys(names, Any), **_LLAMA_SERVERS}
    return with_fields(with_other_names(body), added)


def check_chat_fields(body: object, *, continues: bool) -> None:
    """Refuse unsupported fields of a chat; `continues`: its answer continues the last message."""
    _check(body, {**UNSUPPORTED, **UNSUPPORTED_IN_CHATS})
    for name, wanted in (
        ("continue_final_message", continues), ("add_generation_prompt", not continues)
    ):  # fmt: skip
        message = (
            f"{name} must be {str(wanted).lower()} here: an answer continues the last message if "
            "it is the assistant's, and only then"
        )
        require(getattr(body, name) in (None, wanted), message)


def keeps_reasoning(body: object) -> bool:
    """Whether a chat wants reasoning in the content.

    llama-server has `reasoning_format` for it, SGLang `separate_reasoning`.
    """
    name = getattr(body, "reasoning_format", None)
    formats = ", ".join(_REASONING_FORMATS)
    require(name in (None, *_REASONING_FORMATS), f"reasoning_format must be one of {formats}")
    is_streaming = bool(getattr(body, "stream", None))
    is_separate = getattr(body, "separate_reasoning", None) is not False
    return name == "none" or (name == "deepseek-legacy" and is_streaming) or not is_separate


def check_completion_fields(body: object) -> None:
    """Refuse unsupported fields of a completion."""
    _check(body, {**UNSUPPORTED, **UNSUPPORTED_IN_COMPLETIONS})


def other_parameters(body: object) -> dict[str, Any]:
    """Return the parameters that a body has under other servers' names, by Ollama's names."""
    found = {}
    for name, (own, others) in _NAMES.items():
        values = {field: getattr(body, field, None) for field in (*own, *others)}
        values = {field: value for field, value in values.items() if value is not None}
        given = [field for field in others if field in values]
        if not given:
            continue
        are_equal = len({*values.values()}) == 1
        require(are_equal, f"{' and '.join(values)} are the same parameter: give one of them")
        found[name] = BY_OLLAMA[name].check_given(values[given[0]], given[0])
    if "repeat_penalty" in found and getattr(body, "repeat_last_n", None) is None:
        found["repeat_last_n"] = -1  # vLLM and SGLang count all tokens
    return found | sampler_parameters(getattr(body, "samplers", None))


def line_limits(body: object) -> dict[str, int | None]:
    """Return the fields of GenerateOptions for llama-server's limits on lines; None: not given."""
    found = {}
    for option, name in (("min_indent", "n_indent"), ("max_predict_ms", "t_max_predict_ms")):
        value = getattr(body, name) or 0
        require(value < 2**31, f"{name} must be less than 2147483648, not {value}")
        found[option] = value if value > 0 else None
    return found


def _check(body: object, fields: Mapping[str, tuple[Any, ...]]) -> None:
    for name, allowed in fields.items():
        value = getattr(body, name)
        if value in (None, [], {}, "") or value in allowed:
            continue
        instead = _HINTS.get(name) or (f"only {json.dumps(allowed[0])}" if allowed else "")
        raise RequestError(f"{name} is not supported" + (f": {instead}" if instead else ""))
