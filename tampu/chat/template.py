"""Chat templates: a conversation as the prompt text that the model was trained on.

The template is Jinja from the model's file (`tokenizer.chat_template`), written for Hugging Face's
`apply_chat_template`, and rendered here to the same text. It is untrusted: see `jinja_sandbox`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta

from tampu.chat.call_ids import with_nine_characters
from tampu.chat.jinja_sandbox import TemplateEnvironment
from tampu.chat.output.message_parser import ChatFormat
from tampu.chat.output.parser_registry import chat_format
from tampu.chat.output.reasoning import Think, think_variables, with_reasoning
from tampu.chat.segments import Prompt
from tampu.chat.taint import marked, pieces
from tampu.errors import ModelFileError, RequestError

KEY = "tokenizer.chat_template"
_MESSAGE_LIMIT = 500
_MAX_LENGTH = 512 * 1024  # characters; the longest in use have some 30,000
_REMEDY = "create the model again with a TEMPLATE (tampu create), or send a prompt without template"
# What a template's own code may raise: an error in the template, not in tampu.
_FAULTS = (
    TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError,
    RecursionError, MemoryError,
)  # fmt: skip


class ChatTemplate:
    """A model's template, compiled; rendering may be done from several threads.

    Attributes:
        source: the Jinja text.
        sources: it, and the text of the template for conversations with tools.
        tool_problem: what is wrong with that one; empty if nothing is.
    """

    def __init__(self, source: str, tool_source: str | None = None) -> None:
        """Compile the template, and the model's template for conversations with tools if any.

        Raises:
            ModelFileError: when it is not valid Jinja. A template for tools that is not is an
                error of conversations with tools only.
        """
        self.source = source
        self.sources = (source, tool_source)
        self._environment = TemplateEnvironment()
        self._template = self._tool_template = self._compile(source)
        self.tool_problem = ""
        if tool_source:
            try:
                self._tool_template = self._compile(tool_source)
            except ModelFileError as error:
                self.tool_problem = f"for tools: {error.reason}"
        self._tool_source = source if self.tool_problem else tool_source or source

    def think_variables(self, think: Think) -> dict[str, Any]:
        """Return the variables that set the template's reasoning.

        Raises:
            RequestError: for an unknown effort.
        """
        if think is None:
            return {}  # without looking at the template, which takes milliseconds
        return think_variables(self.variables, think)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names of the variables that the template asks for."""
        sources = {self.source, self._tool_source}
        trees = map(self._environment.parse, sources)
        return frozenset().union(*map(meta.find_undeclared_variables, trees))

    @property
    def supports_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return "tools" in self._tool_source or "tool_call" in self._tool_source

    @cached_property
    def style(self) -> ChatFormat:
        """The format of the model's output, as the template shows it."""
        return chat_format(self.source)

    @property
    def supports_thinking(self) -> bool:
        """Whether the template supports reasoning."""
        return self.style.reasoning is not None

    @property
    def supports_insert(self) -> bool:
        """Whether the template has a place for a suffix: no Jinja template has."""
        return False

    @property
    def continues_answers(self) -> bool:
        """Whether it leaves the last message open if it is an answer: few do."""
        return False

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
        """Return the prompt for the conversation.

        All strings in `messages`, `tools` and `variables` are untrusted.

        Args:
            messages: each with `role` and `content`, in the form of Hugging Face's templates.
            tools: functions that the model may call, each `{"type": "function", "function": ...}`.
            add_generation_prompt: end with the start of the assistant's answer.
            bos_token: the text of the vocabulary's token that begins a text.
            eos_token: the text of the one that ends it.
            variables: more values for the template, such as `enable_thinking`.

        Raises:
            RequestError: when the template refuses the conversation, or fails; or when a variable
                has the name of one of the other values.
        """
        if tools and self.tool_problem:
            raise unusable(self.tool_problem)
        template = self._tool_template if tools else self._template
        if self.style.has_short_ids:
            messages = with_nine_characters(messages)
        values = {
            "messages": marked([with_reasoning(message) for message in messages]),
            "tools": marked(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": bos_token,
            "eos_token": eos_token,
        }
        variables = {"documents": None, **(variables or {})}
        if taken := sorted(values.keys() & variables.keys()):
            raise RequestError(f"a variable for the chat template cannot be named {taken[0]}")
        try:
            return self._render(
                template, values | {name: marked(variables[name]) for name in variables}
            )
        except _FAULTS as error:
            raise fault(f"{error or type(error).__name__}") from error

    def _render(self, template: Template, values: Mapping[str, Any]) -> Prompt:
        budget = self._environment.start()
        texts: list[str] = []
        for text in template.generate(values):
            budget.check_time()
            budget.spend_output(len(text))
            texts.append(text)
        return pieces(texts)

    def _compile(self, source: str) -> Template:
        if len(source) > _MAX_LENGTH:
            raise ModelFileError(KEY, f"has {len(source)} characters, more than {_MAX_LENGTH}")
        try:
            return self._environment.from_string(source)
        except TemplateSyntaxError as error:
            message = str(error.message).rstrip(".")
            raise ModelFileError(KEY, f"line {error.lineno}: {message}") from error
        except (TemplateError, RecursionError, MemoryError) as error:
            raise ModelFileError(KEY, f"{error or type(error).__name__}") from error


def fault(reason: str) -> RequestError:
    """Return the error of a template that refuses a conversation or fails."""
    return RequestError(f"the model's chat template: {reason[:_MESSAGE_LIMIT]}")


def unusable(problem: str) -> RequestError:
    """Return the error of a conversation whose template does not compile."""
    return RequestError(f"{fault(problem)}; {_REMEDY}")
