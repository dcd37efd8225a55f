"""What an answer must be like: from the form that a request asks for to a grammar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from tampu.chat.output import ChatFormat
from tampu.chat.output.reasoning import Think
from tampu.chat.output.tool_grammar import Thought, after_thought, calls_or_answer, forced_calls
from tampu.errors import RequestError
from tampu.runner.request import ReasoningTags
from tampu.sampling.grammar import Grammar, grammar_of
from tampu.worker.protocol import ChatPrompt, Form, Prompt


class ControlTokens(Protocol):
    """What forms need of a tokenizer."""

    def control_tokens(self, texts: Iterable[str]) -> Mapping[str, int]:
        """Return the ids of the control tokens among these texts."""
        ...


def form_grammar(
    form: Form,
    prompt: Prompt,
    style: ChatFormat | None,
    tokenizer: ControlTokens,
    *,
    begins_thought: bool,
) -> Grammar | None:
    """Return the grammar of an answer; None if it may be anything.

    Args:
        form: what it must be like.
        prompt: what it answers.
        style: how the model writes its answers; None without a chat template.
        tokenizer: of the model.
        begins_thought: whether the prompt ends inside a thought.

    Raises:
        RequestError: for a call that cannot be forced.
        GrammarError: for a grammar that is wrong or not supported.
    """
    grammar = grammar_of(form.format)
    if style is None or not isinstance(prompt, ChatPrompt):
        if form.must_call:
            raise RequestError("tool_choice: the model has no chat template, so it calls none")
        return grammar
    tokens = tokenizer.control_tokens(style.markers)
    thought = _thought(style, prompt.think, begins_thought=begins_thought)
    if form.must_call:
        return forced_calls(
            style,
            prompt.tools or (),
            tokens,
            name=form.tool,
            parallel=form.is_parallel,
            thought=thought,
        )
    if grammar and form.may_call and style.call is not None:
        return calls_or_answer(
            grammar, style, prompt.tools or (), tokens, parallel=form.is_parallel, thought=thought
        )
    return grammar and after_thought(grammar, style, tokens, thought)


def thoughts_of(style: ChatFormat, *, is_begun: bool) -> ReasoningTags | None:
    """Return how the answers of a format have thoughts; None: they have none."""
    if style.thought is None:
        return None
    return ReasoningTags(
        begin=style.thought.begin,
        end=style.thought.end,
        is_open=is_begun,
        anywhere=style.read is not None,
    )


def _thought(style: ChatFormat, think: Think, *, begins_thought: bool) -> Thought:
    if begins_thought:
        return "begun"
    return "no" if think is False or style.thought is None else "may"
