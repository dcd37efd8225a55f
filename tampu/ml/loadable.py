"""ggml's backends for GPUs as libraries of their own, loaded where the system has what they need.

A wheel brings Vulkan's in the folder `backends` beside ggml's other libraries, and so serves
machines with and without a GPU. One that cannot be used is left out, with the reason.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from tampu.errors import LibraryError
from tampu.ml.linking import check_symbols
from tampu.threads import Threads

log = logging.getLogger("tampu.ml")

_FILES = "libggml-*.so"
_FOUND_NONE = 77
_PROBE = f"""\
import ctypes, sys
start = ctypes.CDLL(sys.argv[1]).ggml_backend_init
start.restype = ctypes.c_void_p
sys.exit(0 if start() else {_FOUND_NONE})
"""
_PROBE_S = 30.0
NO_DRIVER = "it found no driver that it can use"


@dataclass(frozen=True, slots=True)
class LoadableBackend:
    """A backend that was loaded, or why it was not.

    Attributes:
        name: as ggml calls its library: `vulkan`.
        file: the library.
        problem: why it is not in use; empty: it is.
    """

    name: str
    file: Path
    problem: str = ""

    @property
    def may_start(self) -> bool:
        """Whether its drivers may be started in this process, as they were in the trial."""
        return self.problem in ("", NO_DRIVER)


def begin_loading(
    folder: Path, base: Path, register: Callable[[int], object]
) -> Future[tuple[LoadableBackend, ...]]:
    """Begin `load_backends` on a thread; a folder without libraries needs none."""
    if not any(folder.glob(_FILES)):
        none: Future[tuple[LoadableBackend, ...]] = Future()
        none.set_result(())
        return none
    loader = Threads(1, "tampu-backends")
    loading = loader.submit(load_backends, folder, base, register)
    loader.shutdown(wait=False)  # the thread ends with its work
    return loading


def load_backends(
    folder: Path, base: Path, register: Callable[[int], object]
) -> tuple[LoadableBackend, ...]:
    """Load the backends of a folder that can be used here.

    Args:
        folder: with libraries `libggml-NAME.so`; it need not exist.
        base: ggml's base, which is loaded and which they use.
        register: ggml's function that adds a backend's registry.
    """
    found = []
    for file in sorted(folder.glob(_FILES)):
        name = file.stem.removeprefix("libggml-")
        problem = _load(file, base, register)
        found.append(LoadableBackend(name, file, problem))
        log.info("backends: %s is %s", file, f"not used: {problem}" if problem else "loaded")
    return tuple(found)


def _load(file: Path, base: Path, register: Callable[[int], object]) -> str:
    """Load and register a library; return what is against it."""
    try:
        library = ctypes.CDLL(str(file))
        check_symbols(str(file), library, [base])
    except (OSError, LibraryError) as error:
        return str(error)
    if problem := _problem_of_driver(file):
        return problem
    library.ggml_backend_init.restype = ctypes.c_void_p
    registry = library.ggml_backend_init()
    if not registry:
        return NO_DRIVER
    register(registry)
    return ""


def _problem_of_driver(file: Path) -> str:
    """Start the backend in another process, which a broken driver may end or stop."""
    if not sys.executable:
        return ""
    command = [sys.executable, "-I", "-S", "-c", _PROBE, str(file)]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_PROBE_S)
    except subprocess.TimeoutExpired:
        return f"the driver did not start within {_PROBE_S:.0f} s"
    except OSError as error:
        log.debug("backends: %s was not tried in another process: %s", file, error)
        return ""
    if done.returncode < 0:
        number = -done.returncode
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"the driver ends the process with {name}"
    if done.returncode == _FOUND_NONE:  # here it would write to standard error why
        return NO_DRIVER
    return f"exit code {done.returncode} when it was tried" if done.returncode else ""
