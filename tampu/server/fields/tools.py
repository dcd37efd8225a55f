"""The tools of a request and which of them the model may call, in the form of each API.

The model can call functions, which the client runs. Other kinds are run by the provider or are
known to its models only (`web_search`, `image_generation`, `bash_20250124`, ...). They are left
out with a warning, since agents always send them.

Each function raises RequestError for what is wrong; the message says where.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tampu.errors import GrammarError, RequestError, require
from tampu.sampling.schema import checked_schema
from tampu.server.fields.output_format import ignored_warnings
from tampu.server.serving.events import MCPCallFinished

MAX_TOOLS = 128
MAX_NAME_LENGTH = 256
_MAX_SHOWN = 10
_UNSAFE = re.compile(r"[^\w.-]", re.ASCII)

ToolMode: TypeAlias = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    Attributes:
        functions: each `{"type": "function", "function": {...}}`.
        places: where each of them is in the request.
        left_out: the kinds of the other tools, with their names if they have some.
    """

    functions: Sequence[dict[str, Any]] = ()
    places: Sequence[str] = ()
    left_out: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """The names of the functions."""
        return [function["function"]["name"] for function in self.functions]

    @property
    def warnings(self) -> list[str]:
        """The text of the warning header."""
        distinct = [*dict.fromkeys(self.left_out)]
        if not distinct:
            return []
        listed, more = ", ".join(distinct[:_MAX_SHOWN]), len(distinct) - _MAX_SHOWN
        listed += f" and {more} more" if more > 0 else ""
        return [f"tools left out, only functions are supported: {listed}"]

    def check(self, *, are_enforced: bool) -> list[str]:
        """Refuse functions that are wrong; return what is ignored of those that are enforced."""
        count = len(self.functions)
        require(count <= MAX_TOOLS, f"at most {MAX_TOOLS} tools can be given, not {count}")
        first: dict[str, str] = {}
        warnings: list[str] = []
        for where, tool in zip(self.places, self.functions, strict=True):
            function = tool["function"]
            name, schema = function["name"], function.get("parameters")
            require(name, f"{where}: its name is empty")
            fits = len(name) <= MAX_NAME_LENGTH
            require(fits, f"{where}: its name has more than {MAX_NAME_LENGTH} characters")
            require(name not in first, f"{where}: its name is that of {first.get(name)}, {name!r}")
            first[name] = where
            require(isinstance(schema, dict | None), f"{where}: parameters must be an object")
            try:
                checked = checked_schema(schema or {}, is_enforced=are_enforced)
            except GrammarError as error:
                raise error.at(where) from error
            if are_enforced:
                warnings += ignored_warnings(checked.ignored, where)
        return warnings


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The meaning of `tool_choice`.

    Attributes:
        mode: whether the model may, must not, or must call a tool.
        tool: the only function that it may call; None: any.
        only: the functions that it is shown; None: all.
        is_parallel: whether it may call more than one at once.
    """

    mode: ToolMode = "auto"
    tool: str | None = None
    only: tuple[str, ...] | None = None
    is_parallel: bool = True

    def shown(self, tools: Tools) -> Sequence[dict[str, Any]]:
        """Return the functions that the model is shown."""
        if self.mode == "none":
            return ()
        for name in (*(self.only or ()), *([self.tool] if self.tool is not None else ())):
            if name in tools.names:
                continue
            kinds = ", ".join(kind for kind in tools.left_out if name in kind.split(":"))
            require(not kinds, f"tool_choice: only functions can be called, not {kinds}")
            raise RequestError(f"tool_choice: unknown tool {shortened(name)}")
        if self.mode == "required" and not tools.functions:
            kinds = ", ".join(dict.fromkeys(tools.left_out))
            require(not kinds, f"tool_choice: only functions can be called, not {kinds}")
            raise RequestError("tool_choice: there are no tools to call")
        if self.only is None:
            return tools.functions
        return [tool for tool in tools.functions if tool["function"]["name"] in self.only]


def shortened(value: object, most: int = 50) -> str:
    """Return a value as it is written in Python, its end replaced by `...` if it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


def chat_tools(given: Sequence[dict[str, Any]] | None) -> Tools:
    """Return the tools of a chat completion, or of Ollama's chats."""
    return tools_of((where, tool, _chat_function(tool, where)) for where, tool in placed(given))


def message_tools(given: Sequence[dict[str, Any]] | None) -> Tools:
    """Return the tools of Anthropic's messages."""
    return tools_of((where, tool, _message_function(tool, where)) for where, tool in placed(given))


def read_tool_choice(
    given: str | Mapping[str, Any] | None, *, is_parallel: bool | None = None
) -> ToolChoice:
    """Return the tool choice of OpenAI's requests, which Ollama's chats have too."""
    parallel = is_parallel is not False
    match given:
        case None | "auto":
            return ToolChoice(is_parallel=parallel)
        case "none":
            return ToolChoice("none", is_parallel=parallel)
        case "required":
            return ToolChoice("required", is_parallel=parallel)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("required", name, is_parallel=parallel)
        case {"type": "function", "name": str(name)}:
            return ToolChoice("required", name, is_parallel=parallel)
        case {"type": "mcp", "server_label": str(server), "name": str(name)}:
            return ToolChoice("required", full_name(server, name), is_parallel=parallel)
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            return ToolChoice(_mode(mode), only=_allowed(tools), is_parallel=parallel)
        case {"type": "allowed_tools", "mode": mode, "tools": list(tools)}:
            return ToolChoice(_mode(mode), only=_allowed(tools), is_parallel=parallel)
        case {"type": str(kind)} if kind not in ("function", "allowed_tools"):
            raise RequestError(f"tool_choice: {shortened(kind)} is not supported, only function")
    raise RequestError(
        "tool_choice must be auto, none, required, or "
        '{"type": "function", "function": {"name": ...}}'
    )


def message_tool_choice(given: Mapping[str, Any] | None) -> ToolChoice:
    """Return the tool choice of Anthropic's messages."""
    parallel = not (given or {}).get("disable_parallel_tool_use", False)
    match given:
        case None | {"type": "auto"}:
            return ToolChoice(is_parallel=parallel)
        case {"type": "none"}:
            return ToolChoice("none", is_parallel=parallel)
        case {"type": "any"}:
            return ToolChoice("required", is_parallel=parallel)
        case {"type": "tool", "name": str(name)}:
            return ToolChoice("required", name, is_parallel=parallel)
    raise RequestError("tool_choice.type must be auto, any, none, or tool with a name")


def full_name(namespace: object, name: str) -> str:
    """Return the name by which the model knows a function, in a namespace or not."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace.removesuffix('__')}__{name}"


def tools_of(read: Iterable[tuple[str, dict[str, Any], dict[str, Any] | None]]) -> Tools:
    """Return tools of which each is given with its place and, if it is one, its function."""
    found = [*read]
    return Tools(
        functions=[function for _, _, function in found if function is not None],
        places=[where for where, _, function in found if function is not None],
        left_out=[_shown(tool) for _, tool, function in found if function is None],
    )


def placed(given: Sequence[dict[str, Any]] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tools and where each is."""
    for index, tool in enumerate(given or ()):
        yield f"tools[{index}]", tool


def _chat_function(tool: dict[str, Any], where: str) -> dict[str, Any] | None:
    match tool:
        case {"type": "function", "function": {"name": str()}}:
            return tool
        case {"type": str(kind)} if kind != "function":
            return None
    form = '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
    raise RequestError(f"{where} must be {form}")


def _message_function(tool: dict[str, Any], where: str) -> dict[str, Any] | None:
    """Return a function; unsupported fields that would change the answer are refused."""
    match tool:
        case {"type": str(kind)} if kind not in ("custom", "function"):
            return None
        case {"name": str(name), "input_schema": dict(schema)} if tool.get("type") != "function":
            for field in ("defer_loading", "input_examples"):
                require(not tool.get(field), f"{where}.{field} is not supported")
            is_direct = "direct" in (tool.get("allowed_callers") or ("direct",))
            require(is_direct, f"{where}.allowed_callers: only direct is supported")
            description = tool.get("description")
            described = {"description": description} if isinstance(description, str) else {}
            return function_tool({"name": name, **described, "parameters": schema})
        case {"name": str(), "input_schema": given} if not isinstance(given, dict):
            raise RequestError(f"{where}.input_schema must be an object")
    raise RequestError(f'{where} must be {{"name": ..., "input_schema": {{...}}}}')


def function_tool(function: dict[str, Any]) -> dict[str, Any]:
    """Return a function as `Tools` has it."""
    return {"type": "function", "function": function}


def _mode(mode: object) -> ToolMode:
    match mode:
        case "auto":
            return "auto"
        case "required":
            return "required"
    raise RequestError("tool_choice: the mode of allowed_tools must be auto or required")


def _allowed(tools: Sequence[object]) -> tuple[str, ...]:
    """Return the names of the functions that are allowed."""
    names: list[str] = []
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                names.append(name)
            case {"type": "function", "name": str(name)}:
                names.append(name)
            case {"type": str(kind)} if kind != "function":
                pass  # a tool that is left out
            case _:
                raise RequestError("tool_choice: tools must have types, functions also names")
    return tuple(names)


def _shown(tool: Mapping[str, Any]) -> str:
    kind, name = str(tool["type"]), tool.get("name")
    parts = [kind, name] if isinstance(name, str) and name != kind else [kind]
    return ":".join(_UNSAFE.sub("?", part[:64]) for part in parts)


def executed_tool(event: MCPCallFinished) -> dict[str, Any]:
    """Return a call that this server ran, as Groq's API names it; OpenAI's chats have no such."""
    return {
        "type": "mcp",
        "server_label": event.server,
        "name": event.tool,
        "arguments": event.arguments,
        "output": event.output,
        "error": event.error,
    }
