"""A run loop without a model: the next token is a function of the tokens so far."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.waiting import wait_until

from tampu.kvcache import AttentionGroup, Cells, KVCacheManager
from tampu.ml.backend import Computed
from tampu.nn import MediaItem, Placeholders
from tampu.runner.detokenizer import Detokenizer
from tampu.runner.drafts import DraftSource
from tampu.runner.encoder_cache import EncoderCache, PartialEmbedding
from tampu.runner.events import Done, Event, Failed, TextDelta
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.graph_cache import GraphCounts, PreparedGraph, WarmUpBatch
from tampu.runner.idle_warm_up import IdleWarmUp
from tampu.runner.layout import NumberedMedia, lay_out
from tampu.runner.loop import EngineLoop
from tampu.runner.scheduler import Scheduler
from tampu.runner.sequence import Constraint, RowCollector, Sink
from tampu.runner.sequence import Sequence as RunningSequence
from tampu.runner.speculation import Speculation
from tampu.runner.step_inputs import NextTokens, StepInputs
from tampu.runner.step_times import StepTimes
from tampu.sampling import Sampler
from tampu.tokenizer import IncrementalDecoder

VOCABULARY = 64
EOS = 1


def letter(token: int) -> bytes:
    """Return a token's text: token 2 is a, 3 is b, ...; 0 and 1 have none."""
    return chr(ord("a") + token - 2).encode() if token > 1 else b""


def count_up(history: Sequence[int]) -> int:
    """The next token is one more than the last, from 2 again after 20."""
    return history[-1] + 1 if history[-1] < 20 else 2


def hashed(history: Sequence[int]) -> int:
    """A token that depends on every token before it."""
    return 2 + _digest(history) % 20


def hashed_or_end(history: Sequence[int]) -> int:
    """A token that depends on every token before it, sometimes the end."""
    digest = _digest(history)
    return EOS if digest % 29 == 0 else 2 + digest % 20


def _digest(history: Sequence[int]) -> int:
    value = 7
    for token in history:
        value = (value * 31 + int(token)) % 1009
    return value


def alone(
    prompt: Sequence[int], count: int, follow: Callable[[list[int]], int] = hashed
) -> list[int]:
    """What a request would generate by itself."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(follow(tokens))
    return tokens[len(prompt) :]


@dataclass(frozen=True)
class Vocabulary:
    eos: frozenset[int] = frozenset({EOS})

    def token_bytes(self, token: int) -> bytes:
        return letter(token)


@dataclass(frozen=True)
class FakeEncoder:
    """A chunk of an encoder."""

    item: MediaItem
    number: int
    is_complete: bool


@dataclass
class FakeGraphs:
    """Computes at once; the cache holds the token of each cell, so wrong cells give wrong tokens.

    Attributes:
        follow: the next token after some tokens; NaN logits where it gives None.
        steps: the rows of each batch: (position, token).
        encoded: the contents of the images that were embedded.
        chunks: of an image's encoder.
        order: `chunk`, `image` or `batch` for all that was computed.
    """

    follow: Callable[[list[int]], int | None]
    cells: int
    steps: list[list[tuple[int, int]]] = field(default_factory=list)
    counts: GraphCounts = field(default_factory=GraphCounts)
    encoded: list[int] = field(default_factory=list)
    chunks: int = 1
    order: list[str] = field(default_factory=list)
    keeps_tokens: bool = False

    def __post_init__(self) -> None:
        self._memory = np.full(self.cells, -1)

    @property
    def can_shift_keys(self) -> bool:
        return True

    def shift_keys(self, cells: Sequence[Any], offset: int) -> None:
        """Positions are not logits at."""

    def prepare(self, step: StepInputs) -> PreparedGraph:
        return PreparedGraph(step, [], False)  # type: ignore[arg-type]

    def check_reservation(self) -> None:
        """Nothing is reserved."""

    def prepare_encoder(self, item: MediaItem, partial: PartialEmbedding | None) -> PreparedGraph:
        number = partial.chunks if partial else 0
        assert partial is None or partial.rows[0, 0] == number
        encoder = FakeEncoder(item, number, is_complete=number == self.chunks - 1)
        return PreparedGraph(encoder, [], False)  # type: ignore[arg-type]

    def launch(self, prepared: PreparedGraph) -> Future[Computed]:
        graph: Any = prepared.graph
        if not isinstance(graph, FakeEncoder):
            self.order.append("batch")
            return self.submit(graph)
        if graph.is_complete:
            self.order.append("image")
            return self.encode(graph.item)
        self.order.append("chunk")
        chunk: Future[Computed] = Future()
        chunk.set_result(Computed([np.full((1, 1), graph.number + 1, np.float32)], 0))
        return chunk

    def encode(self, item: MediaItem) -> Future[Computed]:
        """Embed an image: its rows are its content and their numbers."""
        content = int(item.arrays["content"][0])
        self.encoded.append(content)
        result: Future[Computed] = Future()
        rows = np.stack([np.full(item.rows, content), np.arange(item.rows)], axis=1)
        result.set_result(Computed([rows.astype(np.float32)], 0))
        return result

    def submit(self, step: StepInputs) -> Future[Computed]:
        rows = list(zip(step.positions.tolist(), step.tokens.tolist(), strict=True))
        self.steps.append(rows)
        histories: list[list[int]] = []
        tokens = step.tokens.copy()
        if step.embeddings is not None and step.embedded_rows is not None:
            tokens[step.embedded_rows] = 100 * step.embeddings[:, 0] + step.embeddings[:, 1]
        first = 0
        for segment in step.segments:
            new = segment.cells[0, segment.start :]
            self._memory[new] = tokens[first : first + len(new)]
            first += len(new)
        for segment in step.segments:
            held = self._memory[segment.cells[0]].tolist()
            histories += [held[: at + 1] for at in range(segment.start, len(held))]
        logits = np.stack([self._logits(histories[row]) for row in step.outputs])
        if step.following:
            logits = self._followed(step.following, logits.argmax(axis=1))
        result: Future[Computed] = Future()
        result.set_result(Computed([logits], 0))
        return result

    def _followed(self, following: Sequence[NextTokens], best: Any) -> Any:
        """Return the best tokens of outputs, and of those that follow."""
        found = [best]
        for each in following:
            first = found[-1][: len(each.segments)].astype(np.int32)
            step = StepInputs(
                first, each.positions, np.arange(len(first), dtype=np.int32), each.segments
            )
            found.append(FakeGraphs.submit(self, step).result().outputs[0].argmax(axis=1))
        return np.concatenate(found)[:, None].astype(np.float32)

    def _logits(self, history: list[int]) -> Any:
        logits = np.zeros(VOCABULARY, np.float32)
        token = self.follow(history)
        logits[0 if token is None else token] = np.nan if token is None else 10.0
        return logits


def wait_until_idle(scheduler: Scheduler) -> None:
    """Wait until nothing is running and all reference counts are right."""

    def is_right() -> bool:
        try:
            assert scheduler.is_idle
            scheduler.check()
        except AssertionError as error:  # the runner's thread may be about to set it right
            wrong[:] = [error]
            return False
        return True

    wrong: list[AssertionError] = []
    try:
        wait_until(is_right, "the scheduler is idle")
    except pytest.fail.Exception:
        raise wrong[0] from None


class FakeEngine:
    """An engine loop over fake graphs."""

    def __init__(
        self, follow: Callable[[list[int]], int | None], *, slots: int = 1, context: int = 32,
        batch: int = 8, graphs: type[FakeGraphs] | None = None, kept_bytes: int = 10**6,
        candidates: tuple[int, ...] = (), kv_unified: bool = False,
        left: Sequence[WarmUpBatch] = (), clock: Callable[[], float] = time.monotonic,
        drafts: DraftSource | None = None, times: StepTimes | None = None, max_drafts: int = 0,
    ) -> None:  # fmt: skip
        self.context = context
        cells = context if kv_unified else slots * context
        self.kv_manager = KVCacheManager([AttentionGroup(Cells(cells))])
        if times is not None:
            drafts = Speculation(self.kv_manager.prefixes.tree, times)
        self.scheduler = Scheduler(
            self.kv_manager,
            slots=slots,
            kv_unified=kv_unified,
            max_batch_tokens=batch,
            max_outputs=max(slots, 4) + (32 if drafts else max_drafts),
            encoder_cache=EncoderCache(kept_bytes),
            candidates=candidates,
            drafts=drafts,
        )
        self.graphs: Any = (graphs or FakeGraphs)(follow, cells)  # with methods of a test
        warm_up = IdleWarmUp(self.graphs, self.kv_manager, 4, left, clock)  # type: ignore[arg-type]
        self.runner = EngineLoop(self.scheduler, self.graphs, Vocabulary(), warm_up)  # type: ignore[arg-type]

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.close()

    def ask(
        self,
        prompt: Sequence[Any],
        collector: RowCollector | None = None,
        sink: Sink | None = None,
        constraint: Constraint | None = None,
        **options: Any,
    ) -> FakeRequest:
        """Submit a prompt; greedy unless the options say otherwise.

        `sink` gets its events, in place of the result.
        """
        chosen = GenerateOptions(**({"temperature": 0.0} | options))
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        inputs = lay_out(
            [x if isinstance(x, NumberedMedia) else np.array([x], np.int32) for x in prompt]
        )
        length, is_private = len(inputs.tokens), collector is not None and collector.last is None
        tokens, keys = np.zeros((2, self.context + 1), np.int32)
        tokens[:length], keys[:length] = inputs.tokens, inputs.keys
        sequence = RunningSequence(
            options=chosen,
            sampler=Sampler(chosen, VOCABULARY),
            detokenizer=Detokenizer(chosen.stop, IncrementalDecoder(letter)),
            sink=sink or events.put,
            tokens=tokens,
            keys=keys if inputs.layout.media else tokens,
            length=length,
            prompt_length=length,
            layout=inputs.layout,
            cell_table=self.kv_manager.allocate(self.context, is_private=is_private),
            collector=collector,
            constraint=constraint,
        )
        self.runner.submit(sequence)
        return FakeRequest(sequence, events)

    def image(
        self,
        content: int,
        rows: int,
        *,
        groups: tuple[tuple[int, int], ...] | None = None,
        number: int | None = None,
    ) -> NumberedMedia:
        """Return an image: token 30, its rows, token 31; all rows in one batch by default."""
        image = MediaItem(
            {"content": np.array([content], np.int32)},
            key="any",
            rows=rows,
            placeholders=Placeholders(
                np.array([30, *[0] * rows, 31], np.int32),
                np.array([False, *[True] * rows, False]),
                ((1, rows),) if groups is None else groups,
                advance=rows + 2,
                is_bidirectional=True,
            ),
        )
        return NumberedMedia(image, content if number is None else number)

    def prompt_logits(self, tokens: Sequence[int]) -> PromptLogits:
        """Request the logits of every token of a text."""
        rows: list[Any] = []
        return PromptLogits(rows, self.ask(tokens, RowCollector(rows.append), max_tokens=0))

    def wait_until_idle(self) -> None:
        """Wait until nothing is running and all reference counts are right."""
        wait_until_idle(self.scheduler)


@dataclass
class PromptLogits:
    """A request for the logits of a text."""

    rows: list[Any]
    asked: FakeRequest

    def answer(self) -> list[int]:
        """Wait for the end and return the likeliest token after each token of the text."""
        _, _, reason = self.asked.answer()
        assert reason == "length", reason
        return [int(row.argmax()) for rows in self.rows for row in rows]


@dataclass
class FakeRequest:
    """A request under way and its events."""

    sequence: RunningSequence
    _events: queue.SimpleQueue[Event]

    def events(self) -> list[Event]:
        """Wait for the end and return everything."""
        seen: list[Event] = []
        while not (seen and isinstance(seen[-1], Done | Failed)):
            seen.append(self._events.get(timeout=300))
        return seen

    def answer(self) -> tuple[str, list[int], str]:
        """Wait for the end and return the text, its tokens and the reason (or the error)."""
        *texts, end = self.events()
        pieces = [text for text in texts if isinstance(text, TextDelta)]
        tokens = [token for piece in pieces for token in piece.tokens]
        reason = end.reason if isinstance(end, Done) else getattr(end, "message", "")
        return "".join(piece.text for piece in pieces), tokens, reason
