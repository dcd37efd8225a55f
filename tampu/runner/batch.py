"""Batches: what each sequence has in them, and the data of their graphs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tampu.kvcache import Segment
from tampu.runner.graphs import Crossing, StepInputs
from tampu.runner.images import ImageStore
from tampu.runner.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Part:
    """What one sequence has in a batch.

    Attributes:
        sequence: whose tokens they are.
        row: of its first token in the batch.
        start: position of that token.
        count: tokens; none, if another part ends with the same beginning and gives its result too.
        output: index of its first result among the batch's outputs.
        outputs: how many results it has; none while its prompt goes on.
        reads: whether they are of a prompt, or of what a context shift left; else of an answer.
        is_last: whether the last result is where the sequence's next token comes from.
    """

    sequence: Sequence
    row: int
    start: int
    count: int
    output: int
    outputs: int
    is_last: bool
    reads: bool = True

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch that is decided, with placeholders for tokens that are being sampled."""

    parts: list[Part]
    inputs: StepInputs

    def fill(self) -> None:
        """Put in the tokens that were not known when it was planned."""
        for part in self.parts:
            sequence = part.sequence
            known = sequence.tokens[part.start : min(part.end, sequence.length)]
            self.inputs.tokens[part.row : part.row + len(known)] = known


@dataclass(slots=True)
class Draft:
    """A batch in the making.

    Attributes:
        wants_logits: what kind of results it gives.
        room: for more tokens of prompts.
        results: the output that the last token of a part gives, by the token's cell.
    """

    wants_logits: bool
    room: int
    parts: list[Part] = field(default_factory=list)
    rows: int = 0
    prompt_rows: int = 0
    outputs: list[int] = field(default_factory=list)
    results: dict[int, int] = field(default_factory=dict)


def finished(draft: Draft, images: ImageStore, positions_per_token: int) -> Plan:
    """Return a batch as it will be computed, once its tokens are known."""
    parts = [part for part in draft.parts if part.count]
    positions = [
        part.sequence.layout.positions(part.start, part.end, positions_per_token) for part in parts
    ]
    segments = [
        Segment(
            part.sequence.cell_table.cells[:, : part.end].copy(),
            part.start,
            part.sequence.layout.both_ways(part.start, part.end),
        )
        for part in parts
    ]
    embeddings, rows = _embeddings(parts, images)
    inputs = StepInputs(
        np.zeros(draft.rows, np.int32),
        np.ascontiguousarray(np.concatenate(positions, axis=-1)),
        np.asarray(draft.outputs or [draft.rows - 1], np.int32),
        segments,
        draft.wants_logits,
        embeddings,
        rows,
        _crossing(parts, images),
    )
    return Plan(draft.parts, inputs)


def _embeddings(
    parts: list[Part], images: ImageStore
) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.int64] | None]:
    """Return the rows of images that take tokens' places, and those places in the batch."""
    found: list[npt.NDArray[np.float32]] = []
    rows: list[npt.NDArray[np.int64]] = []
    for part in parts:
        for image in part.sequence.layout.images:
            taken = image.embedded(part.start, part.end)
            if len(taken):
                found.append(images[image.number][image.rows(part.start, part.end)])
                rows.append(taken.astype(np.int64) - part.start + part.row)
    return (np.concatenate(found), np.concatenate(rows)) if found else (None, None)


def _crossing(parts: list[Part], images: ImageStore) -> Crossing | None:
    """Return the images that layers with cross-attention read, None if no token sees any."""
    if not any(part.sequence.layout.images for part in parts):
        return None
    ranges: dict[int, tuple[int, int]] = {}
    rows = 0
    seen: list[tuple[tuple[int, int], ...]] = []
    for part in parts:
        for position in range(part.start, part.end):
            shown = part.sequence.layout.crossed(position)
            for image in shown:
                if image.number not in ranges:
                    first, rows = rows, rows + len(images[image.number])
                    ranges[image.number] = (first, rows)
            seen.append(tuple(ranges[image.number] for image in shown))
    return Crossing(images.together(tuple(ranges)), seen) if ranges else None
