"""The parameters of a request: its `options` object, its own fields and the model's defaults.

Each function raises RequestError for an invalid value; the message names the field and its range.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from tampu.engine.requests import Embed, Embedded
from tampu.errors import RequestError, require
from tampu.runner.generate_options import GenerateOptions, given_options
from tampu.sampling.parameters import BY_OLLAMA, BY_OPENAI, Use, engine_values
from tampu.server.serving.control_vectors import ControlVectorScales, chosen_control_vectors
from tampu.server.serving.generation_request import (
    FOREVER,
    MAX_DURATION_S,
    GenerationRequest,
    ModelCall,
)
from tampu.server.serving.model_defaults import ModelDefaults
from tampu.settings.parsers import seconds

logger = logging.getLogger(__name__)

MAX_INPUTS = 2_048  # of a request
# Where OpenAI's and Anthropic's own default differs from Ollama's.
OPENAI_DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0}


class ModelBody(msgspec.Struct, kw_only=True):
    """The fields of all requests to models: Ollama's in each API, and OpenAI's `truncation`.

    `control_vectors`, tampu's own, are written as llama-server's `lora`.
    """

    model: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None
    truncate: bool | None = None
    truncation: str | None = None
    control_vectors: ControlVectorScales | None = None


def given_parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters among fields of OpenAI's requests, by Ollama's names."""
    return {
        BY_OPENAI[field].ollama: BY_OPENAI[field].check_loose(value, field)
        for field, value in fields.items()
        if value is not None
    }


def parse_request(
    body: ModelBody,
    model: ModelDefaults,
    fields: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    *,
    is_streamed: bool = True,
    **more: Any,
) -> GenerationRequest:
    """Return the request of a body, without prompts; the other arguments are `request_options`'."""
    overrides, options = request_options(model, body.options, fields, defaults, **more)
    return GenerationRequest(
        model=body.model or "",
        overrides=overrides,
        keep_alive_s=keep_alive_s(body.keep_alive),
        options=options,
        is_streamed=is_streamed,
        control_vectors=chosen_control_vectors(body.control_vectors),
        warnings=_warnings(model, body.options, fields),
    )


def parse_limited(
    body: ModelBody,
    model: ModelDefaults,
    limit: tuple[str, int | None],
    *,
    least: int = 1,
    default: int | None = None,
    unlimited: int | None = None,
    fields: Mapping[str, Any] | None = None,
    is_streamed: bool = False,
    **more: Any,
) -> GenerationRequest:
    """Return the request of a body of OpenAI's or Anthropic's API, without prompts.

    Args:
        body: of the request.
        model: as in `request_options`.
        limit: the name and the value of the field with the maximum number of tokens.
        least: the smallest value of that field.
        default: used where the field is None.
        unlimited: the value of that field that means no limit.
        fields: the request's parameters, by Ollama's names.
        is_streamed: whether the answer is.
        more: as in `request_options`.
    """
    name, given = limit
    max_tokens = default if given is None else given
    if max_tokens is not None and max_tokens == unlimited:
        max_tokens = None
    if max_tokens is not None:
        require(max_tokens >= least, f"{name} must be {least} or more, not {max_tokens}")
    more |= {"max_tokens": max_tokens, "truncate": may_truncate(body, model)}
    return parse_request(body, model, fields, OPENAI_DEFAULTS, is_streamed=is_streamed, **more)


def may_truncate(body: ModelBody, model: ModelDefaults, *, default: bool = False) -> bool:
    """Return whether a prompt that is too long is cut: by the request, the setting, the API."""
    truncation = body.truncation
    require(truncation in (None, "auto", "disabled"), "truncation must be auto or disabled")
    wanted = {body.truncate, None if truncation is None else truncation == "auto"} - {None}
    require(len(wanted) <= 1, "truncate and truncation contradict each other: give one")
    given = (value for value in (*wanted, model.truncate) if value is not None)
    return next(given, default)


def parse_uncut(body: ModelBody, model: ModelDefaults) -> GenerationRequest:
    """Return the request of a body whose input is never cut, without prompts."""
    may_truncate(body, model)
    is_asked = body.truncate or body.truncation == "auto"
    require(not is_asked, "truncate is not supported here: no part of the input is left out")
    return parse_request(body, model)


def embedding_call(
    body: ModelBody, model: ModelDefaults, *, truncates: bool = False, **more: Any
) -> ModelCall[Embedded]:
    """Return the request of a body; `more` are the other fields of `Embed`.

    `truncates` is the API's default for inputs that are too long.
    """
    more |= {"truncate": may_truncate(body, model, default=truncates)}
    return ModelCall(
        model=body.model or "",
        overrides=request_options(model, body.options)[0],
        keep_alive_s=keep_alive_s(body.keep_alive),
        control_vectors=chosen_control_vectors(body.control_vectors),
        warnings=_warnings(model, body.options),
        request=Embed(**more),
    )


def request_options(
    model: ModelDefaults,
    options: Mapping[str, Any] | None,
    fields: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    **more: Any,
) -> tuple[dict[str, Any], GenerateOptions]:
    """Return the load options that a request sets, and its options for generating.

    Args:
        model: its own parameters apply unless the request sets them.
        options: the request's object of that name, by Ollama's names.
        fields: the request's other fields that are parameters, by Ollama's names.
        defaults: used where neither the request nor the model sets a value.
        more: fields of GenerateOptions; None: not given.
    """
    options = options or {}
    message = "options: engine is a model's own (PARAMETER engine) or the server's (TAMPU_ENGINE)"
    require("engine" not in options, message)
    loading: dict[str, Any] = {}
    generation: dict[str, Any] = {}
    for values in (defaults or {}, model.parameters, options, fields or {}):
        if "num_ctx" in values:
            values = {**values, "num_ctx": _context(values["num_ctx"], model)}
        loading |= engine_values(values, Use.LOADING)
        generation |= given_options(values)
    generation |= {name: value for name, value in more.items() if value is not None}
    overrides = {name: value for name, value in loading.items() if value is not None}
    return overrides, GenerateOptions(**generation)


def keep_alive_s(value: float | str | None) -> float | None:
    """Return for how many seconds the model stays loaded; None: the server's default.

    A number is in seconds, as a text too, as some clients write it; below 0 it is without end.
    """
    if value is None:
        return None
    try:
        stays_s = seconds(value) if isinstance(value, str) else float(value)
    except ValueError as error:
        raise RequestError(f"keep_alive: {error}") from error
    return FOREVER if stays_s < 0 or stays_s > MAX_DURATION_S else stays_s


def _context(given: object, model: ModelDefaults) -> object:
    """Return the requested context, at most the model's; `_context_warnings` says so."""
    limit = model.info.context
    return limit if isinstance(given, int | float) and limit and given > limit else given


def _warnings(
    model: ModelDefaults,
    options: Mapping[str, Any] | None,
    fields: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Return, and log, where a request's parameters differ from what it asks."""
    return *_context_warnings(model, options, fields), *_ignored_warnings(options or {})


def _context_warnings(model: ModelDefaults, *given: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return, and log, the warning of a context longer than the model's; none of another."""
    asked = [
        values["num_ctx"] for values in (model.parameters, *given) if values and "num_ctx" in values
    ]
    if not asked or _context(asked[-1], model) == asked[-1]:
        return ()
    warning = f"num_ctx is {model.info.context}, the model's longest context, not {asked[-1]}"
    logger.warning("%s", warning)
    return (warning,)


def _ignored_warnings(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return, and log, the warning of options that have no effect; none without any."""
    rows = {name: BY_OLLAMA.get(name) for name, value in options.items() if value is not None}
    ignored = sorted(name for name, row in rows.items() if row is None or row.use is Use.NOTHING)
    if not ignored:
        return ()
    warning = f"options without effect: {', '.join(ignored)[:500]}"
    logger.warning("%s", warning)
    return (warning,)
