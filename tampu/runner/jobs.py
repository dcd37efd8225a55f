"""Jobs for the device: computing a batch, or encoding an image or a sound."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np

from tampu.errors import OutOfMemoryError, TampuError
from tampu.ml.backend import Computed
from tampu.runner.batch import Plan
from tampu.runner.encoder_cache import EncoderCache
from tampu.runner.graph_cache import GraphCache, PreparedGraph
from tampu.runner.layout import PlacedMedia
from tampu.runner.output_processor import OutputProcessor, StepTokens
from tampu.runner.scheduler import Scheduler
from tampu.runner.watchdog import StepKind


@dataclass(frozen=True, slots=True)
class ForwardJob:
    """Computes a batch of tokens.

    The methods are called in this order; `fail` may replace any.
    """

    kind: ClassVar[StepKind] = "batch"
    plan: Plan
    scheduler: Scheduler
    outputs: OutputProcessor

    @property
    def size(self) -> int:
        """The number of its tokens."""
        return len(self.plan.inputs.tokens)

    @property
    def tokens(self) -> int:
        """The number of its tokens."""
        return self.size

    @property
    def sequences(self) -> int:
        """The number of requests that it computes tokens of."""
        return len(self.plan.parts)

    @property
    def has_drafts(self) -> bool:
        """Whether what comes next depends on how many of its tokens are right."""
        return self.plan.has_drafts

    def withdraw(self) -> bool:
        """Take back the plan if one with drafts is better, now that the tokens before are known."""
        return self.scheduler.drafts.withdraw(self.plan, self.scheduler.running)

    def prepare(self, graphs: GraphCache) -> PreparedGraph:
        """Find or build the graph of its shape.

        Raises:
            TampuError: if the graph cannot be built.
        """
        return graphs.prepare(self.plan.inputs)

    def follows(self, job: Job) -> bool:
        """Whether it needs no more of another job, which is computing, than is on the device."""
        follows = isinstance(job, ForwardJob) and self.plan.follows(job.plan)
        return follows and not self.scheduler.drafts.are_expected(self.plan)

    def fill(self, before: Job | None = None) -> bool:
        """Fill in the tokens sampled since it was planned; False: no request needs it any more.

        Args:
            before: a job that it follows, and whose tokens are not sampled yet.
        """
        if not self.scheduler.is_needed(self.plan):
            return False
        self.plan.fill(before.plan if isinstance(before, ForwardJob) else None)
        return True

    def launched(self) -> None:
        """Mark the sequences that will get a token."""
        self.outputs.await_tokens(self.plan)

    def finish(self, computed: Computed, prepared: PreparedGraph) -> StepTokens:  # noqa: ARG002
        """Sample the next tokens."""
        return self.outputs.sample(self.plan, computed)

    def measured(self, seconds: float) -> None:
        """Note the time from its launch until its tokens were sampled."""
        if not self.plan.has_drafts:
            self.scheduler.pace.computed(self.plan.parts, seconds)

    def replaced(self, seconds: float, *, is_new: bool) -> None:
        """Note the time from its launch to that of the next job.

        `is_new`: whether the graph of one of them was built for it.
        """
        self.scheduler.drafts.measured(self.plan, seconds, is_new=is_new)

    def deliver(self, sampled: StepTokens) -> None:
        """Send the text of the tokens to the callers, and end completed sequences."""
        self.outputs.deliver(self.plan, sampled)

    def fail(self, error: TampuError) -> None:
        """End all sequences, since they share rows."""
        self.outputs.fail_all(error)

    def without_capture(self, error: TampuError) -> ForwardJob | None:
        """End the sequences that capture values, whose graph does not fit into memory.

        Returns:
            The job that computes the same tokens, whose rows other sequences may share; None if
            the error is another one, or nothing is captured.
        """
        inputs = self.plan.inputs
        if not isinstance(error, OutOfMemoryError) or inputs.captured is None:
            return None
        named = OutOfMemoryError(
            "capture: there is no memory for the values of one step: capture fewer points, layers, "
            "heads or positions"
        )
        for part, own in zip(self.plan.captures, inputs.captured.parts, strict=True):
            if own.capture is part.sequence.capture:
                self.outputs.fail(part.sequence, named)
            part.sequence.watch = None
        plan = replace(self.plan, inputs=replace(inputs, captured=None), captures=[])
        return replace(self, plan=plan)

    def described(self) -> dict[str, object]:
        """Return the parts of the batch."""
        parts = [
            {
                "request": part.sequence.number,
                "phase": "prefill" if part.is_prefill else "decode",
                "from": part.start,
                "tokens": part.count,
                **({"drafts": len(part.drafts)} if part.drafts else {}),
            }
            for part in self.plan.parts
        ]
        return {"tokens": self.size, "parts": parts}


@dataclass(frozen=True, slots=True)
class EncoderJob:
    """Computes an encoder of images or sounds, or one chunk of it; see `ForwardJob`."""

    tokens: ClassVar[int] = 0
    sequences: ClassVar[int] = 0
    has_drafts: ClassVar[bool] = False
    placed: PlacedMedia
    encoder_cache: EncoderCache
    outputs: OutputProcessor

    @property
    def kind(self) -> StepKind:
        """The kind of what it encodes: image or sound."""
        return "sound" if self.placed.item.is_audio else "image"

    @property
    def size(self) -> int:
        """The number of rows of the embedding."""
        return self.placed.item.rows

    def withdraw(self) -> bool:
        """Return False: it has no drafts."""
        return False

    def prepare(self, graphs: GraphCache) -> PreparedGraph:
        """Find or build the graph of the next chunk."""
        partial = self.encoder_cache.partial(self.placed.number)
        return graphs.prepare_encoder(self.placed.item, partial)

    def follows(self, job: Job) -> bool:  # noqa: ARG002
        """Return False: it may need what the other one computes."""
        return False

    def fill(self, before: Job | None = None) -> bool:  # noqa: ARG002
        """Return True: there is nothing to fill in."""
        return True

    def launched(self) -> None:
        """Do nothing."""

    def finish(self, computed: Computed, prepared: PreparedGraph) -> StepTokens:
        """Keep the embedding, or the chunk's result; it gives no token."""
        rows = np.asarray(computed.outputs[0], np.float32)
        cache = self.encoder_cache
        keep = cache.keep if prepared.is_complete else cache.keep_partial
        keep(self.placed.number, rows)
        return {}

    def measured(self, seconds: float) -> None:
        """Do nothing: batches are not compared with encoders."""

    def replaced(self, seconds: float, *, is_new: bool) -> None:
        """Do nothing."""

    def deliver(self, sampled: StepTokens) -> None:
        """Do nothing: an embedding has no text."""

    def fail(self, error: TampuError) -> None:
        """End the sequences that contain the image or the sound."""
        self.outputs.fail_media(self.placed, error)

    def without_capture(self, error: TampuError) -> None:
        """Return None: nothing is captured."""

    def described(self) -> dict[str, object]:
        """Return the content's number and the embedding's size."""
        return {self.kind: self.placed.number, "rows": self.size}


Job: TypeAlias = ForwardJob | EncoderJob


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A job with its graph."""

    job: Job
    prepared: PreparedGraph


@dataclass(frozen=True, slots=True)
class Step:
    """A job that is computing, since a time of `time.perf_counter_ns`."""

    job: Job
    prepared: PreparedGraph
    result: Future[Computed]
    launched_ns: int

    @property
    def is_new(self) -> bool:
        """Whether its graph was built for it, so that its time says little about others."""
        return self.prepared.is_new
