"""ggml in a wheel: a CPU library for each kind of CPU, of which the fastest is loaded.

`make wheel` puts ggml's bindings and libraries into the folder `bundled` beside this file. Where
ggml was compiled at install time, that folder does not exist and this module does nothing.

The libraries are loaded by their full paths. They need each other by names that no other ggml has
(tools/wheel), so nothing else in the process or on the library path can stand in for one.
"""

from __future__ import annotations

import _ctypes
import ctypes
from pathlib import Path
from typing import Any

from tampu.errors import LibraryError
from tampu.ml.linking import check_symbols

BUNDLED = Path(__file__).with_name("bundled")
BASE = BUNDLED / "lib" / "libtampu-ggml-base.so"

_PREFIX = "libggml-cpu-"
_CPUINFO = Path("/proc/cpuinfo")
# ggml queries the CPU alone. Registers that the system does not save between threads (an old
# kernel, a virtual machine that hides them) must not be used; Linux does not list their flags.
_FLAGS = {"avx": "ggml_cpu_has_avx", "avx512f": "ggml_cpu_has_avx512"}


class Libraries:
    """ggml's libraries as one: the bindings look up their functions here.

    Attributes:
        variant: for which CPUs the CPU library was compiled, as ggml calls them: `zen4`.
    """

    def __init__(self, folder: Path) -> None:
        """Load the libraries of a folder and register the CPU with ggml.

        Raises:
            LibraryError: if one is missing or cannot be loaded, none is for this CPU, or
                another ggml was loaded globally, whose functions these would call.
        """
        check_symbols("this process", ctypes.CDLL(None), [folder / BASE.name])
        try:
            base = ctypes.CDLL(str(folder / BASE.name))
            ggml = ctypes.CDLL(str(folder / "libggml.so"))
            path = fastest(folder)
            cpu = ctypes.CDLL(str(path))
        except OSError as error:
            raise LibraryError(f"ggml cannot be loaded, reinstall tampu: {error}") from error
        self.variant = path.stem.removeprefix(_PREFIX)
        self._libraries = (ggml, base, cpu)
        cpu.ggml_backend_init.restype = ctypes.c_void_p
        ggml.ggml_backend_register.argtypes = (ctypes.c_void_p,)
        ggml.ggml_backend_register.restype = None
        ggml.ggml_backend_register(cpu.ggml_backend_init())

    def __getattr__(self, name: str) -> Any:  # a ctypes function
        """Return the function of this name.

        Raises:
            AttributeError: if no library has it.
        """
        for library in self._libraries:
            if hasattr(library, name):
                return getattr(library, name)
        raise AttributeError(f"ggml's libraries have no {name}")


def load_libraries() -> Libraries:
    """Load the package's libraries; its bindings call this."""
    return Libraries(BUNDLED / "lib")


def fastest(folder: Path, cpuinfo: Path = _CPUINFO) -> Path:
    """Return the CPU library with the highest of ggml's scores on this machine.

    Raises:
        LibraryError: if none runs here.
        OSError: if one cannot be loaded.
    """
    flags = _listed_flags(cpuinfo)
    scores = {path: _score(path, flags) for path in sorted(folder.glob(f"{_PREFIX}*.so"))}
    best = max(scores, key=scores.__getitem__, default=None)
    if best is None or scores[best] == 0:
        raise LibraryError(f"none of the ggml libraries in {folder} runs on this CPU")
    return best


def _score(path: Path, flags: frozenset[str]) -> int:
    """Return ggml's score of a library: the higher, the faster; 0: it does not run here."""
    library = ctypes.CDLL(str(path))
    try:
        missing = (name for flag, name in _FLAGS.items() if flags and flag not in flags)
        if any(library[name]() for name in missing):
            return 0
        return int(library.ggml_backend_score())
    finally:
        _ctypes.dlclose(library._handle)


def _listed_flags(cpuinfo: Path) -> frozenset[str]:
    """Return the flags that Linux lists for an x86 CPU; none: not known."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    found = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(found.partition(":")[2].split())
