"""Batches: the parts of each sequence, and the data of their graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tampu.kvcache import Segment
from tampu.nn.points import Point
from tampu.runner.adapters import token_adapters
from tampu.runner.capture import (
    CapturedRows,
    CapturingPart,
    Rows,
    SequenceCapture,
    media_points,
)
from tampu.runner.drafters import MAX_GUESS
from tampu.runner.encoder_cache import EncoderCache
from tampu.runner.layout import PlacedMedia
from tampu.runner.sequence import Sequence
from tampu.runner.steering import SteeringPlanner
from tampu.runner.step_inputs import CrossAttentionRows, StepInputs, most_in_full

STATES = MAX_GUESS + 1
"""Hidden states that are kept of a slot: of a token and its drafts."""

_NO_ROWS: Rows = np.empty((0, 0), np.float32)


@dataclass(frozen=True, slots=True)
class BatchPart:
    """The tokens of one sequence in a batch.

    Attributes:
        sequence: whose tokens they are.
        row: the first token's row in the batch.
        start: position of that token.
        count: the number of tokens; 0 if another part with the same prefix gives its output too.
        output: index of its first output among those of the batch.
        outputs: its number of outputs; 0 while its prompt continues.
        is_last: whether the sequence's next token is sampled from its last output.
        is_prefill: whether the tokens are of a prompt, or of what a context shift left.
        drafts: its last tokens, which are guesses; each of them and the one before has an output.
    """

    sequence: Sequence
    row: int
    start: int
    count: int
    output: int
    outputs: int
    is_last: bool
    is_prefill: bool = True
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + self.count


class CapturedMedia(NamedTuple):
    """Rows of pictures and sounds that a sequence captures and a batch reads."""

    sequence: Sequence
    capture: SequenceCapture
    values: Mapping[Point, Rows]


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned batch, with placeholders for tokens that are being sampled.

    Attributes:
        parts: of the sequences.
        inputs: of its graph.
        captures: the parts of `inputs.captured`.
        media: what is captured of pictures and sounds.
    """

    parts: list[BatchPart]
    inputs: StepInputs
    captures: list[BatchPart]
    media: tuple[CapturedMedia, ...] = ()

    def fill(self, before: Plan | None = None) -> None:
        """Fill in the tokens that were unknown when it was planned.

        Args:
            before: a batch that is computing, and chooses those that are not known yet.
        """
        inputs, chosen = self.inputs, before.chosen() if before else {}
        for part in self.parts:
            sequence = part.sequence
            known = sequence.tokens[part.start : min(part.end, sequence.length)]
            inputs.tokens[part.row : part.row + len(known)] = known
            if part.drafts:
                end = part.row + part.count
                inputs.tokens[end - len(part.drafts) : end] = part.drafts
            elif part.end > sequence.length and sequence in chosen:  # else it has failed
                inputs.sources[part.row + len(known)] = len(inputs.tokens) + chosen[sequence]

    @property
    def has_drafts(self) -> bool:
        """Whether any of its tokens are guesses, so that what comes next depends on its results."""
        return any(part.drafts for part in self.parts)

    def chosen(self) -> dict[Sequence, int]:
        """Return the sequences whose next tokens the device chooses, and from which output."""
        if self.inputs.candidates != 1:
            return {}
        return {
            part.sequence: part.output + part.outputs - 1
            for part in self.parts
            if part.is_last and part.sequence.candidates == 1
        }

    def follows(self, before: Plan) -> bool:
        """Return whether the device has all of its tokens, or is given them, after another one."""
        chosen = before.chosen()
        return bool(chosen) and all(
            part.end <= part.sequence.length or part.sequence in chosen for part in self.parts
        )


def to_plan(
    every: list[BatchPart],
    outputs: list[int],
    encoder_cache: EncoderCache,
    steering: SteeringPlanner,
    *,
    wants_logits: bool,
    positions_per_token: int,
    candidates: tuple[int, ...] = (),
    keeps_states: bool = False,
) -> Plan:
    """Return the plan of a batch, which is computed once its tokens are known.

    Args:
        every: its parts.
        outputs: the rows of tokens that have an output.
        encoder_cache: the embeddings of images and sounds.
        steering: plans how sequences change values inside the model.
        wants_logits: whether outputs are logits, else hidden states.
        positions_per_token: the number of coordinates of a position.
        candidates: how many of the best logits a graph can return instead of all.
        keeps_states: whether the final hidden states of outputs are kept for an assistant.
    """
    parts = [part for part in every if part.count]
    rows = sum(part.count for part in parts)
    positions = [
        part.sequence.layout.positions(part.start, part.end, positions_per_token) for part in parts
    ]
    segments = [
        Segment(
            part.sequence.cell_table.cells[:, : part.end].copy(),
            part.start,
            part.sequence.layout.bidirectional(part.start, part.end),
        )
        for part in parts
    ]
    embeddings, embedded = _embeddings(parts, encoder_cache)
    captures = [*_capturing(parts, segments)]
    inputs = StepInputs(
        np.zeros(rows, np.int32),
        np.ascontiguousarray(np.concatenate(positions, axis=-1)),
        np.asarray(outputs or [rows - 1], np.int32),
        segments,
        wants_logits,
        embeddings,
        embedded,
        _cross_attention(parts, encoder_cache),
        token_adapters([(part.sequence.variant.adapters, part.count) for part in parts]),
        *_candidates(every, len(outputs), candidates if wants_logits else ()),
        CapturedRows.of([part for _, part in captures]) if captures else None,
        steering.plan([(part.sequence.variant.steering, part.count) for part in parts]),
        state_rows=_state_rows(parts, outputs) if keeps_states and outputs else None,
    )
    media = tuple(_captured_media(parts, encoder_cache))
    return Plan(every, inputs, [part for part, _ in captures], media)


def state_row(sequence: Sequence, position: int) -> int:
    """Return where the hidden state of a token is kept: a row for each draft of a slot's step."""
    return -1 if sequence.slot is None else sequence.slot * STATES + position % STATES


def _state_rows(parts: list[BatchPart], outputs: list[int]) -> npt.NDArray[np.int64]:
    """Return where the hidden state of each output is kept; -1: nowhere.

    Of a prompt's outputs, the last ones are: more rows would be written twice.
    """
    rows = np.full(len(outputs), -1, np.int64)
    for part in parts:
        first = part.output + max(part.outputs - STATES, 0)
        for output in range(first, part.output + part.outputs):
            position = part.start + outputs[output] - part.row
            rows[output] = state_row(part.sequence, position)
    return rows


def _capturing(
    parts: list[BatchPart], segments: list[Segment]
) -> Iterator[tuple[BatchPart, CapturingPart]]:
    """Yield the parts that capture values, and what; a watcher may capture others of the same."""
    for part, segment in zip(parts, segments, strict=True):
        watch = None if part.is_prefill else part.sequence.watch
        for capture in filter(None, (part.sequence.capture, watch)):
            positions = capture.wanted(part.start, part.end)
            if capture.points and len(positions):
                yield part, CapturingPart(capture, positions, segment, part.row)


def _captured_media(parts: list[BatchPart], encoder_cache: EncoderCache) -> Iterator[CapturedMedia]:
    for part in parts:
        capture, media = part.sequence.capture, part.sequence.layout.media
        if capture is not None and capture.media:
            values = {
                point: _rows_read(part, placed, encoder_cache)
                for point, placed in zip(media_points(media), media, strict=True)
                if point in capture.media
            }
            yield CapturedMedia(part.sequence, capture, values)


def _rows_read(part: BatchPart, placed: PlacedMedia, encoder_cache: EncoderCache) -> Rows:
    """Return the rows of an embedding that a part's tokens read; layers may read all at once."""
    if not placed.item.placeholders.is_cross:
        rows = placed.rows(part.start, part.end)
        return encoder_cache[placed.number][rows] if rows.start < rows.stop else _NO_ROWS
    is_first = part.start <= placed.start < part.end
    return encoder_cache[placed.number] if is_first else _NO_ROWS


def _candidates(
    parts: list[BatchPart], outputs: int, offered: tuple[int, ...]
) -> tuple[int, npt.NDArray[np.int32] | None]:
    """Return how many candidates are enough for all outputs but those in full; 0: all are.

    The number of those in full is a power of two, so that few graphs differ by it.
    """
    drafts = sum(len(part.drafts) for part in parts)
    if not offered or outputs > len(parts) + drafts:
        return 0, None
    wanted = [
        (output, part.sequence.candidates)
        for part in parts
        for output in range(part.output, part.output + part.outputs)
    ]
    in_full = sorted({output for output, count in wanted if count == 0})
    size = 1 << (len(in_full) - 1).bit_length() if in_full else 0
    if size > most_in_full(outputs):
        return 0, None
    least = max((count for _, count in wanted), default=1)
    enough = min((each for each in offered if each >= least), default=0)
    if not enough or not in_full:
        return enough, None
    in_full += in_full[-1:] * (size - len(in_full))
    return enough, np.asarray(in_full, np.int32)


def _embeddings(
    parts: list[BatchPart], encoder_cache: EncoderCache
) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.int64] | None]:
    """Return the embeddings that replace tokens, and the rows of those tokens in the batch."""
    found: list[npt.NDArray[np.float32]] = []
    rows: list[npt.NDArray[np.int64]] = []
    for part in parts:
        for placed in part.sequence.layout.media:
            taken = placed.embedded(part.start, part.end)
            if len(taken):
                found.append(encoder_cache[placed.number][placed.rows(part.start, part.end)])
                rows.append(taken.astype(np.int64) - part.start + part.row)
    return (np.concatenate(found), np.concatenate(rows)) if found else (None, None)


def _cross_attention(
    parts: list[BatchPart], encoder_cache: EncoderCache
) -> CrossAttentionRows | None:
    """Return what layers with cross-attention read; None if no token attends to an image."""
    if not any(part.sequence.layout.media for part in parts):
        return None
    ranges: dict[int, tuple[int, int]] = {}
    rows = 0
    visible_rows: list[tuple[tuple[int, int], ...]] = []
    for part in parts:
        for position in range(part.start, part.end):
            visible = part.sequence.layout.visible_media(position)
            for placed in visible:
                if placed.number not in ranges:
                    first, rows = rows, rows + len(encoder_cache[placed.number])
                    ranges[placed.number] = (first, rows)
            visible_rows.append(tuple(ranges[placed.number] for placed in visible))
    if not ranges:
        return None
    return CrossAttentionRows(encoder_cache.concatenated(tuple(ranges)), visible_rows)
