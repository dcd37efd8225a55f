"""What a request gives to a model: the kinds of prompt, and the structure of the output."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """A prompt as it stands: no template is applied."""

    text: str


class TokensPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    """A prompt as token ids."""

    tokens: tuple[int, ...]


class FIMPrompt(msgspec.Struct, frozen=True, tag="insert"):
    """The texts before and behind what is wanted: fill in the middle."""

    before: str
    behind: str


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="chat"):
    """A conversation for the model's chat template.

    Attributes:
        messages: in the form of Hugging Face's templates.
        tools: functions that the model may call.
        variables: more values for the template.
        think: whether to think before the answer, or how hard; None: as the model does by itself.
        before: tokens of an earlier exchange that go in front.
        plain: the prompt for a model without a template; None: such a model refuses.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    variables: dict[str, Any] = {}
    think: bool | str | None = None
    before: tuple[int, ...] = ()
    plain: str | None = None


Prompt: TypeAlias = TextPrompt | TokensPrompt | FIMPrompt | ChatPrompt


class StructuredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The structure that an answer must have.

    Attributes:
        format: "json", a JSON schema, or an object with `regex`, `lark`, `gbnf` or `choices`; None:
            anything.
        must_call: it calls a function of the prompt's.
        may_call: it calls some, or has the format.
        tool: the only one it may call; None: any.
        is_parallel: it may call more than one.
    """

    format: Any = None
    must_call: bool = False
    may_call: bool = False
    tool: str | None = None
    is_parallel: bool = True
