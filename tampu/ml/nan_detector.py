"""Finds the first node of a graph whose result is NaN or infinite, for debugging.

Computing is many times slower with it, since ggml stops after each node.
"""

from __future__ import annotations

import logging

import numpy as np

from tampu.ml.library import OpaquePointer, TensorPointer, gg
from tampu.ml.types import GGMLType

log = logging.getLogger("tampu.ml")

_SOURCES = 3  # operands of a node that may be weights


class NaNDetector:
    """Finds the first node of a graph whose values are NaN or infinite.

    Attributes:
        found: the operation and the weight that it used or that preceded it; empty if there is no
            such node. The owner resets it.
    """

    def __init__(self) -> None:
        self.found = ""
        self._last_weight = "the inputs"
        # ggml keeps the bare address: hold a reference.
        self._callback = gg.ggml_backend_sched_eval_callback(self._check)

    def attach(self, scheduler: OpaquePointer) -> None:
        """Check everything that a scheduler computes from now on."""
        gg.ggml_backend_sched_set_eval_callback(scheduler, self._callback, None)

    def _check(self, tensor: TensorPointer, is_question: bool, _user: object) -> bool:  # noqa: FBT001
        """Return whether ggml must stop after a node, or check that node's values."""
        if is_question:
            return not self.found
        self._last_weight = _weight_of(tensor) or self._last_weight
        values = _values(tensor)
        if values is not None and not np.isfinite(values).all():
            operation = gg.ggml_op_name(tensor.contents.op).decode().lower()
            self.found = f"{operation}, at or after {self._last_weight}"
            log.error("first NaN or Inf in %s", self.found)
        return True


def _weight_of(tensor: TensorPointer) -> str:
    """Return the name of the weight that a node uses; empty if it uses none."""
    for index in range(_SOURCES):
        source = tensor.contents.src[index]
        if source and source.contents.name.endswith(b".weight"):
            return str(source.contents.name.decode())
    return ""


def _values(tensor: TensorPointer) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None:
    header = tensor.contents
    if header.type != GGMLType.F32 or not header.data or not gg.ggml_is_contiguous(tensor):
        return None
    values = np.empty(int(gg.ggml_nelements(tensor)), np.float32)
    gg.ggml_backend_tensor_get(tensor, values.ctypes.data, 0, values.nbytes)
    return values
