"""A submitted graph, and the measured overhead of computing graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.ml.context import Context
from tampu.ml.tensor import Tensor


@dataclass(slots=True, eq=False)
class Work:
    """A graph to compute.

    Attributes:
        context, inputs, outputs: as for `Backend.submit`.
        is_written: whether its inputs are, or could not be.
        began_ns: when ggml began, of `time.perf_counter_ns`; 0: not yet.
        status: of ggml, if it began to compute the graph without waiting for its end.
        results: where the outputs will be then; None: they are still to be copied.
        error: why it could not begin.
    """

    context: Context
    inputs: Sequence[tuple[Tensor, npt.NDArray[np.generic]]]
    outputs: Sequence[Tensor]
    is_written: bool = False
    began_ns: int = 0
    status: int = 0
    results: list[npt.NDArray[Any]] | None = None
    error: Exception | None = None


@dataclass(slots=True)
class TransferCounts:
    """What a backend has done besides computing.

    Attributes:
        plans: how often memory was found for the tensors of a graph.
        bytes_written: of inputs, to the memory of devices.
        bytes_read: of outputs, from there.
        bytes_pinned: of both, from or to memory that a device copies by itself.
        waits: for GPUs: each input written there, copy between devices, end of a graph's part that
            is waited for, and output read.
    """

    plans: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    bytes_pinned: int = 0
    waits: int = 0
