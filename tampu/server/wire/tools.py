"""The tools of OpenAI's and Anthropic's requests: functions, and others that are left out.

The model can call functions, which the client runs. Other kinds are run by the provider or are
known to its models only (`web_search`, `image_generation`, `bash_20250124`, ...). They are left
out with a warning, since agents always send them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tampu.errors import RequestError
from tampu.server.generation_request import require

_MAX_SHOWN = 10
_UNSAFE = re.compile(r"[^\w.-]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    Attributes:
        functions: each `{"type": "function", "function": {...}}`.
        left_out: the kinds of the other tools, with their names if they have some.
    """

    functions: Sequence[dict[str, Any]] = ()
    left_out: Sequence[str] = ()

    @property
    def warnings(self) -> list[str]:
        """The text of the warning header."""
        distinct = [*dict.fromkeys(self.left_out)]
        if not distinct:
            return []
        listed, more = ", ".join(distinct[:_MAX_SHOWN]), len(distinct) - _MAX_SHOWN
        listed += f" and {more} more" if more > 0 else ""
        return [f"tools left out, only functions are supported: {listed}"]


def chat_tools(given: Sequence[dict[str, Any]] | None) -> Tools:
    """Return the tools of a chat completion; its functions are checked later."""
    others = [tool for tool in given or () if _is_other(tool)]
    functions = [tool for tool in given or () if not _is_other(tool)]
    return Tools(functions, [*map(_shown, others)])


def response_tools(given: Sequence[dict[str, Any]] | None) -> Tools:
    """Return the tools of a response; the functions of a namespace have its name in theirs."""
    functions: list[dict[str, Any]] = []
    left_out: list[str] = []
    for namespace, tool, where in _members(given or ()):
        match tool:
            case {"type": "function", "name": str(name)}:
                kept = ("description", "parameters")
                function = {key: tool[key] for key in kept if tool.get(key) is not None}
                named = {"name": full_name(namespace, name), **function}
                functions.append({"type": "function", "function": named})
            case {"type": str(kind)} if kind != "function":
                left_out.append(_shown(tool))
            case _:
                raise RequestError(f"{where} must have a type and a name")
    return Tools(functions, left_out)


def message_tools(given: Sequence[dict[str, Any]] | None) -> Tools:
    """Return the tools of Anthropic's messages."""
    functions: list[dict[str, Any]] = []
    left_out: list[str] = []
    for index, tool in enumerate(given or ()):
        where = f"tools[{index}]"
        match tool:
            case {"name": str(name), **rest} if rest.get("type") in (None, "custom"):
                _check_message_tool(rest, where)
                function: dict[str, Any] = {"name": name}
                if isinstance(rest.get("description"), str):
                    function["description"] = rest["description"]
                function["parameters"] = rest.get("input_schema") or {}
                functions.append({"type": "function", "function": function})
            case {"type": str(kind)} if kind != "custom":
                left_out.append(_shown(tool))
            case _:
                raise RequestError(f"{where} must have a name and an input_schema")
    return Tools(functions, left_out)


def full_name(namespace: object, name: str) -> str:
    """Return the name by which the model knows a function, in a namespace or not."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace.removesuffix('__')}__{name}"


def namespaces(given: Sequence[dict[str, Any]] | None) -> dict[str, dict[str, str]]:
    """Return the namespace and the name of each function in one, by its full name."""
    return {
        full_name(namespace, tool["name"]): {"namespace": namespace, "name": tool["name"]}
        for namespace, tool, _ in _members(given or ())
        if namespace is not None and isinstance(tool.get("name"), str)
    }


def _members(
    given: Sequence[dict[str, Any]],
) -> Iterator[tuple[str | None, dict[str, Any], str]]:
    """Yield the tools, those of a namespace with its name, and where each is."""
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        match tool:
            case {"type": "namespace", "name": str(namespace), "tools": list(members)}:
                for place, member in enumerate(members):
                    inside = f"{where}.tools[{place}]"
                    require(isinstance(member, dict), f"{inside} must be an object")
                    yield namespace, member, inside
            case _:
                yield None, tool, where


def _is_other(tool: dict[str, Any]) -> bool:
    return isinstance(tool.get("type"), str) and tool["type"] != "function"


def _shown(tool: dict[str, Any]) -> str:
    kind, name = str(tool["type"]), tool.get("name")
    parts = [kind, name] if isinstance(name, str) and name != kind else [kind]
    return ":".join(_UNSAFE.sub("?", part[:64]) for part in parts)


def _check_message_tool(tool: dict[str, Any], where: str) -> None:
    """Refuse unsupported fields that would change what the model is shown or may call."""
    is_schema = isinstance(tool.get("input_schema"), dict | None)
    require(is_schema, f"{where}.input_schema must be an object")
    for name in ("defer_loading", "input_examples"):
        require(not tool.get(name), f"{where}.{name} is not supported")
    is_direct = "direct" in (tool.get("allowed_callers") or ("direct",))
    require(is_direct, f"{where}.allowed_callers: only direct is supported")
