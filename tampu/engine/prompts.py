"""The kinds of prompt of a request, and the structure of its output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from tampu.chat.media import MediaFile
from tampu.errors import RequestError

MEDIA_MARKER = "<__media__>"  # as llama.cpp's


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """A text that is used as it is, without a template.

    Attributes:
        text: if there are media, with `MEDIA_MARKER` at the place of each.
        media: files of images, videos and sounds; of a program also RGB pixels or samples.
        places: where the request has each, for errors; none: it says nothing of them.
    """

    text: str
    media: tuple[Any, ...] = ()
    places: tuple[str, ...] = ()

    @classmethod
    def of_parts(cls, parts: Iterable[str | MediaFile]) -> TextPrompt:
        """Return texts and files in their order, with nothing between them.

        Raises:
            RequestError: if `MEDIA_MARKER` is in a text.
        """
        held = [*parts]
        files = [part for part in held if isinstance(part, MediaFile)]
        texts = [part if isinstance(part, str) else MEDIA_MARKER for part in held]
        text = "".join(texts)
        if files and text.count(MEDIA_MARKER) != len(files):
            raise RequestError(f"a text beside images or sounds must not have {MEDIA_MARKER} in it")
        return cls(text, tuple(file.data for file in files), tuple(file.place for file in files))


class TokensPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    """A prompt as token ids."""

    tokens: tuple[int, ...]


class ItemsPrompt(msgspec.Struct, frozen=True, tag="items"):
    """Token ids, and media that this process has prepared; not for messages."""

    items: tuple[Any, ...]


class FIMPrompt(msgspec.Struct, frozen=True, tag="fim"):
    """Fill in the middle: the texts before and after what is to be generated."""

    prefix: str
    suffix: str


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="chat"):
    """A conversation for the model's chat template.

    Attributes:
        messages: as Hugging Face's templates take them; files of images, videos and sounds are
            under `media`.
        places: where the request has each of these, for errors; none: it says nothing of them.
        tools: functions that the model may call.
        variables: more values for the template.
        think: whether to reason before the answer, or how hard; None: the model's default.
        before: tokens of earlier messages that come before the prompt.
        plain: the prompt for a model without a template; None: such a model refuses the request.
        keeps_reasoning: whether reasoning stays in the content, as the model wrote it.
        add_generation_prompt: whether the prompt ends with the start of the answer, as one that is
            answered does; if not, an assistant's last message is closed.
    """

    messages: tuple[dict[str, Any], ...]
    places: tuple[str, ...] = ()
    tools: tuple[dict[str, Any], ...] | None = None
    variables: dict[str, Any] = {}
    think: bool | str | None = None
    before: tuple[int, ...] = ()
    plain: str | None = None
    keeps_reasoning: bool = False
    add_generation_prompt: bool = True


Prompt: TypeAlias = TextPrompt | TokensPrompt | ItemsPrompt | FIMPrompt | ChatPrompt


class StructuredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The structure that the output must have.

    Attributes:
        format: "json", a JSON schema, or an object with `regex`, `lark`, `gbnf` or `choices`; None:
            any text.
        must_call: it must be calls of the prompt's tools.
        may_call: it may be tool calls instead of the format.
        tool: the only tool that may be called; None: any.
        is_parallel: whether it may call more than one.
        field: the request's name for it, with which errors begin; "" if it has none.
        warnings: what of the format is not enforced.
    """

    format: Any = None
    must_call: bool = False
    may_call: bool = False
    tool: str | None = None
    is_parallel: bool = True
    field: str = ""
    warnings: tuple[str, ...] = ()
