"""Packed activations, which several products of a graph share."""

from __future__ import annotations

from dataclasses import dataclass

from tampu.ml.library import TensorPointer


@dataclass(slots=True)
class Activations:
    """Packed activations in a graph, and how many products use them."""

    pointer: TensorPointer
    uses: int = 0

    def take_counter(self) -> int:
        """Return the number of the counter for one more product."""
        self.uses += 1
        return self.uses - 1
