"""Pictures in a conversation: where the template puts a message, its pictures come with it.

A picture stands before its message's text, under a mark that nobody can guess: so no text from
outside can be taken for a picture, and the mark survives whatever a template does to contents.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from tampu.chat.segments import PieceEncoder, Prompt, encode_prompt
from tampu.errors import RequestError


class Picture(Protocol):
    """A picture that is ready for the model; its length is that of its inputs."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that stand in the prompt for it."""
        ...

    def __len__(self) -> int:
        """Return how many inputs it takes."""
        ...


Item: TypeAlias = int | Any
"""A token, or a `Picture`."""


class ImagePlaceholders:
    """The marks of one conversation's pictures."""

    def __init__(self) -> None:
        self._secret = secrets.token_hex(8)
        self._pattern = re.compile(rf"\[picture-{self._secret}-(\d+)\]")
        self._pictures: list[Picture] = []

    def place(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the messages with marks for their `images`, which must be `Picture`s."""
        return [
            {**message, "content": self._marks(message["images"]) + (message.get("content") or "")}
            if message.get("images")
            else message
            for message in messages
        ]

    def encode(self, vocabulary: PieceEncoder, prompt: Prompt) -> list[Item]:
        """Return a prompt's tokens with the pictures at their places.

        Raises:
            RequestError: if the template dropped a picture, or repeats one.
        """
        if not self._pictures:
            return [*encode_prompt(vocabulary, prompt)]
        items: list[Item] = []
        shown: list[int] = []
        for text, number in self._parts(prompt):
            is_first = not items
            items += encode_prompt(vocabulary, text) if is_first else vocabulary.encode_pieces(text)
            if number is not None:
                items.append(self._pictures[number])
                shown.append(number)
        if shown != list(range(len(self._pictures))):
            raise RequestError("the model's chat template does not show every picture in its turn")
        return items

    def _marks(self, pictures: Sequence[Picture]) -> str:
        first = len(self._pictures)
        self._pictures += pictures
        return "".join(f"[picture-{self._secret}-{first + i}]" for i in range(len(pictures)))

    def _parts(self, prompt: Prompt) -> Iterator[tuple[Prompt, int | None]]:
        """Yield the text before each mark with the mark's number, and what is left."""
        text: list[tuple[str, bool]] = []
        for piece, is_trusted in prompt:
            before, *rest = self._pattern.split(piece)
            text.append((before, is_trusted))
            for number, after in zip(rest[::2], rest[1::2], strict=True):
                yield tuple(each for each in text if each[0]), int(number)
                text = [(after, is_trusted)]
        yield tuple(each for each in text if each[0]), None


def length(items: Sequence[Item]) -> int:
    """Return how many inputs a prompt takes."""
    return sum(1 if isinstance(item, int) else len(item) for item in items)
