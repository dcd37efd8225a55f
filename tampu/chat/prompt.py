"""Renders a conversation to prompt tokens; drops the oldest messages if it is too long."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from tampu.chat.media import Item, MediaPlaceholders
from tampu.chat.output import ChatFormat, chat_format
from tampu.chat.output.reasoning import Think
from tampu.chat.sandboxed_template import SandboxedTemplate
from tampu.chat.segments import Prompt, Tokenizer, text_of
from tampu.chat.template_loader import PromptTemplate
from tampu.errors import RequestError
from tampu.sandbox.client import ForkServerClient

if TYPE_CHECKING:
    from tampu.ml.metadata import Metadata

Messages: TypeAlias = Sequence[Mapping[str, Any]]

# A long conversation is cut at a guessed place, and searched in halves only after so many guesses.
_GUESSES = 6


@dataclass(frozen=True, slots=True)
class BuiltPrompt:
    """A conversation as the model takes it.

    Attributes:
        tokens: with the media at their places.
        more: how many more inputs the media have than places.
        ends_in_reasoning: whether it ends inside reasoning that the output continues.
        dropped: tokens of the conversation that did not fit.
        seconds: how long its sounds are together.
    """

    tokens: list[Item]
    ends_in_reasoning: bool = False
    dropped: int = 0
    more: int = 0
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.tokens) + self.more  # there may be millions, which take a while to add up


class PromptBuilder:
    """Turns conversations into prompts for one model.

    Attributes:
        style: the format of the model's output.
    """

    def __init__(
        self,
        template: PromptTemplate | SandboxedTemplate,
        tokenizer: Tokenizer,
        eos: int | None = None,
        style: ChatFormat | None = None,
    ) -> None:
        """Take the model's template and tokenizer, and the token that ends its texts."""
        self.style = style or chat_format(template.source)
        self._template = template
        self._tokenizer = tokenizer
        self._bos_text, self._eos_text = (
            "" if token is None else tokenizer.token_text(token) for token in (tokenizer.bos, eos)
        )

    @classmethod
    def for_model(
        cls,
        template: PromptTemplate | None,
        tokenizer: Tokenizer,
        metadata: Metadata,
        fork_server: ForkServerClient,
        parser: str = "",
    ) -> PromptBuilder | None:
        """Return the builder of a model's prompts, in a sandbox; None if it has no template.

        `parser` is the Modelfile's PARSER; "" lets the template decide.
        """
        if template is None:
            return None
        eos = metadata.integer("tokenizer.ggml.eos_token_id", default=-1)
        architecture = metadata.string("general.architecture", default="")
        style = chat_format(template.source, architecture, parser)
        return cls(
            SandboxedTemplate(template, fork_server), tokenizer, None if eos < 0 else eos, style
        )

    def prepare(self) -> None:
        """Start the process that renders, without waiting for it."""
        if isinstance(self._template, SandboxedTemplate):
            self._template.prepare()

    def build(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        limit: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> BuiltPrompt:
        """Return the prompt, at most `limit` tokens where dropping messages makes it so.

        If the last message is the assistant's, its text is the start of the answer.

        The oldest exchanges are dropped first; system messages and the last message stay, so the
        prompt may still be longer; the engine then cuts or refuses it.

        Args:
            messages: with `role` and `content`, in the form of Hugging Face's templates; `media`
                are prepared for the model.
            limit: in tokens; None: no message is dropped.
            tools: functions that the model may call.
            variables: more values for the template.
            think: whether the model reasons before it answers, or how much.
            add_generation_prompt: end with the start of the answer.

        Raises:
            RequestError: when the template refuses the conversation.
        """
        values = {**self._template.think_variables(think), **(variables or {})}
        build = partial(self._build, add_generation_prompt=add_generation_prompt)
        prompt = build(messages, tools, values)
        if limit is None or len(prompt) <= limit:
            return prompt
        starts = _starts(messages)
        least = _from(messages, starts[-1])
        if len(least) == len(messages):  # nothing can be dropped
            return prompt
        longest, shortest = prompt, build(least, tools, values)
        first, last = 0, len(starts) - 1
        for attempt in count():
            if first >= last or len(shortest) > limit:
                break
            middle = (first + last) // 2
            if attempt < _GUESSES:  # as if all messages were of one length
                share = (len(longest) - limit) / (len(longest) - len(shortest))
                middle = min(first + int(share * (last - first)), last - 1)
            shorter = build(_from(messages, starts[middle]), tools, values)
            if len(shorter) <= limit:
                shortest, last = shorter, middle
            else:
                longest, first = shorter, middle + 1
        return replace(shortest, dropped=len(prompt) - len(shortest))

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the prompt of a whole conversation as text, without the begin token; see `build`.

        Raises:
            RequestError: when the template refuses the conversation.
        """
        values = {**self._template.think_variables(think), **(variables or {})}
        prompt, _ = self._with_begun_answer(
            messages, tools, values, add_generation_prompt=add_generation_prompt
        )
        return text_of(prompt).removeprefix(self._bos_text)

    def build_forks(
        self,
        messages: Sequence[Mapping[str, Any]],
        endings: Sequence[tuple[str, Sequence[str]]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        separator: str = "\n\n",
    ) -> tuple[list[Item], list[list[list[int]]]]:
        """Return prompts that differ in the end of the user's last message only, with answers.

        The conversation is rendered once, and its beginning is tokenized once.

        Args:
            messages: as in `build`; unless the last is a user's, one is added.
            endings: texts to end the last message with, each with possible answers.
            tools: as in `build`.
            separator: between the user's text and the ending.

        Returns:
            The items that all prompts begin with; then for each ending and each of its answers, the
            tokens that follow, up to the end of the answer. The model does not reason before it.

        Raises:
            RequestError: when the template refuses the conversation.
        """
        marks, mark = MediaPlaceholders(), f"[ending-{secrets.token_hex(8)}]"
        values = self._template.think_variables(think=False)
        prompt = self._render(marks.place(_with_ending(messages, separator, mark)), tools, values)
        prompt = (*prompt, (self.style.without_reasoning(text_of(prompt[-1:])), True))
        before, after = _split(prompt, mark)
        encode = partial(self._tokenizer.encode_pieces, continues=True)
        return marks.encode(self._tokenizer, before), [
            [encode(((text, False), *after, (answer, False))) for answer in answers]
            for text, answers in endings
        ]

    def _build(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        values: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> BuiltPrompt:
        marks = MediaPlaceholders()
        prompt, in_reasoning = self._with_begun_answer(
            messages, tools, values, marks.place, add_generation_prompt=add_generation_prompt
        )
        tokens = marks.encode(self._tokenizer, prompt)
        return BuiltPrompt(tokens, in_reasoning, more=marks.more)

    def _with_begun_answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        values: Mapping[str, Any],
        place: Callable[[Messages], Messages] = lambda messages: messages,
        *,
        add_generation_prompt: bool,
    ) -> tuple[Prompt, bool]:
        """Return the prompt, with media put in place, and whether it ends inside reasoning."""
        if not add_generation_prompt:
            return self._render(place(messages), tools, values, add_generation_prompt=False), False
        begun = self._begun_answer(messages)
        prompt = self._render(place(messages[:-1] if begun else messages), tools, values)
        in_reasoning = self.style.ends_in_reasoning(text_of(prompt[-1:]))
        if begun and in_reasoning and self.style.reasoning is not None:
            prompt, in_reasoning = (*prompt, (f"{self.style.reasoning.end}\n\n", True)), False
        if begun:
            prompt = (*prompt, (begun, False))
        return prompt, in_reasoning

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        values: Mapping[str, Any],
        *,
        add_generation_prompt: bool = True,
    ) -> Prompt:
        return self._template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            bos_token=self._bos_text,
            eos_token=self._eos_text,
            variables=values,
        )

    def _begun_answer(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the start of the model's answer: the text of an assistant's last message.

        A template would close that message and begin another. Tool calls, and templates that leave
        the message open themselves, are left to the template.
        """
        last = messages[-1] if len(messages) > 1 else {}
        is_plain = last.get("role") == "assistant" and not last.get("tool_calls")
        if not is_plain or self._template.continues_answers or self.style.name == "harmony":
            return ""
        content = last.get("content")
        return content.rstrip() if isinstance(content, str) else ""


def _with_ending(
    messages: Sequence[Mapping[str, Any]], separator: str, end: str
) -> list[Mapping[str, Any]]:
    """Return messages of which the last is the user's and ends with a text."""
    last = messages[-1] if messages else {}
    if last.get("role") != "user":
        return [*messages, {"role": "user", "content": end}]
    content = last.get("content") or ""
    return [*messages[:-1], {**last, "content": f"{content}{separator}{end}" if content else end}]


def _split(prompt: Prompt, mark: str) -> tuple[Prompt, Prompt]:
    """Return the pieces before and after a text of the user's last message.

    Raises:
        RequestError: if the template does not show it exactly once.
    """
    found = [i for i, (text, is_trusted) in enumerate(prompt) if not is_trusted and mark in text]
    if len(found) != 1 or prompt[found[0]][0].count(mark) != 1:
        raise RequestError("the model's chat template does not show the end of the last message")
    [index] = found
    head, _, tail = prompt[index][0].partition(mark)
    return (*prompt[:index], (head, False)), ((tail, False), *prompt[index + 1 :])


def _starts(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return where a shortened conversation may begin: at a user's message, or at the last.

    Templates refuse conversations that begin with an answer, or with the result of a tool whose
    call is missing. An answer that is begun keeps the message that it answers.
    """
    is_begun = len(messages) > 1 and messages[-1]["role"] == "assistant"
    last = len(messages) - (2 if is_begun else 1)
    return [i for i, message in enumerate(messages) if message["role"] == "user" or i == last]


def _from(messages: Sequence[Mapping[str, Any]], start: int) -> list[Mapping[str, Any]]:
    """Return the system messages before `start`, and all from there on."""
    return [message for message in messages[:start] if message["role"] == "system"] + [
        *messages[start:]
    ]
