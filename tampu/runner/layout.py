"""The layout of a sequence's inputs: placeholders of media, positions, and indivisible groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tampu.nn import MediaItem

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class NumberedMedia:
    """An image, frames of a video or a part of a sound; its length is the number of its inputs.

    Attributes:
        item: what the encoder takes.
        number: of its content; only equal ones have equal numbers.
    """

    item: MediaItem
    number: int

    def __len__(self) -> int:
        return len(self.item.placeholders.tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Its placeholder tokens in the prompt."""
        return tuple(self.item.placeholders.tokens.tolist())


@dataclass(frozen=True, slots=True, eq=False)
class PlacedMedia:
    """An image, frames of a video or a part of a sound at its position in a prompt.

    Attributes:
        start: position of its first input.
        number: of its content; only equal ones have equal numbers.
        item: what the encoder takes.
        row_of: I32, (inputs + 1,): how many rows of the embedding come before each input.
    """

    start: int
    number: int
    item: MediaItem
    row_of: Tokens

    @property
    def end(self) -> int:
        """The position after its last input."""
        return self.start + len(self.row_of) - 1

    def embedded(self, start: int, end: int) -> Tokens:
        """Return the positions in [start, end) that are replaced by rows of the embedding."""
        first, last = max(start, self.start), min(end, self.end)
        if first >= last:
            return np.empty(0, np.int32)
        takes = np.diff(self.row_of[first - self.start : last - self.start + 1]) > 0
        return (np.flatnonzero(takes) + first).astype(np.int32)

    def rows(self, start: int, end: int) -> slice:
        """Return the rows of the embedding for positions in [start, end)."""
        first = min(max(start, self.start), self.end) - self.start
        last = max(min(end, self.end) - self.start, first)
        return slice(int(self.row_of[first]), int(self.row_of[last]))


@dataclass(frozen=True, slots=True)
class InputGroup:
    """Inputs that must be computed in one batch.

    Attributes:
        start: position of the first.
        end: position after the last.
        is_bidirectional: whether they attend to one another both ways.
    """

    start: int
    end: int
    is_bidirectional: bool = False


@dataclass(frozen=True, slots=True)
class InputLayout:
    """The media, groups and positions of a sequence's inputs; plain text has none of its own.

    Attributes:
        media: in order.
        groups: in order, without overlap.
        given: I32, (k, prompt): the model's positions; None: those of the sequence.
        ahead: the offset of positions after the prompt.
    """

    media: tuple[PlacedMedia, ...] = ()
    groups: tuple[InputGroup, ...] = ()
    given: npt.NDArray[np.int32] | None = None
    ahead: int = 0

    def positions(self, start: int, end: int, per_token: int = 1) -> npt.NDArray[np.int32]:
        """Return the model's positions of inputs, (n,), or (per_token, n) if it is not 1."""
        plain = np.arange(start + self.ahead, end + self.ahead, dtype=np.int32)
        positions = np.tile(plain, (per_token, 1))
        if self.given is not None and start < self.given.shape[1]:
            known = self.given[:, start:end]
            positions[:, : known.shape[1]] = known
        return positions[0] if per_token == 1 else positions

    def fitting(self, start: int, count: int) -> int:
        """Return how many of `count` inputs from `start` on can be computed without the rest.

        0 if a longer group starts at `start`.
        """
        for group in self.groups:
            if group.start < start + count < group.end:
                return max(group.start - start, 0)
        return count

    def whole(self, start: int) -> int:
        """Return how many inputs from `start` on belong to one group, 1 if to none."""
        return next((g.end - start for g in self.groups if g.start <= start < g.end), 1)

    def group_end(self, position: int) -> int:
        """Return where the group ends that a position is inside of, else the position."""
        return next((g.end for g in self.groups if g.start < position < g.end), position)

    def needed_from(self, placed: PlacedMedia) -> int:
        """Return the first position that cannot be computed without one of these."""
        takes = placed.embedded(placed.start, placed.end)
        first = int(takes[0]) if len(takes) else placed.start
        return next((g.start for g in self.groups if g.start <= first < g.end), first)

    def bidirectional(self, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """Return the groups within [start, end) whose inputs attend to one another."""
        return tuple(
            (group.start, group.end)
            for group in self.groups
            if group.is_bidirectional and start < group.end and group.start < end
        )

    def visible_media(self, position: int) -> tuple[PlacedMedia, ...]:
        """Return the media that a position attends to by cross-attention.

        They are the last one before it and those directly before that one, without text between.
        """
        seen: list[PlacedMedia] = []
        for placed in reversed(self.media):
            is_next = placed.start <= position and (not seen or placed.end == seen[-1].start)
            if placed.item.placeholders.is_cross and is_next:
                seen.append(placed)
            elif seen:
                break
        return tuple(reversed(seen))

    def without(self, start: int, end: int, length: int) -> InputLayout:
        """Return the layout of a sequence of `length` inputs without those in [start, end).

        These must not cut a group.
        """
        if not self.media and not self.groups and self.given is None:
            return self
        lost = end - start
        moved = [
            PlacedMedia(i.start - lost if i.start >= end else i.start, i.number, i.item, i.row_of)
            for i in self.media
            if i.start >= end or i.end <= start
        ]
        groups = [
            InputGroup(g.start - lost, g.end - lost, g.is_bidirectional) if g.start >= end else g
            for g in self.groups
            if g.start >= end or g.end <= start
        ]
        if self.given is None:
            return InputLayout(tuple(moved), tuple(groups))
        old = self.positions(0, length, len(self.given))
        gap = int(old[0, end] - old[0, start]) if end < length else lost
        given = np.concatenate([old[:, :start], old[:, end:] - gap], axis=1)
        return InputLayout(tuple(moved), tuple(groups), given, self.ahead + lost - gap)


TEXT = InputLayout()


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """A prompt as the cache holds it.

    Attributes:
        tokens: I32, (n,).
        keys: I32, (n,): what the prefix cache compares: tokens, and negative numbers of media in
            their places.
        layout: of the media.
    """

    tokens: Tokens
    keys: Tokens
    layout: InputLayout = TEXT

    def without(self, start: int, end: int) -> Inputs:
        """Return the prompt without the inputs in [start, end), which must not cut a group."""
        kept = [np.concatenate([each[:start], each[end:]]) for each in (self.tokens, self.keys)]
        layout = self.layout.without(start, end, len(self.tokens))
        return Inputs(kept[0], kept[0] if self.keys is self.tokens else kept[1], layout)


def lay_out(pieces: Sequence[Tokens | NumberedMedia]) -> Inputs:
    """Return a prompt of text and media, in order."""
    tokens: list[Tokens] = []
    keys: list[Tokens] = []
    media: list[PlacedMedia] = []
    groups: list[InputGroup] = []
    positions: list[npt.NDArray[np.int32]] = []
    start = position = 0
    for piece in pieces:
        if not isinstance(piece, NumberedMedia):
            tokens.append(piece)
            keys.append(piece)
            positions.append(position + np.arange(len(piece), dtype=np.int32)[None])
            start, position = start + len(piece), position + len(piece)
            continue
        item, number = piece.item, piece.number
        held = item.placeholders
        count = len(held.tokens)
        takes = np.zeros(count, np.bool_) if held.is_cross else held.embedded
        row_of = np.concatenate([[0], np.cumsum(takes)]).astype(np.int32)
        media.append(PlacedMedia(start, number, item, row_of))
        groups += [
            InputGroup(start + first, start + first + length, held.is_bidirectional)
            for first, length in held.groups
        ]
        tokens.append(held.tokens)
        keys.append(np.where(takes | held.is_cross, -1 - number, held.tokens).astype(np.int32))
        own = np.arange(count)[None] if held.positions is None else held.positions.T
        positions.append((position + own).astype(np.int32))
        start, position = start + count, position + held.advance
    if not media:
        text = _joined(tokens)
        return Inputs(text, text)
    layout = InputLayout(
        tuple(media), tuple(groups), _given(positions, start, position), position - start
    )
    return Inputs(_joined(tokens), _joined(keys), layout)


def as_one_group(inputs: Inputs, segments: npt.NDArray[np.int32] | None = None) -> Inputs:
    """Return a prompt whose inputs attend to one another both ways, in one batch.

    `segments` are those of the tokens, for models that take them beside the positions.
    """
    count, layout = len(inputs.tokens), inputs.layout
    given = layout.given
    if segments is not None:
        given = np.stack([np.arange(count, dtype=np.int32), segments])
    whole = InputGroup(0, count, is_bidirectional=True)
    layout = replace(layout, groups=(whole,), given=given)
    return Inputs(inputs.tokens, inputs.keys, layout)


def _given(
    positions: list[npt.NDArray[np.int32]], length: int, end: int
) -> npt.NDArray[np.int32] | None:
    """Return the positions (k, n) of all inputs; None if they are those of the sequence."""
    per_token = max(len(part) for part in positions)
    if per_token == 1 and end == length:
        return None
    spread = [np.broadcast_to(part, (per_token, part.shape[1])) for part in positions]
    return np.concatenate(spread, axis=1)


def _joined(parts: list[Tokens]) -> Tokens:
    return np.concatenate(parts).astype(np.int32) if parts else np.empty(0, np.int32)
