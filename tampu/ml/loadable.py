"""ggml's backends for GPUs as libraries of their own, loaded where the system has what they need.

A wheel brings Vulkan's in the folder `backends` beside ggml's other libraries, and so serves
machines with and without a GPU; CUDA's is a package of its own (`cuda.py`). One that cannot be used
is left out, with the reason.
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
from tampu.ml import backend_trial, cuda
from tampu.ml.backend_trial import FOUND_NONE
from tampu.ml.cuda import CudaCard, CudaPackage, Reason
from tampu.ml.linking import check_symbols
from tampu.threads import Threads

log = logging.getLogger("tampu.ml")

_FILES = "libggml-*.so"
_PROBE_S = 30.0
NO_DRIVER = "it found no driver that it can use"


@dataclass(frozen=True, slots=True)
class LoadableBackend:
    """A backend that was loaded, or why it was not.

    Attributes:
        name: as ggml calls its library: `vulkan`.
        file: the library.
        problem: why it is not in use; empty: it is.
        command: which mends it, where that is known.
        cards: for CUDA, in ggml's order of its devices.
    """

    name: str
    file: Path
    problem: str = ""
    command: str = ""
    cards: tuple[CudaCard, ...] = ()

    @property
    def may_start(self) -> bool:
        """Whether its drivers may be started in this process, as they were in the trial."""
        return self.problem in ("", NO_DRIVER)


def begin_loading(
    folder: Path,
    base: Path,
    register: Callable[[int], object],
    package: CudaPackage | None = None,
) -> Future[tuple[LoadableBackend, ...]]:
    """Begin `load_backends` on a thread; where there are no libraries none is needed."""
    if package is None and not any(folder.glob(_FILES)):
        none: Future[tuple[LoadableBackend, ...]] = Future()
        none.set_result(())
        return none
    loader = Threads(1, "tampu-backends")
    loading = loader.submit(load_backends, folder, base, register, package)
    loader.shutdown(wait=False)  # the thread ends with its work
    return loading


def load_backends(
    folder: Path,
    base: Path,
    register: Callable[[int], object],
    package: CudaPackage | None = None,
) -> tuple[LoadableBackend, ...]:
    """Load the backends that can be used here.

    Args:
        folder: with libraries `libggml-NAME.so`; it need not exist.
        base: ggml's base, which is loaded and which they use.
        register: ggml's function that adds a backend's registry.
        package: with CUDA's backend; the folder's own takes its place.
    """
    files = sorted(folder.glob(_FILES))
    if package is not None and package.library.name not in {file.name for file in files}:
        files = [package.library, *files]
    found = []
    for file in files:
        owner = package if package is not None and file == package.library else None
        backend = _load(file, base, register, owner)
        found.append(backend)
        problem = backend.problem
        log.info("backends: %s is %s", file, f"not used: {problem}" if problem else "loaded")
    return tuple(found)


def _load(
    file: Path, base: Path, register: Callable[[int], object], package: CudaPackage | None
) -> LoadableBackend:
    """Load and register a library, unless something is against it."""
    name = file.stem.removeprefix("libggml-")
    is_cuda = name == cuda.NAME

    def refused(reason: Reason, cards: tuple[CudaCard, ...] = ()) -> LoadableBackend:
        return LoadableBackend(name, file, reason.problem, reason.command, cards)

    if is_cuda and (against := cuda.problem_before(package, base)):
        return refused(against)
    try:
        library = ctypes.CDLL(str(file))
        check_symbols(str(file), library, [base])
    except (OSError, LibraryError) as error:
        return refused(Reason(str(error), cuda.REINSTALL if package else ""))
    trial = _try_in_another_process(file, base)
    against, cards = cuda.judge(package, trial.output) if is_cuda else (None, ())
    if not against and (problem := trial.problem):
        against = Reason(f"{problem}: {trial.error}" if is_cuda and trial.error else problem, "")
    if against:
        return refused(against, cards)
    library.ggml_backend_init.restype = ctypes.c_void_p
    registry = library.ggml_backend_init()
    if not registry:
        return refused(Reason(NO_DRIVER, ""))
    register(registry)
    for number, card in enumerate(cards):
        if card.reason:
            log.warning("CUDA.%d is not used: %s", number, card.reason.problem)
    return LoadableBackend(name, file, cards=cards)


@dataclass(frozen=True, slots=True)
class _Trial:
    """What starting a backend in another process came to.

    Attributes:
        output: what it wrote.
        error: the last line that it wrote to standard error.
        problem: what is against the backend; empty: nothing is.
    """

    output: str = ""
    error: str = ""
    problem: str = ""


def _try_in_another_process(file: Path, base: Path) -> _Trial:
    """Start the backend in another process, which a broken driver may end or stop."""
    if not sys.executable:
        return _Trial()
    command = [sys.executable, "-I", "-S", backend_trial.__file__, str(file), str(base)]
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=_PROBE_S, errors="replace", text=True
        )
    except subprocess.TimeoutExpired:
        return _Trial(problem=f"the driver did not start within {_PROBE_S:.0f} s")
    except OSError as error:
        log.debug("backends: %s was not tried in another process: %s", file, error)
        return _Trial()
    last = done.stderr.strip().rpartition("\n")[2]
    return _Trial(done.stdout, last, _problem_of(done.returncode))


def _problem_of(code: int) -> str:
    """Return what is against a backend whose trial ended with this exit code."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"the driver ends the process with {name}"
    if code == FOUND_NONE:  # here it would write to standard error why
        return NO_DRIVER
    return f"exit code {code} when it was tried" if code else ""
