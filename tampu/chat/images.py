"""Images, videos and sounds in a conversation: they go where the template puts their message.

An image stands before its message's text, as a placeholder that cannot be guessed: no text from
outside can be mistaken for an image, and templates treat the placeholder as part of the text.
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


class PreparedImage(Protocol):
    """An image that is prepared for the model; its length is that of its inputs."""

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
        items: tokens, and images: each is some frames of a video or a part of a sound.
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
"""A token, or a `PreparedImage`."""


class ImagePlaceholders:
    """The placeholders of one conversation's images."""

    def __init__(self) -> None:
        self._secret = secrets.token_hex(8)
        self._images: list[PreparedImage] = []

    def place(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the messages with placeholders for their `images`, each a `PreparedImage`."""
        return [
            {**message, "content": self._marks(message["images"]) + (message.get("content") or "")}
            if message.get("images")
            else message
            for message in messages
        ]

    def encode(self, tokenizer: Tokenizer, prompt: Prompt) -> list[Item]:
        """Return a prompt's tokens with the images at their places.

        Raises:
            RequestError: if the template drops or repeats an image.
        """
        if not self._images:
            return encode_prompt(tokenizer, prompt)
        items: list[Item] = []
        shown: list[int] = []
        for text, number in self._parts(prompt):
            is_first = not items
            items += encode_prompt(tokenizer, text) if is_first else tokenizer.encode_pieces(text)
            if number is not None:
                image = self._images[number]
                items += image.items if isinstance(image, PreparedMedia) else [image]
                shown.append(number)
        if shown != list(range(len(self._images))):
            raise RequestError("the model's chat template does not show every image in its turn")
        return items

    @property
    def more(self) -> int:
        """How many more inputs the images have than places."""
        return length(self._images) - len(self._images)

    def _marks(self, images: Sequence[PreparedImage]) -> str:
        first = len(self._images)
        self._images += images
        return "".join(f"[image-{self._secret}-{first + i}]" for i in range(len(images)))

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
    """Return a prompt's tokens, with the placeholders of images."""
    parts = ((item,) if isinstance(item, int) else item.tokens for item in items)
    return tuple(token for part in parts for token in part)


def length(items: Sequence[Item]) -> int:
    """Return the number of a prompt's inputs."""
    return sum(1 if isinstance(item, int) else len(item) for item in items)


def with_images(
    messages: Sequence[Mapping[str, Any]], prepare: Callable[[Any], Any]
) -> list[Mapping[str, Any]]:
    """Return messages whose `images` are prepared for the model."""
    return [
        {**message, "images": prepared_images(message["images"], prepare)}
        if message.get("images")
        else message
        for message in messages
    ]


def prepared_images(images: Sequence[Any], prepare: Callable[[Any], Any]) -> list[Any]:
    """Return images and videos that are prepared for the model."""
    found = []
    for image in images:
        check_cancelled()
        if isinstance(image, str):  # no request names a file of this machine
            raise RequestError("an image or a sound must be the content of a file, not its name")
        found.append(prepare(image))
    return found


def media_items(
    tokenizer: Tokenizer, text: str, images: Sequence[PreparedImage], marker: str
) -> list[Item]:
    """Return the tokens of a text without a template, with images in place of its markers."""
    first, *rest = text.split(marker)
    items: list[Item] = [*encode_prompt(tokenizer, ((first, True),))]
    for image, part in zip(images, rest, strict=True):
        items += image.items if isinstance(image, PreparedMedia) else [image]
        items += tokenizer.encode_pieces(((part, True),), continues=True) if part else []
    return items
