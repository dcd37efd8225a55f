"""Questions about an input, answered with probabilities: two forms of requests and responses.

`/v1/decisions` is OpenAI's; `/v1/systemone` is that of decision models, which Ollama, llama-server
and vLLM have.

Each function raises RequestError for an invalid or unsupported field, which the message names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec

from tampu.engine.decision_prompts import READS_TEXT
from tampu.engine.prompts import ChatPrompt
from tampu.engine.questions import (
    Choice,
    Decision,
    Decisions,
    Level,
    Option,
    Predicate,
    Question,
    Score,
    check_count,
    check_question,
)
from tampu.engine.requests import Decide, Decided
from tampu.errors import RequestError, require
from tampu.server.fields.adapters import AdapterBody, chosen_adapters
from tampu.server.fields.conversation import Conversation, with_conversation
from tampu.server.fields.options import parse_uncut
from tampu.server.openai.fields import check_cache_options, read_content
from tampu.server.openai.items import read_items
from tampu.server.serving.generation_request import ModelCall
from tampu.server.serving.model_defaults import ModelDefaults

Parts: TypeAlias = str | list[dict[str, Any]]
Content: TypeAlias = str | dict[str, Any] | list[Any]


class OptionBody(msgspec.Struct, kw_only=True):
    """One of the values of a choice."""

    value: str | bool
    description: str | None = None


class LevelBody(msgspec.Struct, kw_only=True):
    """One level of a score."""

    label: str
    description: str | None = None


class PredicateBody(msgspec.Struct, kw_only=True, tag="predicate"):
    """How likely a statement is true."""

    instructions: Parts
    name: str | None = None


class ChoiceBody(msgspec.Struct, kw_only=True, tag="choice"):
    """Which of some values applies."""

    instructions: Parts
    choices: list[OptionBody]
    name: str | None = None


class ScoreBody(msgspec.Struct, kw_only=True, tag="score"):
    """A place on a scale."""

    instructions: Parts
    levels: list[LevelBody]
    name: str | None = None


QuestionBody: TypeAlias = PredicateBody | ChoiceBody | ScoreBody


class DecisionsRequest(AdapterBody, kw_only=True):
    """`POST /v1/decisions`."""

    input: str | list[dict[str, Any]]
    questions: list[QuestionBody]
    prompt_cache_options: dict[str, Any] | None = None


class NoulBody(msgspec.Struct, kw_only=True, tag="noul"):
    """Whether something is true."""

    instructions: Content
    criteria: dict[str, str] | None = None


class CriteriaBody(msgspec.Struct, kw_only=True, tag="choice"):
    """Which of the names of `criteria` applies."""

    instructions: Content
    criteria: dict[str, str | None]


class ScaleBody(msgspec.Struct, kw_only=True, tag="score"):
    """A place on the scale of `criteria`, from the lowest level to the highest."""

    instructions: Content
    criteria: list[str]


class SystemOneRequest(AdapterBody, kw_only=True):
    """`POST /v1/systemone`; `files` and `images` are images.

    They are data URIs, as in llama-server, or base64, as in Ollama.

    A `state` that is null is nothing beside the questions and images.
    """

    state: Content | None
    questions: dict[str, NoulBody | CriteriaBody | ScaleBody]
    files: list[str] | None = None
    images: list[str] | None = None
    assets: dict[str, Any] | None = None
    stream: bool | None = None


# -- OpenAI's form ---------------------------------------------------------------------------------


def parse_decisions(body: DecisionsRequest, defaults: ModelDefaults) -> ModelCall[Decided]:
    """Return the task of a request of OpenAI's API."""
    check_cache_options(body.prompt_cache_options)
    questions = []
    for index, given in enumerate(body.questions):
        questions.append(_question(given, f"questions[{index}]"))
        check_question(questions[-1], f"questions[{index}]", "choices")
    return _task(body, read_items(body.input), questions, defaults)


def _question(given: QuestionBody, where: str) -> Question:
    text = _text(given.instructions, f"{where}.instructions")
    match given:
        case PredicateBody():
            return Predicate(text)
        case ChoiceBody(choices=choices):
            return Choice(text, tuple(Option(o.value, o.description or "") for o in choices))
        case ScoreBody(levels=levels):
            return Score(text, tuple(Level(o.label, o.description or "") for o in levels))


def _text(content: Parts, where: str) -> str:
    text, media = read_content(content, where)
    require(not media, f"{where}: images belong to the input, not to a question")
    return text


def decisions_response(body: DecisionsRequest, found: Decisions) -> dict[str, Any]:
    """Return the response of OpenAI's API: no question is refused."""
    pairs = zip(body.questions, found.answers, strict=True)
    return {
        "model": body.model,
        "answers": [{"name": given.name, **_answer(given, own)} for given, own in pairs],
        "usage": {
            "input_tokens": found.input_tokens,
            "input_tokens_details": {
                "cached_tokens": found.cached_tokens,
                "cache_write_tokens": found.input_tokens - found.cached_tokens,
            },
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": found.input_tokens,
        },
    }


def _answer(given: QuestionBody, found: Decision) -> dict[str, Any]:
    shares = found.probabilities
    match given:
        case PredicateBody():
            return {"type": "predicate", "probability": shares[0]}
        case ChoiceBody(choices=choices):
            return {
                "type": "choice",
                "choice": choices[found.best].value,
                "confidence": found.confidence,
                "probabilities": [
                    {"value": one.value, "probability": share}
                    for one, share in zip(choices, shares, strict=True)
                ],
            }
        case ScoreBody(levels=levels):
            return {
                "type": "score",
                "score": found.expected,
                "confidence": found.confidence,
                "probabilities": [
                    {"value": index, "label": level.label, "probability": share}
                    for index, (level, share) in enumerate(zip(levels, shares, strict=True))
                ],
            }


# -- the form of decision models -------------------------------------------------------------------


def parse_systemone(body: SystemOneRequest, defaults: ModelDefaults) -> ModelCall[Decided]:
    """Return the task of a request in the form of decision models."""
    require(not body.stream, "stream: decisions are not streamed")
    require(not body.assets, "assets are not supported: send images as data URIs in images")
    questions = []
    for name, given in body.questions.items():
        where = f"questions.{name[:100]}"
        questions.append(_named_question(given, where))
        check_question(questions[-1], where, "criteria", "criteria")
    content, inside = _without_images(body.state)
    parts = [{"type": "input_image", "image_url": image} for image in [*_pictures(body), *inside]]
    if content is not None:
        state = _written(content)
        require(state.strip(), "state is empty")
        parts.append({"type": "input_text", "text": state})
    messages = read_items([{"role": "user", "content": parts}]) if parts else ()
    return _task(body, messages, questions, defaults)


def _pictures(body: SystemOneRequest) -> list[str]:
    for field in ("files", "images"):
        for index, image in enumerate(getattr(body, field) or ()):
            _check_picture(image, f"{field}[{index}]")
    return [*(body.files or ()), *(body.images or ())]


def _check_picture(image: object, where: str) -> None:
    is_image = isinstance(image, str) and (image[:5].lower() == "data:" or ":" not in image)
    require(is_image, f"{where} must be a data URI of an image (data:image/...), or base64")


def _without_images(state: Content | None) -> tuple[Content | None, list[str]]:
    """Return a state of chat messages without their images, and these; other states unchanged."""
    messages = state.get("messages") if isinstance(state, dict) else state
    if not isinstance(messages, list):
        return state, []
    images: list[str] = []
    kept: list[Any] = []
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        kept.append(message)
        if isinstance(message, dict) and isinstance(content, list):
            kept[-1] = message | {"content": [each for each in content if not _is_image(each)]}
            for part in filter(_is_image, content):
                given = part.get("image_url")
                image = given.get("url") if isinstance(given, dict) else given
                _check_picture(image, f"the image of state message {index}")
                images.append(str(image))
    if not images:
        return state, []
    return (state | {"messages": kept} if isinstance(state, dict) else kept), images


def _is_image(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "image_url"


def _named_question(given: NoulBody | CriteriaBody | ScaleBody, where: str) -> Question:
    text = _written(given.instructions)
    match given:
        case NoulBody(criteria=criteria):
            meanings = criteria or {}
            unknown = [name for name in meanings if name not in ("true", "false")]
            require(not unknown, f"{where}.criteria may have true and false, nothing else")
            return Predicate(text, meanings.get("true", ""), meanings.get("false", ""))
        case CriteriaBody(criteria=names):
            return Choice(text, tuple(Option(name, about or "") for name, about in names.items()))
        case ScaleBody(criteria=levels):
            return Score(text, tuple(Level(level) for level in levels))


def _written(content: Content) -> str:
    """Return text as it is, and other values as JSON, as templates write it."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def systemone_response(body: SystemOneRequest, found: Decisions) -> dict[str, Any]:
    """Return the response in the form of decision models."""
    pairs = zip(body.questions.items(), found.answers, strict=True)
    return {
        "model": body.model,
        "answers": {name: _named_answer(given, own) for (name, given), own in pairs},
        "usage": {"input_tokens": found.input_tokens, "output_tokens": 0},
    }


def _named_answer(given: NoulBody | CriteriaBody | ScaleBody, found: Decision) -> dict[str, Any]:
    shares = found.probabilities
    match given:
        case NoulBody():
            return {"type": "noul", "noul": shares[0]}
        case CriteriaBody(criteria=names):
            return {
                "type": "choice",
                "choice": [*names][found.best],
                "probabilities": dict(zip(names, shares, strict=True)),
                "confidence": found.confidence,
            }
        case ScaleBody(criteria=levels):
            return {
                "type": "score",
                "score": found.expected,
                "legend": {str(index): level for index, level in enumerate(levels)},
                "probabilities": {str(index): share for index, share in enumerate(shares)},
                "confidence": found.confidence,
            }


# -- both ------------------------------------------------------------------------------------------


def _task(
    body: AdapterBody,
    messages: tuple[dict[str, Any], ...],
    questions: Sequence[Question],
    defaults: ModelDefaults,
) -> ModelCall[Decided]:
    check_count(len(questions))
    request = parse_uncut(body, defaults)
    if "decision" in defaults.info.capabilities:  # it has no chat template to fill in
        require(not any(message.get("media") for message in messages), READS_TEXT)
        request = replace(request, prompts=(ChatPrompt(messages=messages),))
    else:
        conversation = Conversation(messages=messages)
        request = with_conversation(request, conversation, defaults)
    [prompt] = request.prompts
    if not isinstance(prompt, ChatPrompt):
        raise RequestError("decisions need a conversation")
    return ModelCall(
        request=Decide(
            prompt, tuple(questions), lora=chosen_adapters(body.lora, body.lora_path) or {}
        ),
        overrides=request.overrides,
        keep_alive_s=request.keep_alive_s,
        control_vectors=request.control_vectors,
        warnings=request.warnings,
    )
