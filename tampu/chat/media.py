"""Images, videos and sounds in a conversation: they go where the template puts their message.

They stand before their message's text, as placeholders that cannot be guessed: no text from outside
can be mistaken for one, and templates treat a placeholder as part of the text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol, TypeAlias

from tampu.cancellation import check_cancelled
from tampu.chat.segments import Prompt, Tokenizer, encode_prompt
from tampu.errors import RequestError


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A file that a message has.

    Attributes:
        data: its bytes; of a program also RGB pixels or samples.
        place: where the request has it, for errors.
        is_audio: whether only a sound may be there.
    """

    data: Any
    place: str
    is_audio: bool = False


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
        seconds: how long a sound is; 0: it is a video.
    """

    items: tuple[Item, ...]
    seconds: float = 0.0

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
        self._roles: list[str] = []

    def place(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the messages with placeholders for their `media`, each a `PromptMedia`."""
        return [
            {**message, "content": self._marks(message) + (message.get("content") or "")}
            if message.get("media")
            else message
            for message in messages
        ]

    def encode(self, tokenizer: Tokenizer, prompt: Prompt) -> list[Item]:
        """Return a prompt's tokens with the media at their places.

        Raises:
            RequestError: if the template drops, repeats or moves some.
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
            raise RequestError(self._misplaced(shown))
        return items

    @property
    def more(self) -> int:
        """How many more inputs the media have than places."""
        return length(self._media) - len(self._media)

    def _misplaced(self, shown: Sequence[int]) -> str:
        pairs = zip_longest(range(len(self._media)), shown)
        wrong = [number for pair in pairs if pair[0] != pair[1] for number in pair]
        roles = [self._roles[number] for number in wrong if number is not None]
        role = next((role for role in roles if role != "user"), "user")
        message = (
            f"the model's chat template does not show the images and sounds of {role} messages"
        )
        return f"{message} in their place" + ("" if role == "user" else ": put them into a user's")

    def _marks(self, message: Mapping[str, Any]) -> str:
        first, media = len(self._media), message["media"]
        self._media += media
        self._roles += [message["role"]] * len(media)
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


def sound_seconds(media: Iterable[Any]) -> float:
    """Return how long the sounds among prepared media are together."""
    return sum(each.seconds for each in media if isinstance(each, PreparedMedia))


def without_places(
    messages: Iterable[Mapping[str, Any]],
) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """Return messages whose `media` are no `MediaFile` but its data, and the places of all."""
    files = [file for message in messages for file in message.get("media") or ()]
    bare = (
        {**message, "media": [file.data for file in message["media"]]}
        if message.get("media")
        else dict(message)
        for message in messages
    )
    return tuple(bare), tuple(file.place for file in files)


def with_media(
    messages: Sequence[Mapping[str, Any]], prepare: Callable[[Any], Any], places: Sequence[str] = ()
) -> list[Mapping[str, Any]]:
    """Return messages whose `media` are prepared for the model; errors name their places."""
    left = iter(places)
    return [
        {**message, "media": prepared_media(message["media"], prepare, left)}
        if message.get("media")
        else message
        for message in messages
    ]


def prepared_media(
    files: Sequence[Any], prepare: Callable[[Any], Any], places: Iterable[str] = ()
) -> list[Any]:
    """Return files that are prepared for the model; errors name their places."""
    found, left = [], iter(places)
    for file in files:
        check_cancelled()
        place = next(left, "")
        try:
            if isinstance(file, str):  # no request names a file of this machine
                raise RequestError("it must be the content of an image or a sound, not a name")
            found.append(prepare(file))
        except RequestError as error:
            raise type(error)(f"{place}: {error}" if place else str(error)) from error
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
