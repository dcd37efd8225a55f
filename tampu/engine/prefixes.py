"""Hashes of prompt prefixes, by which a router finds the replica that has them cached.

A prompt's hashes are made of its text at borders, before it is tokenized: the ends of messages, and
blocks within long ones. Each covers all that comes before, so that prompts which have a hash in
common are the same up to that border. An image or a sound counts by the bytes of its file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import msgspec

from tampu.engine.prompts import (
    MEDIA_MARKER,
    ChatPrompt,
    FIMPrompt,
    ItemsPrompt,
    Prompt,
    TextPrompt,
    TokensPrompt,
)

BLOCK = 512
"""The maximum bytes of text between two borders; about 128 tokens."""

MAX_BORDERS = 1024
"""The maximum number of borders of a prompt: what comes later is not compared."""

_HASH_BYTES = 8
_encoder = msgspec.json.Encoder(order="sorted")


class PrefixBorders(msgspec.Struct, frozen=True):
    """The borders of a prompt.

    Attributes:
        hashes: of all that comes before each border, 64 bits.
        ends: where each is, in bytes of the text.
        size: of the whole text in bytes.
    """

    hashes: tuple[int, ...]
    ends: tuple[int, ...]
    size: int

    def within(self, share: float) -> tuple[int, ...]:
        """Return the hashes of the borders within the first `share` of the prompt."""
        end = share * self.size
        return tuple(h for h, at in zip(self.hashes, self.ends, strict=True) if at <= end)


def prefix_borders(
    prompt: Prompt, lora: Mapping[str, float] = MappingProxyType({})
) -> PrefixBorders:
    """Return the borders of a prompt; with other adapters (`lora`) it has none in common."""
    hashes: list[int] = []
    ends: list[int] = []
    size, last = 0, _encoder.encode(dict(lora)) if lora else b""
    for piece in _pieces(prompt):
        size += len(piece)
        for start in range(0, len(piece), BLOCK):
            if len(hashes) == MAX_BORDERS:
                break
            block = piece[start : start + BLOCK]
            last = hashlib.blake2b(last + block, digest_size=_HASH_BYTES).digest()
            hashes.append(int.from_bytes(last, "little"))
            ends.append(size - len(piece) + start + len(block))
    return PrefixBorders(tuple(hashes), tuple(ends), size)


def _pieces(prompt: Prompt) -> Iterator[bytes]:
    """Yield the texts of a prompt in their order; a border follows each of them."""
    match prompt:
        case ChatPrompt():
            yield from _chat_pieces(prompt)
        case TextPrompt(text=text, media=media):
            before, *parts = text.split(MEDIA_MARKER, len(media))
            yield before.encode("utf-8", "surrogatepass")
            for file, part in zip(media, parts, strict=False):  # refused where they are loaded
                yield _digest(file).encode() + part.encode("utf-8", "surrogatepass")
        case FIMPrompt(prefix=prefix, suffix=suffix):
            yield prefix.encode("utf-8", "surrogatepass")
            yield b"\0" + suffix.encode("utf-8", "surrogatepass")
        case TokensPrompt(tokens=tokens) | ItemsPrompt(items=tokens):
            for start in range(0, len(tokens), BLOCK // 4):
                yield _encoder.encode(tokens[start : start + BLOCK // 4])


def _chat_pieces(prompt: ChatPrompt) -> Iterator[bytes]:
    """Yield each message, the first one with what the template writes before the messages.

    There is no border before the first message's text: it would be the same in all conversations.
    Media have a border of their own: they are most of what a question about them costs.
    """
    head = _encoder.encode((prompt.before, prompt.tools, prompt.variables, prompt.think))
    for message in prompt.messages:
        media = [_digest(file) for file in message.get("media") or ()]
        others = {name: value for name, value in message.items() if name not in _LONG}
        content = message.get("content") or ""
        text = content if isinstance(content, str) else repr(content)
        before = head + _encoder.encode((others, media))
        if media:
            yield before
            before = b""
        yield before + text.encode("utf-8", "surrogatepass")
        head = b""


_LONG = ("content", "media")


def _digest(file: object) -> str:
    data = file if isinstance(file, bytes) else repr(file).encode()
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).hexdigest()
