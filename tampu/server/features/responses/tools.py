"""The tools of a response, in OpenAI's form: functions, some of them in namespaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tampu.errors import RequestError, require
from tampu.server.fields.tools import Tools, full_name, function_tool, placed, tools_of


def response_tools(given: Sequence[dict[str, Any]] | None) -> Tools:
    """Return the tools of a response; the functions of a namespace have its name in theirs."""
    return tools_of(
        (where, tool, _response_function(tool, where, namespace))
        for namespace, tool, where in _members(given)
    )


def response_form(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a function as OpenAI's responses have it."""
    return {"type": "function", "name": name, "description": description, "parameters": schema}


def namespaces(given: Sequence[dict[str, Any]] | None) -> dict[str, dict[str, str]]:
    """Return the namespace and the name of each function in one, by its full name."""
    return {
        full_name(namespace, tool["name"]): {"namespace": namespace, "name": tool["name"]}
        for namespace, tool, _ in _members(given)
        if namespace is not None and isinstance(tool.get("name"), str)
    }


def _members(
    given: Sequence[dict[str, Any]] | None,
) -> Iterator[tuple[str | None, dict[str, Any], str]]:
    """Yield the tools, those of a namespace with its name, and where each is."""
    for where, tool in placed(given):
        match tool:
            case {"type": "namespace", "name": str(namespace), "tools": list(members)}:
                for place, member in enumerate(members):
                    inside = f"{where}.tools[{place}]"
                    require(isinstance(member, dict), f"{inside} must be an object")
                    yield namespace, member, inside
            case _:
                yield None, tool, where


def _response_function(
    tool: dict[str, Any], where: str, namespace: str | None
) -> dict[str, Any] | None:
    match tool:
        case {"type": "function", "name": str(name)}:
            kept = ("description", "parameters")
            function = {key: tool[key] for key in kept if tool.get(key) is not None}
            return function_tool({"name": full_name(namespace, name), **function})
        case {"type": str(kind)} if kind != "function":
            return None
    raise RequestError(
        f'{where} must be {{"type": "function", "name": ..., "parameters": {{...}}}}'
    )
