"""What a graph does with values at points: it changes some, and returns some of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tampu.kvcache import Cache
from tampu.ml import Context, Tensor
from tampu.nn import LayerCache
from tampu.nn.points import Point
from tampu.runner.capture import GraphCapture
from tampu.runner.graph_shape import GraphShape
from tampu.runner.steering import GraphSteering


@dataclass(frozen=True, slots=True)
class GraphPoints:
    """The part of a graph that changes and captures values.

    Attributes:
        captured: the points whose values are returned.
        capture: returns them; None if there are none.
        steering: changes values before; None if it changes none.
    """

    captured: tuple[Point, ...]
    capture: GraphCapture | None
    steering: GraphSteering | None

    @classmethod
    def of(cls, context: Context, shape: GraphShape) -> GraphPoints:
        """Add the inputs that a graph of this shape needs for it."""
        n, steering = shape.tokens, shape.steering
        return cls(
            shape.captured,
            GraphCapture(context, n, shape.captured_rows, shape.seen) if shape.captured else None,
            GraphSteering(context, steering, n, shape.outputs) if steering.points else None,
        )

    def watch(
        self, cache: Cache, layers: Sequence[LayerCache]
    ) -> tuple[Sequence[LayerCache], list[Tensor]]:
        """Return the caches of layers with which points in them are captured, and their inputs."""
        return self.capture.watch(cache, layers, self.captured) if self.capture else (layers, [])

    @property
    def inputs(self) -> list[Tensor]:
        """Those of the capture, then those of the steering."""
        found = [*self.capture.inputs] if self.capture else []
        return found + (self.steering.inputs if self.steering else [])

    @property
    def points(self) -> frozenset[Point]:
        """Where anything is done."""
        return frozenset(self.captured) | (self.steering.points if self.steering else frozenset())

    @property
    def values(self) -> Mapping[Point, Tensor]:
        """What was captured, by point; one that the graph does not compute is missing."""
        found = self.capture.found if self.capture else {}
        return {point: found[point] for point in self.captured if point in found}

    def see(self, point: Point, value: Tensor) -> Tensor:
        """Return what takes the place of a value (tokens or outputs, features)."""
        if self.steering and point in self.steering.points:
            value = self.steering.change(point, value)
        if self.capture and point in self.captured:
            self.capture.see(point, value)
        return value
