"""Images, videos and sounds in a conversation: they go where the template puts their message.

They stand before their message's text, as placeholders that cannot be guessed: no text from outside
can be mistaken for one, and templates treat a placeholder as part of the text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tampu.cancellation import check_cancelled
from tampu.chat.segments import Prompt, Tokenizer, encode_prompt
from tampu.errors import RequestError


class PromptMedia(Protocol):
    """An image, a video or a sound that is prepared for the model; as long as its inputs."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Its tokens in the prompt."""
        ...

    def __len__(self) -> int:
        """Return the number of its inputs."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedMedia:
    """A video or a sound that is prepared for the model; it stands where an image may.

    Attributes:
        items: tokens, and media: each is some frames of a video or a part of a sound.
    """

    items: tuple[Item, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Its tokens in the prompt."""
        return token_ids(self.items)

    def __len__(self) -> int:
        return length(self.items)


# One pattern for all conversations: `re` would compile and keep one for each secret.
_PLACEHOLDER = re.compile(r"\[image-([0-9a-f]{16})-(\d+)\]")

Item: TypeAlias = int | Any
"""A token, or a `PromptMedia`."""


class MediaPlaceholders:
    """The placeholders of one conversation's images, videos and sounds."""

    def __init__(self) -> None:
        self._secret = secrets.token_hex(8)
        self._media: list[PromptMedia] = []

    def place(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the messages with placeholders for their `media`, each a `PromptMedia`."""
        return [
            {**message, "content": self._marks(message["media"]) + (message.get("content") or "")}
            if message.get("media")
            else message
            for message in messages
        ]

    def encode(self, tokenizer: Tokenizer, prompt: Prompt) -> list[Item]:
        """Return a prompt's tokens with the media at their places.

        Raises:
            RequestError: if the template drops or repeats an image.
        """
        if not self._media:
            return encode_prompt(tokenizer, prompt)
        items: list[Item] = []
        shown: list[int] = []
        for text, number in self._parts(prompt):
            is_first = not items
            items += encode_prompt(tokenizer, text) if is_first else tokenizer.encode_pieces(text)
            if number is not None:
                placed = self._media[number]
                items += _items(placed)
                shown.append(number)
        if shown != list(range(len(self._media))):
            raise RequestError("the model's chat template does not show every image in its turn")
        return items

    @property
    def more(self) -> int:
        """How many more inputs the media have than places."""
        return length(self._media) - len(self._media)

    def _marks(self, media: Sequence[PromptMedia]) -> str:
        first = len(self._media)
        self._media += media
        return "".join(f"[image-{self._secret}-{first + i}]" for i in range(len(media)))

    def _parts(self, prompt: Prompt) -> Iterator[tuple[Prompt, int | None]]:
        """Yield the text before each mark with the mark's number, and the rest."""
        text: list[tuple[str, bool]] = []
        for piece, is_trusted in prompt:
            position = 0
            for found in _PLACEHOLDER.finditer(piece):
                if found[1] != self._secret:
                    continue
                text.append((piece[position : found.start()], is_trusted))
                yield tuple(each for each in text if each[0]), int(found[2])
                text, position = [], found.end()
            text.append((piece[position:], is_trusted))
        yield tuple(each for each in text if each[0]), None


def token_ids(items: Sequence[Item]) -> tuple[int, ...]:
    """Return a prompt's tokens, with the placeholders of media."""
    parts = ((item,) if isinstance(item, int) else item.tokens for item in items)
    return tuple(token for part in parts for token in part)


def length(items: Sequence[Item]) -> int:
    """Return the number of a prompt's inputs."""
    return sum(1 if isinstance(item, int) else len(item) for item in items)


def with_media(
    messages: Sequence[Mapping[str, Any]], prepare: Callable[[Any], Any]
) -> list[Mapping[str, Any]]:
    """Return messages whose `media` are prepared for the model."""
    return [
        {**message, "media": prepared_media(message["media"], prepare)}
        if message.get("media")
        else message
        for message in messages
    ]


def prepared_media(files: Sequence[Any], prepare: Callable[[Any], Any]) -> list[Any]:
    """Return images, videos and sounds that are prepared for the model."""
    found = []
    for file in files:
        check_cancelled()
        if isinstance(file, str):  # no request names a file of this machine
            raise RequestError("an image or a sound must be the content of a file, not its name")
        found.append(prepare(file))
    return found


def media_items(
    tokenizer: Tokenizer, text: str, media: Sequence[PromptMedia], marker: str
) -> list[Item]:
    """Return the tokens of a text without a template, with media in place of its markers."""
    first, *rest = text.split(marker)
    items: list[Item] = [*encode_prompt(tokenizer, ((first, True),))]
    for placed, part in zip(media, rest, strict=True):
        items += _items(placed)
        items += tokenizer.encode_pieces(((part, True),), continues=True) if part else []
    return items


def _items(media: PromptMedia) -> Sequence[Item]:
    return media.items if isinstance(media, PreparedMedia) else [media]
