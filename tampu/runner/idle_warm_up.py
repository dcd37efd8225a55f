"""Batches that loading has left to compute: GPUs do so while there is nothing else to do."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from tampu.errors import DeviceLostError, TampuError
from tampu.kvcache import KVCacheManager
from tampu.runner.graph_cache import GraphCache, WarmUpBatch

log = logging.getLogger("tampu.runner")

REST_S = 1.0
"""Without a step for so long: the first request often comes right after loading."""


class IdleWarmUp:
    """The batches that are left; used on the run loop's thread."""

    def __init__(
        self,
        graphs: GraphCache,
        manager: KVCacheManager,
        outputs: int,
        left: Iterable[WarmUpBatch] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start to rest.

        Args:
            graphs: that compute them.
            manager: of the cache, of which they overwrite one cell.
            outputs: at most, of a batch that returns all logits.
            left: the batches.
            clock: the time in seconds.
        """
        self._graphs = graphs
        self._manager = manager
        self._outputs = outputs
        self._left = deque(left)
        self._clock = clock
        self._since_s = clock()

    def rest(self) -> None:
        """Wait again before the next one."""
        self._since_s = self._clock()

    def next(self) -> WarmUpBatch | None:
        """Return the next batch; None: none is left, or no cell of the cache can be spared now."""
        can_spare = all(group.cells.available for group in self._manager.groups)
        return self._left[0] if self._left and can_spare else None

    @property
    def seconds(self) -> float:
        """How long to wait for requests before the next batch."""
        return max(self._since_s + REST_S - self._clock(), 0.0)

    def compute(self) -> None:
        """Compute the next batch; nothing may be in flight.

        If it fails, none is left: a step of this kind will tell.

        Raises:
            DeviceLostError: if a device was lost.
        """
        batch = self._left.popleft()
        cells = [group.cells.spare() for group in self._manager.groups]
        try:
            self._graphs.warm_up([batch], self._outputs, cells=cells)
        except DeviceLostError:
            raise
        except TampuError as error:
            log.warning("devices: a batch of %d tokens ahead of time: %s", batch.tokens, error)
            self._left.clear()
