"""Chat templates in Go's language, as models of Ollama's registry have them.

They get the same values as from Ollama: `.System`, `.Messages`, `.Tools` and `.Think`; templates
without `.Messages` get one exchange after the other as `.System`, `.Prompt` and `.Response`.
`OllamaTemplate` has the methods of `template.ChatTemplate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tampu.chat.gotemplate import (
    JsonList,
    JsonMap,
    Record,
    execute,
    fields_used,
    parse,
    until_field,
)
from tampu.chat.gotemplate.nodes import Action, Field, Pipeline
from tampu.chat.output.parser_registry import chat_format
from tampu.chat.output.reasoning import Think, check_think, with_reasoning
from tampu.chat.segments import Prompt
from tampu.chat.taint import joined, marked, pieces
from tampu.errors import RequestError

Message = Mapping[str, Any]

_MERGED = ("system", "user", "assistant")
_TOOL_KEYS = ("type", "items", "function")
_FUNCTION_KEYS = ("name", "description", "parameters")
_PARAMETER_KEYS = ("type", "$defs", "items", "required", "properties")
_PROPERTY_KEYS = ("anyOf", "type", "items", "description", "enum", "properties", "required")


class OllamaTemplate:
    """A model's template, parsed; rendering may be done from several threads.

    Attributes:
        source: its text.
    """

    def __init__(self, source: str) -> None:
        """Parse the template.

        Raises:
            ModelFileError: when it is not a valid template, with the line.
        """
        self.source = source
        template = parse(source)
        if not fields_used(template) & {"Messages", "Response"}:
            response = Action(Pipeline(((Field(("Response",)),),)))
            template = replace(template, nodes=(*template.nodes, response))
        self._template = template
        self._until_response = until_field(template, "Response")
        self.variables = fields_used(template)

    def think_variables(self, think: Think) -> dict[str, Any]:
        """Return the variables that set the template's reasoning.

        Raises:
            RequestError: for an unknown effort.
        """
        check_think(think)
        return {
            "Think": bool(think),
            "ThinkLevel": think if isinstance(think, str) else "",
            "IsThinkSet": think is not None,
        }

    @property
    def supports_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return "Tools" in self.variables

    @property
    def supports_thinking(self) -> bool:
        """Whether the template supports reasoning."""
        known = self.variables & {"Think", "Thinking", "ThinkLevel", "IsThinkSet"}
        return bool(known) and chat_format(self.source).reasoning is not None

    @property
    def continues_answers(self) -> bool:
        """Whether it leaves the last message open if it is an answer: Ollama's do."""
        return True

    @property
    def supports_insert(self) -> bool:
        """Whether the template has a place for a suffix: fill in the middle."""
        return "Suffix" in self.variables

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        bos_token: str = "",  # noqa: ARG002  # such a template never writes it
        eos_token: str = "",  # noqa: ARG002
        variables: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Return the prompt for the conversation; the arguments are those of `ChatTemplate`.

        Raises:
            RequestError: when the template fails on the conversation, and without
                `add_generation_prompt`.
        """
        if not add_generation_prompt:
            raise RequestError(
                "add_generation_prompt must be true: the model's template, one of Ollama's, always"
                " ends with the start of an answer"
            )
        more = {name: marked(value) for name, value in (variables or {}).items()}
        more = {**self.think_variables(None), **more}
        system, conversation = _collated([_read(message) for message in messages])
        if "Messages" in self.variables:
            values = {
                "System": system,
                "Messages": [_message_record(message) for message in conversation],
                "Tools": [_tool_record(tool) for tool in marked(tools or [])],
                "Response": "",
            }
            return pieces(execute(self._template, more | values))
        return pieces(self._exchanges([_read(message) for message in messages], more))

    def render_insert(
        self, prompt: str, suffix: str, variables: Mapping[str, Any] | None = None
    ) -> Prompt:
        """Return the prompt to fill in the text between two others.

        Raises:
            RequestError: when the template has no place for a suffix, or fails.
        """
        if not self.supports_insert:
            raise RequestError(
                "the model's template does not support fill-in-the-middle (no .Suffix)"
            )
        values = {**self.think_variables(None), **(variables or {})}
        values |= {"Prompt": marked(prompt), "Suffix": marked(suffix), "Response": ""}
        return pieces(execute(self._template, values))

    def _exchanges(self, messages: Sequence[_Read], more: Mapping[str, Any]) -> list[str]:
        """Write system, prompt and response of each exchange, up to the place of the answer."""
        written: list[str] = []
        order = ("System", "Prompt", "Response")
        values: dict[str, Any] = dict.fromkeys(order, "")
        for message in messages:
            name = {"system": "System", "user": "Prompt", "assistant": "Response"}.get(message.role)
            if name is None:
                continue
            if any(values[later] for later in order[order.index(name) + 1 :]):
                written += execute(self._template, {**more, **values})
                values = dict.fromkeys(order, "")
            values[name] = message.content
        return written + execute(self._until_response, {**more, **values})


@dataclass(frozen=True, slots=True)
class _Read:
    """A message, its texts marked as from outside."""

    role: str
    content: str
    fields: Mapping[str, Any]


def _read(message: Message) -> _Read:
    fields = marked(with_reasoning(message))
    content = fields.get("content")
    if isinstance(content, list):  # parts, of which only texts are written
        content = joined(
            [part["text"] for part in content if isinstance(part, Mapping) and "text" in part]
        )
    return _Read(fields["role"], content or "", fields)


def _collated(messages: Sequence[_Read]) -> tuple[str, list[_Read]]:
    """Return all system messages as one, and the messages with neighbours of one role merged."""
    system: list[str] = []
    merged: list[_Read] = []
    for message in messages:
        if message.role == "system":
            system += ["\n\n" if system else "", message.content]
        if merged and merged[-1].role == message.role and message.role in _MERGED:
            last = merged.pop()
            message = replace(last, content=joined([last.content, "\n\n", message.content]))
        merged.append(message)
    return joined(system), merged


def _message_record(message: _Read) -> Record:
    fields = message.fields
    calls = fields.get("tool_calls") or []
    return Record(
        {
            "Role": message.role,
            "Content": message.content,
            "Thinking": fields.get("thinking") or fields.get("reasoning_content") or "",
            "Images": list(fields.get("images") or []),
            "ToolCalls": [_call_record(call, index) for index, call in enumerate(calls)],
            "ToolName": fields.get("tool_name") or fields.get("name") or "",
            "ToolCallID": fields.get("tool_call_id") or "",
        }
    )


def _call_record(call: Mapping[str, Any], index: int) -> Record:
    function = call.get("function") or {}
    name, arguments = function.get("name", ""), function.get("arguments") or {}
    shown = JsonMap(arguments) if isinstance(arguments, Mapping) else arguments
    data = {"index": index, "name": name, "arguments": arguments}
    inner = Record({"Index": index, "Name": name, "Arguments": shown}, data, is_json=True)
    return Record({"ID": call.get("id") or "", "Function": inner}, {"function": data}, is_json=True)


def _tool_record(tool: Mapping[str, Any]) -> Record:
    data = _ordered(tool, _TOOL_KEYS)
    function = data.get("function") or {}
    if isinstance(function, Mapping):
        data["function"] = _ordered(function, _FUNCTION_KEYS)
        parameters = function.get("parameters")
        if isinstance(parameters, Mapping):
            data["function"]["parameters"] = _schema(parameters, _PARAMETER_KEYS)
    return Record(
        {"Type": data.get("type", "function"), "Function": _function_record(data["function"])},
        data,
        is_json=True,
    )


def _function_record(function: Any) -> Record:
    data = function if isinstance(function, Mapping) else {}
    parameters = data.get("parameters") or {}
    fields = {
        "Name": data.get("name", ""),
        "Description": data.get("description", ""),
        "Parameters": _schema_record(parameters if isinstance(parameters, Mapping) else {}),
    }
    return Record(fields, data, is_json=True)


def _schema_record(schema: Mapping[str, Any]) -> Record:
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    types = schema.get("type") or []
    return Record(
        {
            "Type": types if isinstance(types, str) else JsonList(types),
            "Description": schema.get("description", ""),
            "Required": list(schema.get("required") or []),
            "Enum": list(schema.get("enum") or []),
            "Items": schema.get("items"),
            "AnyOf": [_schema_record(item) for item in schema.get("anyOf") or []],
            "Properties": JsonMap({name: _schema_record(item) for name, item in known.items()}),
        },
        schema,
        is_json=True,
    )


def _schema(schema: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    """Return a schema with its keys, and those of its properties, in the order that Ollama has."""
    ordered = _ordered(schema, first)
    properties = ordered.get("properties")
    if isinstance(properties, Mapping):
        ordered["properties"] = {
            name: _schema(item, _PROPERTY_KEYS) if isinstance(item, Mapping) else item
            for name, item in properties.items()
        }
    return ordered


def _ordered(data: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    """Return a map with some keys in front, in this order."""
    known = {key: data[key] for key in first if key in data}
    return known | {key: value for key, value in data.items() if key not in known}
