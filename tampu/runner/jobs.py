"""What the loop gives the device: a batch to be computed, or an image to be embedded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tampu.errors import TampuError
from tampu.ml.backend import Computed
from tampu.runner.batch import Plan
from tampu.runner.graphs import Graphs, PreparedGraph
from tampu.runner.images import ImageStore
from tampu.runner.layout import PlacedImage
from tampu.runner.output_processor import Answers, Drawn
from tampu.runner.scheduler import Scheduler


class Job(ABC):
    """One piece of work. Its methods are called in their order; `fail` may take the place of any.

    Attributes:
        kind: what it is, in a word.
    """

    __slots__ = ()
    kind: ClassVar[str]

    @property
    @abstractmethod
    def size(self) -> int:
        """How many tokens or rows it has."""

    @property
    def tokens(self) -> int:
        """How many of these are tokens."""
        return 0

    @abstractmethod
    def prepare(self, graphs: Graphs) -> PreparedGraph:
        """Have a graph and its inputs ready, but for tokens that are being sampled.

        Raises:
            TampuError: if there can be none.
        """

    def complete(self) -> bool:
        """Fill in what is known by now; False: nobody needs it any more, and it is taken back."""
        return True

    def launched(self) -> None:  # noqa: B027 - most have nothing to note
        """Note that the device has it."""

    @abstractmethod
    def finish(self, computed: Computed, prepared: PreparedGraph) -> Drawn:
        """Take the results; return the tokens that they give."""

    def deliver(self, drawn: Drawn) -> None:  # noqa: B027 - an image has no text
        """Hand on the text of the tokens."""

    @abstractmethod
    def fail(self, error: TampuError) -> None:
        """End the sequences that cannot go on without it."""

    @abstractmethod
    def described(self) -> dict[str, object]:
        """Say what it is made of, for a trace."""


@dataclass(frozen=True, slots=True)
class BatchJob(Job):
    """A batch of tokens."""

    kind: ClassVar[str] = "batch"
    plan: Plan
    scheduler: Scheduler
    answers: Answers

    @property
    def size(self) -> int:
        """How many tokens it has."""
        return len(self.plan.inputs.tokens)

    @property
    def tokens(self) -> int:
        """How many tokens it has."""
        return self.size

    def prepare(self, graphs: Graphs) -> PreparedGraph:
        """Find or build the graph of its shape."""
        return graphs.prepare(self.plan.inputs)

    def complete(self) -> bool:
        """Fill in the tokens that were sampled since it was planned."""
        if not self.scheduler.is_needed(self.plan):
            self.scheduler.undo(self.plan)
            return False
        self.plan.fill()
        return True

    def launched(self) -> None:
        """Note who will get a token."""
        self.answers.await_tokens(self.plan)

    def finish(self, computed: Computed, prepared: PreparedGraph) -> Drawn:  # noqa: ARG002
        """Draw a token for each sequence that it gives one."""
        return self.answers.draw(self.plan, computed)

    def deliver(self, drawn: Drawn) -> None:
        """Hand on the text of the tokens, and end the sequences that are complete."""
        self.answers.deliver(self.plan, drawn)

    def fail(self, error: TampuError) -> None:
        """End all sequences, as rows are shared."""
        self.answers.fail_all(error)

    def described(self) -> dict[str, object]:
        """Say which tokens of which requests it has, and why."""
        parts = [
            {
                "request": part.sequence.number,
                "does": "reads" if part.reads else "answers",
                "from": part.start,
                "tokens": part.count,
            }
            for part in self.plan.parts
        ]
        return {"tokens": self.size, "parts": parts}


@dataclass(frozen=True, slots=True)
class ImageJob(Job):
    """An image's encoder, or one piece of it."""

    kind: ClassVar[str] = "image"
    image: PlacedImage
    images: ImageStore
    answers: Answers

    @property
    def size(self) -> int:
        """How many rows the embedding has."""
        return self.image.image.rows

    def prepare(self, graphs: Graphs) -> PreparedGraph:
        """Find or build the graph of the next piece."""
        return graphs.prepare_image(self.image.image, self.images.begun(self.image.number))

    def finish(self, computed: Computed, prepared: PreparedGraph) -> Drawn:
        """Keep the embedding, or what the next piece goes on with; it gives no token."""
        rows = np.asarray(computed.outputs[0], np.float32)
        keep = self.images.keep if prepared.is_whole else self.images.go_on
        keep(self.image.number, rows)
        return {}

    def fail(self, error: TampuError) -> None:
        """End the sequences that the image belongs to."""
        self.answers.fail_image(self.image, error)

    def described(self) -> dict[str, object]:
        """Say which image it is."""
        return {"image": self.image.number, "rows": self.size}
