"""The ggml library: its bindings with corrections, and its log.

Everything in `ml/` takes `gg` from here, so that the corrections always hold. Pointers that ggml
keeps opaque are integers; tensors and graphs are ctypes pointers.
"""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from tampu.ml.cuda import find_package
from tampu.ml.linking import check_bindings, find_libraries, link
from tampu.ml.loadable import LoadableBackend, begin_loading
from tampu.ml.variants import BASE, BUNDLED, Libraries

if TYPE_CHECKING or not BUNDLED.is_dir():
    _base, *_others = find_libraries()
    link((_base, *_others))  # before the bindings, which would take what the linker finds first
    import ggml.ggml as gg
else:  # a wheel brings its own
    from tampu.ml.bundled import ggml as gg

    _base = BASE

check_bindings(gg, _base)

__all__ = [
    "VARIANT",
    "GraphPointer",
    "OpaquePointer",
    "TensorPointer",
    "gg",
    "loaded_backends",
]

TensorPointer: TypeAlias = Any  # ctypes pointer to a ggml_tensor; the bindings do not type it
GraphPointer: TypeAlias = Any
OpaquePointer: TypeAlias = int

VARIANT: str = gg.lib.variant if isinstance(gg.lib, Libraries) else "native"
"""For which CPUs ggml's CPU library was compiled: as ggml calls them, or for this one."""

log = logging.getLogger("tampu.ml")

# These return pointers, but the bindings declare a 32-bit int: the upper half would be lost.
for _name in (
    "ggml_backend_alloc_buffer",
    "ggml_backend_cpu_buffer_from_ptr",
    "ggml_backend_cpu_buffer_type",
    "ggml_backend_sched_get_tensor_backend",
    "ggml_backend_vk_buffer_type",
    "ggml_backend_vk_host_buffer_type",
):
    if _name in vars(gg):
        vars(gg)[_name].restype = ctypes.c_void_p

_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}


def _forward_log(level: int, text: bytes, _user: object) -> None:
    """Pass one line of ggml's own log on to Python's logging (5 continues the line before)."""
    log.log(_LEVELS.get(level, logging.DEBUG), "%s", text.decode("utf-8", "replace").rstrip())


_log_callback = gg.ggml_log_callback(_forward_log)  # ggml keeps the bare address: hold a reference
gg.ggml_log_set(_log_callback, None)

_loading = begin_loading(
    _base.with_name("backends"), _base, gg.ggml_backend_register, find_package()
)


def loaded_backends() -> tuple[LoadableBackend, ...]:
    """Return ggml's backends in libraries of their own; before that its list is not complete.

    They are loaded beside what else a program imports, since starting a driver takes a while.
    """
    return _loading.result()
