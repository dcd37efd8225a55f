"""llama-server's own API: the structs of requests, and what they mean.

Sampling, limits and output formats have the names and the defaults of `tampu.server.wire.openai`;
only what llama-server's clients read is different.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from tampu.engine.prompts import FIMPrompt, TextPrompt, TokensPrompt
from tampu.errors import RequestError
from tampu.runner.request import MAX_TOP_LOGPROBS
from tampu.server.generation_request import EmbeddingTask, GenerationRequest, require
from tampu.server.model_defaults import ModelDefaults
from tampu.server.wire.conversation import check_can
from tampu.server.wire.ollama import MAX_INPUTS
from tampu.server.wire.openai import CompletionRequest, parse_completion
from tampu.server.wire.options import ModelBody, embedding_task

_MAX_NORM = 8
_PROMPT_TEXT, _PROMPT_IMAGES = "prompt_string", "multimodal_data"


class _OwnFields(CompletionRequest, kw_only=True):
    """The fields of both generating requests."""

    n_probs: int | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    prompt: Any = None


class LlamaCompletionRequest(_OwnFields, kw_only=True):
    """`POST /completion`.

    The prompt is a text, tokens, both mixed, an object with `prompt_string` or `content`, or a
    list of these.
    """


class InfillRequest(_OwnFields, kw_only=True):
    """`POST /infill`; `prompt` is the beginning of what is to be filled in."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] | None = None


class ExtraFile(msgspec.Struct, kw_only=True):
    """Another file that the model may look at."""

    text: str
    filename: str = "file"


class TokenizeContentRequest(msgspec.Struct, kw_only=True):
    """`POST /tokenize`."""

    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class ContentEmbeddingRequest(ModelBody, kw_only=True):
    """`POST /embedding`: `content`, or `input`, as the prompts of `/completion`."""

    content: Any = None
    input: Any = None
    embd_normalize: int = 2

    def prompts(self) -> tuple[Any, str]:
        """Return what is to be embedded, and the name of its field."""
        require(self.content is None or self.input is None, "content and input: give one of them")
        return (self.content, "content") if self.input is None else (self.input, "input")


class DetokenizeTokensRequest(msgspec.Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[int]
    model: str | None = None


def read_prompts(given: Any, field: str) -> list[list[str | int]]:
    """Return the prompts in a field of a request, each as a list of texts and tokens.

    Raises:
        RequestError: for another form, or none.
    """
    if isinstance(given, list) and not _is_sequence(given):
        found = [_sequence(prompt, f"{field}[{index}]") for index, prompt in enumerate(given)]
    else:
        found = [_sequence(given, field)]
    require(0 < len(found) <= MAX_INPUTS, f"{field}: there must be 1 to {MAX_INPUTS}")
    return found


def is_mixed(given: Any) -> bool:
    """Whether prompts have a form that only llama-server has: objects, or tokens beside texts."""
    if not isinstance(given, list):
        return isinstance(given, dict)
    kinds = {type(part) for part in given}
    nested = any(isinstance(part, list) and str in map(type, part) for part in given)
    return dict in kinds or kinds >= {str, int} or nested


def _sequence(given: Any, field: str) -> list[str | int]:
    match given:
        case {"prompt_string": str(text), **more}:
            require(not more.get(_PROMPT_IMAGES), f"{field}: {_PROMPT_IMAGES} is not supported")
            return [text]
        case {"content": [*parts]} if parts:
            return ["".join(_part(part, field) for part in parts)]
        case str(text):
            return [text]
        case [*parts] if parts and _is_sequence(parts):
            return parts
    raise RequestError(f"{field} must be a text, tokens, both mixed, or {{{_PROMPT_TEXT!r}: text}}")


def _part(part: Any, field: str) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
    raise RequestError(f"{field}.content: only parts of type text are supported")


def _is_sequence(given: list[Any]) -> bool:
    """Whether a list is one prompt: of tokens, of tokens and texts, or of one text."""
    is_flat = all(isinstance(part, str | int) and not isinstance(part, bool) for part in given)
    has_tokens = any(isinstance(part, int) for part in given)
    return is_flat and (has_tokens or len(given) < 2)


def parse_llama_completion(
    body: LlamaCompletionRequest, prompts: list[str | list[int]], defaults: ModelDefaults
) -> GenerationRequest:
    """Return the request for the continuation of these prompts."""
    return _parse(body, prompts, defaults)


def parse_content_embedding(
    body: ContentEmbeddingRequest, prompts: list[str | list[int]], defaults: ModelDefaults
) -> EmbeddingTask:
    """Return the task of a request for embeddings in llama-server's own form."""
    in_range = 0 <= body.embd_normalize <= _MAX_NORM
    message = f"embd_normalize must be 0 to {_MAX_NORM}: vectors are always scaled (2: to length 1)"
    require(in_range, message)
    inputs = tuple(TextPrompt(p) if isinstance(p, str) else TokensPrompt(tuple(p)) for p in prompts)
    return embedding_task(body, defaults, inputs=inputs, may_be_unpooled=True)


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
    name = "n_probs" if body.n_probs is not None else "logprobs"
    wanted = getattr(body, name) or 0
    in_range = 0 <= wanted <= MAX_TOP_LOGPROBS
    require(in_range, f"{name} must be 0 to {MAX_TOP_LOGPROBS}, not {wanted}")
    temperature = getattr(body, "temperature", None)
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
