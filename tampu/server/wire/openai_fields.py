"""Fields that several of OpenAI's routes have: what may stand in them, and what it means.

Each function takes the name under which the client knows the field, for the message that refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from tampu.chat.output.reasoning import Think
from tampu.engine.prompts import TextPrompt, TokensPrompt
from tampu.errors import RequestError
from tampu.server.generation_request import require
from tampu.server.wire.conversation import ToolMode
from tampu.server.wire.ollama import MAX_INPUTS

MAX_BIASES = 1_024
_EFFORTS: dict[str, Think] = {
    "none": False, "minimal": "low", "low": "low", "medium": "medium", "high": "high",
    "xhigh": "max", "ultra": "max", "max": "max",
}  # fmt: skip
_GRAMMARS = ("regex", "lark", "gbnf", "choices")

TextOrTokens: TypeAlias = TextPrompt | TokensPrompt


class JSONSchema(msgspec.Struct, kw_only=True):
    """A schema that the answer has to fit."""

    schema: dict[str, Any] | None = None
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """The output format; beyond OpenAI's own, one of Ollama's other grammars."""

    type: str
    json_schema: JSONSchema | None = None
    regex: str | None = None
    lark: str | None = None
    gbnf: str | None = None
    choices: list[str] | None = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What `tool_choice` says.

    Attributes:
        choice: whether the model may call, must not, or has to.
        tool: the only function that it may call; None: any.
        only: those that are to be shown to it; None: all.
    """

    choice: ToolMode = "auto"
    tool: str | None = None
    only: tuple[str, ...] | None = None

    def among(self, tools: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Return the functions that are to be shown.

        Raises:
            RequestError: if one of them is not there.
        """
        if self.only is None:
            return tools
        names = [_name_of(tool) for tool in tools]
        for name in self.only:
            require(holds=name in names, message=f"tool_choice: there is no tool {name!r:.300}")
        return [tool for tool in tools if _name_of(tool) in self.only]


def refuse_fields(body: msgspec.Struct, *fields: str) -> None:
    """Refuse a request that sets one of these unsupported fields.

    Raises:
        RequestError: naming the first.
    """
    given = msgspec.structs.asdict(body)
    for name in fields:
        require(holds=not given[name], message=f"{name} is not supported")


def check_verbosity(verbosity: object, field: str) -> None:
    """Refuse any verbosity but the default.

    Raises:
        RequestError: naming the field.
    """
    message = f"{field} is not supported: say in a message how long the answer should be"
    require(holds=verbosity in (None, "medium"), message=message)


def check_cache_options(options: Mapping[str, Any] | None) -> None:
    """Refuse to read a prompt without an answer; the rest is how long a cache is wanted.

    Raises:
        RequestError: naming the field.
    """
    message = "prompt_cache_options.prewarm is not supported: prompts are kept by themselves"
    require(holds=not (options or {}).get("prewarm"), message=message)


def read_inputs(given: str | list[Any] | None, field: str) -> Iterator[TextOrTokens]:
    """Yield the prompts of a text, tokens, or a list of either.

    Raises:
        RequestError: for anything else, or nothing.
    """
    items = given if isinstance(given, list) else [given or ""]
    if items and all(_is_token(item) for item in items):
        items = [items]
    require(holds=0 < len(items) <= MAX_INPUTS, message=f"{field}: 1 to {MAX_INPUTS} are needed")
    for index, item in enumerate(items):
        if isinstance(item, list) and item and all(_is_token(token) for token in item):
            yield TokensPrompt(tuple(item))
        elif isinstance(item, str) and item:
            yield TextPrompt(item)
        else:
            raise RequestError(f"{field}[{index}] must be a text or tokens, and not be empty")


def read_effort(effort: object, field: str) -> Think:
    """Return the reasoning effort.

    Raises:
        RequestError: naming the valid values.
    """
    if effort is None:
        return None
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise RequestError(f"{field} must be one of {', '.join(_EFFORTS)}")
    return _EFFORTS[effort]


def read_tool_choice(given: str | dict[str, Any] | None) -> ToolChoice:
    """Return the tool choice.

    Raises:
        RequestError: for an invalid choice.
    """
    match given:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            return ToolChoice("required")
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("required", name)
        case {"type": "function", "name": str(name)}:
            return ToolChoice("required", name)
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            return _allowed(mode, tools)
        case {"type": "allowed_tools", "mode": mode, "tools": list(tools)}:
            return _allowed(mode, tools)
        case {"type": str(kind)} if kind != "function":
            raise RequestError(f"tool_choice: {kind!r:.50} is not supported, only function")
    raise RequestError(
        "tool_choice must be auto, none, required, or "
        '{"type": "function", "function": {"name": ...}}'
    )


def read_format(given: ResponseFormat | None, field: str) -> str | dict[str, Any] | None:
    """Return the output format as `Conversation.response_format`.

    Raises:
        RequestError: for any other.
    """
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return "json"
    if given.type == "json_schema" and given.json_schema and given.json_schema.schema is not None:
        return given.json_schema.schema
    if given.type in _GRAMMARS:
        grammar = getattr(given, given.type)
        require(holds=grammar is not None, message=f"{field}.{given.type}: it is missing")
        return {given.type: grammar}
    raise RequestError(
        f"{field} must be text, json_object, json_schema with a schema, or regex, lark, gbnf, "
        "choices"
    )


def read_bias(given: dict[str, float] | None) -> dict[int, float] | None:
    """Return the logit bias of tokens.

    Raises:
        RequestError: for too many, an invalid token, or a bias outside -100 to 100.
    """
    if given is None:
        return None
    require(holds=len(given) <= MAX_BIASES, message=f"logit_bias: at most {MAX_BIASES} tokens")
    for token, bias in given.items():
        is_token = token.isascii() and token.isdecimal() and len(token) < 10
        require(holds=is_token, message=f"logit_bias: {token[:50]!r} is not a token id")
        require(holds=-100 <= bias <= 100, message=f"logit_bias: {bias} is not -100 to 100")
    return {int(token): bias for token, bias in given.items()}


def _allowed(mode: object, tools: Sequence[object]) -> ToolChoice:
    """Return the choice among some of the functions."""
    names: list[str] = []
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                names.append(name)
            case {"type": "function", "name": str(name)}:
                names.append(name)
            case _:
                raise RequestError("tool_choice: tools must be functions with names")
    match mode:
        case "auto":
            return ToolChoice("auto", only=tuple(names))
        case "required":
            return ToolChoice("required", only=tuple(names))
    raise RequestError("tool_choice: the mode of allowed_tools must be auto or required")


def _name_of(tool: Mapping[str, Any]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31
