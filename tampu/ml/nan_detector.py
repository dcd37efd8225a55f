"""Where unusable numbers begin: every node of every graph is looked at. For hunting faults only.

Computing is many times slower meanwhile, as ggml stops after each node.
"""

from __future__ import annotations

import logging

import numpy as np

from tampu.ml.library import OpaquePointer, TensorPointer, gg
from tampu.ml.types import GGMLType

log = logging.getLogger("tampu.ml")

_SOURCES = 3  # operands of a node that may be weights


class ValueWatch:
    """Finds the first node of a graph whose values are NaN or infinite.

    Attributes:
        found: what it is, in words; empty while all is well. It is for the owner to clear.
    """

    def __init__(self) -> None:
        self.found = ""
        self._near = "the inputs"
        # ggml keeps the bare address: hold a reference.
        self._callback = gg.ggml_backend_sched_eval_callback(self._look)

    def attach(self, scheduler: OpaquePointer) -> None:
        """Look at whatever a scheduler computes from now on."""
        gg.ggml_backend_sched_set_eval_callback(scheduler, self._callback, None)

    def _look(self, tensor: TensorPointer, is_question: bool, _user: object) -> bool:  # noqa: FBT001
        """Answer ggml's question whether to stop after a node, or look at its values."""
        if is_question:
            return not self.found
        self._near = _weight_of(tensor) or self._near
        values = _values(tensor)
        if values is not None and not np.isfinite(values).all():
            operation = gg.ggml_op_name(tensor.contents.op).decode().lower()
            self.found = f"{operation}, at or after {self._near}"
            log.error("unusable numbers begin with %s", self.found)
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
