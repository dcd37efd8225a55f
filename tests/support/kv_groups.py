"""Cache managers without tensors, and token keys."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.kvcache import (
    Cells,
    KVCacheGroup,
    KVCacheManager,
    KVCacheSpec,
    RecurrentGroup,
    StateSpec,
    attention_group,
)
from tampu.kvcache.checkpoints import CheckpointGrid


def keys(*values: int) -> npt.NDArray[Any]:
    return np.array(values, np.int32)


@dataclass(frozen=True, slots=True)
class GivenCheckpoints(CheckpointGrid):
    """A grid whose checkpoints a test gives before it appends tokens."""

    states: int = 1000
    given: set[int] = field(default_factory=set)

    def checkpoints(self, start: int, end: int, prompt_end: int) -> list[int]:  # noqa: ARG002
        return sorted(self.given)

    def use(self, points: Collection[int]) -> None:
        self.given.clear()
        self.given.update(points)


def group_of(
    spec: KVCacheSpec | StateSpec, cells: int, grid: CheckpointGrid | None = None
) -> KVCacheGroup:
    """Return a group; one with states has no checkpoints but those of `grid`."""
    if isinstance(spec, KVCacheSpec):
        return attention_group(spec, Cells(cells))
    return RecurrentGroup(Cells(cells), grid or GivenCheckpoints())


def manager_of(
    *specs: KVCacheSpec | StateSpec, cells: int = 64, grid: CheckpointGrid | None = None
) -> KVCacheManager:
    return KVCacheManager([group_of(spec, cells, grid) for spec in specs])
