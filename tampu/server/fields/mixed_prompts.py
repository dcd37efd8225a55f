"""llama-server's forms of prompts: texts and tokens, mixed or in objects, one or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tampu.engine.prompts import TextPrompt
from tampu.engine.requests import Encode
from tampu.errors import RequestError, require
from tampu.server.fields.options import MAX_INPUTS
from tampu.server.serving.serving import Serving
from tampu.store.catalog import Entry

PROMPT_TEXT, PROMPT_IMAGES = "prompt_string", "multimodal_data"


def read_prompts(given: Any, field: str) -> list[list[str | int]]:
    """Return the prompts in a field of a request, each as a list of texts and tokens.

    One with images or sounds is an empty text here: `read_media` returns it.

    Raises:
        RequestError: for another form, or none.
    """
    found: list[list[str | int]] = []
    for prompt, where in each_prompt(given, field):
        found.append([""] if has_files(prompt) else _sequence(prompt, where))
    require(0 < len(found) <= MAX_INPUTS, f"{field}: there must be 1 to {MAX_INPUTS}")
    return found


def each_prompt(given: Any, field: str) -> Iterator[tuple[Any, str]]:
    """Yield the prompts of a field, each with its place in the request."""
    if isinstance(given, list) and not _is_sequence(given):
        yield from ((prompt, f"{field}[{index}]") for index, prompt in enumerate(given))
    else:
        yield given, field


def has_files(prompt: Any) -> bool:
    """Whether a prompt is an object with images or sounds, or parts that are not texts."""
    match prompt:
        case {"multimodal_data": data} if data:
            return True
        case {"content": [*parts]}:
            return not all(isinstance(each, dict) and each.get("type") == "text" for each in parts)
    return False


def is_mixed(given: Any) -> bool:
    """Whether prompts have a form that only llama-server has: objects, or tokens beside texts."""
    if not isinstance(given, list):
        return isinstance(given, dict)
    kinds = {type(part) for part in given}
    nested = any(isinstance(part, list) and str in map(type, part) for part in given)
    return dict in kinds or kinds >= {str, int} or nested


def _sequence(given: Any, field: str) -> list[str | int]:
    match given:
        case {"prompt_string": str(text)}:
            return [text]
        case {"content": [*parts]} if parts:
            return ["".join(_part(part, field) for part in parts)]
        case str(text):
            return [text]
        case [*parts] if parts and _is_sequence(parts):
            return parts
    raise RequestError(
        f'{field} must be a text, tokens, both mixed, {{"{PROMPT_TEXT}": text}} or '
        '{"content": [parts]}'
    )


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


async def joined(
    serving: Serving, entry: Entry, prompts: Sequence[Sequence[str | int]]
) -> list[str | list[int]]:
    """Return prompts of texts and tokens; as tokens where there are some."""
    return [await _joined(serving, entry, parts) for parts in prompts]


async def _joined(serving: Serving, entry: Entry, parts: Sequence[str | int]) -> str | list[int]:
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts))
    found: list[int] = []
    for part in parts:
        if isinstance(part, int):
            found.append(part)
        else:
            asked = Encode(TextPrompt(part), add_special=not found)
            encoded = await serving.ask_vocabulary(entry, asked)
            found += encoded.tokens()
    return found
