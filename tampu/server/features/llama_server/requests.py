"""llama-server's own API: the structs of requests, and what they mean.

Sampling, limits and output formats have the names and the defaults of
`tampu.server.openai.requests`; only what llama-server's clients read is different.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec

from tampu.engine.prompts import MEDIA_MARKER, FIMPrompt
from tampu.errors import RequestError, require
from tampu.runner.generate_options import MAX_TOP_LOGPROBS
from tampu.server.fields.conversation import check_can
from tampu.server.fields.media_parts import Parts, media_prompt, placed
from tampu.server.openai.media_prompts import read_media
from tampu.server.openai.requests import CompletionRequest, parse_completion
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.model_defaults import ModelDefaults

_NAMED_IMAGE = re.compile(r"\[img-(\d{1,9})\]")


class _OwnFields(CompletionRequest, kw_only=True):
    """The fields of both generating requests."""

    n_probs: int | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    prompt: Any = None


class LlamaCompletionRequest(_OwnFields, kw_only=True):
    """`POST /completion`.

    The prompt is a text, tokens, both mixed, an object with `prompt_string` (and images in
    `multimodal_data`) or `content`, or a list of these.
    """

    image_data: list[Any] | None = None


class InfillRequest(_OwnFields, kw_only=True):
    """`POST /infill`; `prompt` is the beginning of what is to be filled in."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] | None = None


class ExtraFile(msgspec.Struct, kw_only=True):
    """Another file that the model may look at."""

    text: str
    filename: str = "file"


def _read_media(body: LlamaCompletionRequest) -> list[Parts | None]:
    if body.image_data:
        return [_with_named_images(body.prompt, body.image_data)]
    return read_media(body.prompt, "prompt")


def _with_named_images(text: Any, named: Any) -> Parts:
    """Return a text with the images of `image_data`, in the order in which it names them."""
    require(isinstance(text, str), "image_data needs a prompt that is a text")
    by_id: dict[int, str] = {}
    for index, each in enumerate(named if isinstance(named, list) else [named]):
        match each:
            case {"data": str(data), "id": int(id)}:
                by_id[id] = data
            case _:
                raise RequestError(f"image_data[{index}] must be {{'data': base64, 'id': number}}")
    parts = _NAMED_IMAGE.split(text.replace(MEDIA_MARKER, ""))
    ids = [int(id) for id in parts[1::2]]
    require(sorted(ids) == sorted(by_id), "image_data: [img-ID] must be once in prompt for each")
    return placed(parts[::2], [by_id[id] for id in ids], "image_data")


def parse_llama_completion(
    body: LlamaCompletionRequest, prompts: list[str | list[int]], defaults: ModelDefaults
) -> GenerationRequest:
    """Return the request for the continuation of these prompts."""
    request = _parse(body, prompts, defaults)
    media = _read_media(body)
    if not any(media):
        return request
    chosen = (
        plain if parts is None else media_prompt(parts, body.model or "", defaults)
        for parts, plain in zip(media, request.prompts, strict=True)
    )
    return replace(request, prompts=tuple(chosen))


def parse_infill(body: InfillRequest, defaults: ModelDefaults) -> GenerationRequest:
    """Return the request for the text between two others."""
    check_can(defaults, "insert", body.model or "", "infill")
    begin = "" if body.prompt is None else body.prompt
    require(isinstance(begin, str), "prompt must be a text")
    extra = "".join(f"{file.filename}\n{file.text}\n\n" for file in body.input_extra or ())
    prefix = f"{extra}{body.input_prefix}{begin}"
    request = _parse(body, [prefix or body.input_suffix], defaults)
    return replace(request, prompts=(FIMPrompt(prefix, body.input_suffix),))


def _parse(
    body: _OwnFields, prompts: list[str | list[int]], defaults: ModelDefaults
) -> GenerationRequest:
    name, given = "n_probs", body.n_probs
    if given is None:
        name, given = "logprobs", body.logprobs
    wanted = given or 0
    in_range = 0 <= wanted <= MAX_TOP_LOGPROBS
    require(in_range, f"{name} must be 0 to {MAX_TOP_LOGPROBS}, not {wanted}")
    require(not body.include, "include is not supported here: /v1/completions has it")
    temperature = body.temperature
    if temperature is not None:
        temperature = max(temperature, 0.0)  # below 0: the best token
    plain = msgspec.structs.replace(
        body, prompt=prompts, logprobs=wanted or None, n_probs=None, return_tokens=None,
        response_fields=None, post_sampling_probs=None, temperature=temperature,
    )  # fmt: skip
    request = parse_completion(plain, defaults, limit=None)
    options = msgspec.structs.replace(
        request.options, shift=False, post_sampling_probs=bool(body.post_sampling_probs)
    )
    return replace(request, options=options)
