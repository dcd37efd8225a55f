"""Renders a model's template in a sandboxed process, so that no template can block or fill ours.

The process has 2 s of CPU time and 256 MiB for each conversation (`tampu.sandbox.process`). The
limits of `tampu.chat.budget` hold there too, with better messages; the process is for what gets
past them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from tampu import long_json
from tampu.chat.budget import MAX_OUTPUT, MAX_SECONDS
from tampu.chat.output.reasoning import Think
from tampu.chat.segments import Prompt
from tampu.chat.template import ChatTemplate, fault
from tampu.chat.template_loader import CompiledTemplate, PromptTemplate, go_template
from tampu.chat.unusable_template import UnusableTemplate
from tampu.errors import RequestError, SandboxLimitError, TampuError
from tampu.sandbox.client import ForkServerClient
from tampu.sandbox.process import SandboxedProcess, SandboxLimits

RENDERING = "tampu.chat.sandboxed_template:serve"
RENDER_LIMITS = SandboxLimits(
    cpu_s=MAX_SECONDS + 0.5,  # the budget's own limit comes first
    memory_bytes=256 << 20,
    result_bytes=16 * MAX_OUTPUT,  # a character may take six bytes and its piece some more
    idle_s=None,  # it holds the compiled template, which takes the longest to make
)
_LONG_BYTES = 64 << 10  # of a request
_LONG_IDLE_S = 30.0
_LONG_NICENESS = 10  # others' answers come first


class _Answer(msgspec.Struct):
    """A response of the sandbox, which may be anything."""

    prompt: Prompt = ()
    refusal: str = ""


class SandboxedTemplate:
    """A template that renders in processes of its own; several threads may use it.

    The process starts with the first conversation, or with `prepare`, and ends with this object.
    Long conversations have another one, so that others do not wait for them.

    Attributes:
        source: the template's text.
    """

    def __init__(self, template: PromptTemplate, fork_server: ForkServerClient) -> None:
        self.source = template.source
        self._template = template
        self._process = SandboxedProcess(RENDERING, fork_server, RENDER_LIMITS)
        limits = replace(RENDER_LIMITS, idle_s=_LONG_IDLE_S, niceness=_LONG_NICENESS)
        self._process_of_long = SandboxedProcess(RENDERING, fork_server, limits)

    @property
    def continues_answers(self) -> bool:
        """Whether it leaves the last message open if it is an answer."""
        return self._template.continues_answers

    def prepare(self) -> None:
        """Start the process, without waiting for it."""
        if not isinstance(self._template, UnusableTemplate):
            self._process.start()

    def close(self) -> None:
        """End the processes."""
        self._process.close()
        self._process_of_long.close()

    def think_variables(self, think: Think) -> dict[str, Any]:
        """Return the variables that set the template's reasoning."""
        return self._template.think_variables(think)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        bos_token: str,
        eos_token: str,
        variables: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Return the prompt for the conversation, as `ChatTemplate.render` does.

        Raises:
            RequestError: as there, and when the messages are not plain data, or the template takes
                too much time or memory.
        """
        if isinstance(self._template, UnusableTemplate):
            self._template.render()
        asked = {
            "template": _sources(self._template),
            "messages": [_with_numbers(message) for message in messages],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": bos_token,
            "eos_token": eos_token,
            "variables": variables,
        }
        return self._ask(asked)

    def render_insert(self, before: str, behind: str) -> Prompt:
        """Return the prompt to fill in the text between two others.

        Raises:
            RequestError: when the template has no place for a suffix, fails, or takes too much.
        """
        return self._ask({"template": _sources(self._template), "insert": [before, behind]})

    def _ask(self, asked: Mapping[str, Any]) -> Prompt:
        try:
            request = _encoded(asked)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"messages and tools must be plain data: {error}") from None
        process = self._process if len(request) <= _LONG_BYTES else self._process_of_long
        try:
            answer = _answer(process.call(request))
        except SandboxLimitError as error:
            raise fault(str(error)) from error
        except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors too
            raise fault("unexpected response from its process") from error
        if answer.refusal:
            raise RequestError(answer.refusal)
        return answer.prompt


def _encoded(value: object) -> bytes:
    """Return plain data as JSON.

    `json` writes a text of 8 MB in 60 ms, in which no other thread runs. But msgspec takes more
    than JSON has, and no lone surrogates.

    Raises:
        TypeError: for what is not plain data.
    """
    if _is_plain(value):
        with suppress(UnicodeEncodeError):
            return long_json.encode(value)
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _is_plain(value: object) -> bool:
    """Return whether msgspec writes a value as `json` does."""
    kind = type(value)
    if kind is dict and isinstance(value, dict):
        return all(type(key) is str for key in value) and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)) and kind in (list, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return kind is float and math.isfinite(value)
    return value is None or kind in (str, bool, int)


def _answer(data: bytes) -> _Answer:
    """Return the sandbox's answer.

    Raises:
        ValueError: if it is not one.
    """
    try:
        return long_json.decode(data, _Answer)
    except ValueError:  # a text with lone surrogates, which `json` reads, or no answer at all
        return msgspec.convert(json.loads(data), _Answer)


def _sources(template: PromptTemplate) -> tuple[str, ...]:
    if isinstance(template, ChatTemplate):
        return ("jinja", *(source for source in template.sources if source))
    return ("go", template.source)


def _with_numbers(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message with numbers for its media, as `images`: templates at most count them."""
    media = message.get("media")
    if not media:
        return message
    others = {name: value for name, value in message.items() if name != "media"}
    return {**others, "images": [*range(len(media))]}


_templates: dict[tuple[str, ...], CompiledTemplate] = {}  # the one that this process renders


def serve(request: bytes) -> bytes:
    """Render a conversation, in the sandboxed process."""
    asked = json.loads(request)
    kind, *sources = key = tuple(asked.pop("template"))
    try:
        if key not in _templates:
            _templates.clear()
            _templates[key] = (ChatTemplate if kind == "jinja" else go_template)(*sources)
        template = _templates[key]
        if not isinstance(template, ChatTemplate) and "insert" in asked:
            answer = {"prompt": template.render_insert(*asked["insert"])}
        else:
            answer = {"prompt": _rendered(template, asked)}
    except TampuError as error:
        return _encoded({"refusal": str(error)})
    return _encoded(answer)


def _rendered(template: CompiledTemplate, asked: Mapping[str, Any]) -> Prompt:
    try:
        return template.render(**asked)
    except RequestError:
        wrapped = _with_wrapped_arguments(asked["messages"])
        if wrapped is None:
            raise
        return template.render(**{**asked, "messages": wrapped})


def _with_wrapped_arguments(
    messages: Sequence[Mapping[str, Any]],
) -> list[Mapping[str, Any]] | None:
    """Return messages in which the arguments of all calls are objects; None if they are already.

    Arguments that are a text, since a model wrote no JSON object, become the value of `arguments`:
    for templates that go through the names and values.
    """

    def wrapped(call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
            return call
        arguments = {"arguments": function["arguments"]}
        return {**call, "function": {**function, "arguments": arguments}}

    found = [
        {**message, "tool_calls": [*map(wrapped, message["tool_calls"])]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]
    return None if found == list(messages) else found
