"""Ends the process with one line where ggml's code for GPUs would abort it.

ggml's Vulkan backend throws C++ exceptions when a driver fails. They come from threads and
functions that do not catch them, so C++ ends the process; this says why before it does.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys

_EXIT_CODE = 2
_LIBRARIES = ("libstdc++.so.6", "libc++abi.dylib")
_CAUSES = {
    "DeviceLostError": "the GPU was lost while it computed, as when its driver is reset",
    "OutOfDeviceMemoryError": "the GPU has no memory left to compute: use fewer layers on it "
    "(num_gpu), or a smaller context",
    "OutOfHostMemoryError": "the GPU's driver has no memory left to compute",
}


class _TypeInfo(ctypes.Structure):
    """The beginning of C++'s `std::type_info`."""

    _fields_ = (("functions", ctypes.c_void_p), ("name", ctypes.c_char_p))


def explain_termination(prefix: str = "") -> None:
    """From now on, say why before an exception that nothing catches ends the process.

    ggml must be loaded: it says what is said until then.
    """
    library = _library()
    if library is None:
        return
    current = library.__cxa_current_exception_type
    current.restype = ctypes.POINTER(_TypeInfo)

    def end() -> None:
        found = current()
        name = readable_name((found.contents.name or b"").decode()) if found else ""
        sys.stderr.write(f"{prefix}{cause_of(name)}\n")
        sys.stderr.flush()
        os._exit(_EXIT_CODE)  # what C++ would do runs no handlers either

    handler = ctypes.CFUNCTYPE(None)(end)
    _kept.append(handler)
    library._ZSt13set_terminatePFvvE(handler)


_kept: list[object] = []  # C++ has the bare address


def cause_of(name: str) -> str:
    """Return in one line why an exception of this class has ended the process."""
    cause = _CAUSES.get(name.rpartition("::")[2], "ggml's code for the GPU has failed")
    return f"{cause} ({name or 'no C++ exception'})"


def readable_name(mangled: str) -> str:
    """Return a class's name as C++ writes it: vk::DeviceLostError of `N2vk15DeviceLostErrorE`."""
    parts, rest = [], mangled.removeprefix("N")
    while found := re.match(r"(?:St)?(\d+)", rest):
        end = found.end() + int(found[1])
        parts.append(rest[found.end() : end])
        rest = rest[end:]
    return "::".join(parts)


def _library() -> ctypes.CDLL | None:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
