"""The model that answers: loaded when it is needed, changed, put away when it rests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tampu.cli.repl.backend import Known
from tampu.engine.chat import Backend, RequestBuilder
from tampu.errors import OutOfMemoryError


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model is loaded with; None: as it comes.

    Attributes:
        context: its length in tokens.
        threads: of the processor.
        layers: that go to other devices; below 0: as many as fit.
        main: the device that takes them first.
        mapped: whether weights are used in the mapped file.
    """

    context: int | None = None
    threads: int | None = None
    layers: int | None = None
    main: int | None = None
    mapped: bool | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory.

    Attributes:
        model: the engine.
        requests: builds its requests.
        close: frees it.
    """

    model: Backend
    requests: RequestBuilder
    close: Callable[[], None]


class Shelf(Protocol):
    """Where models come from."""

    def find(self, name: str) -> Known:
        """Return what is known of a model. Raises ModelNotFoundError, ModelFileError."""
        ...

    def load(self, known: Known, needs: Needs) -> Loaded:
        """Load a model. Raises TampuError."""
        ...


class Desk:
    """Holds one model at most; the conversation's thread uses it, a timer puts it away.

    Attributes:
        known: the model that is meant, in memory or not.
    """

    def __init__(
        self,
        shelf: Shelf,
        known: Known,
        keep_s: float | None = None,
        timer: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer,
    ) -> None:
        """Mean a model; it is loaded when it is asked for.

        Args:
            shelf: where models come from.
            known: the model.
            keep_s: how long it stays in memory with nobody asking it; None: as long as this lasts.
            timer: makes what calls a function after so many seconds, on a thread of its own.
        """
        self.known = known
        self._shelf = shelf
        self._keep_s = keep_s
        self._loaded: tuple[Loaded, Needs] | None = None
        self._lock = threading.Lock()
        self._make_timer = timer
        self._timer: threading.Timer | None = None
        self._load_ns = 0

    @contextmanager
    def model(self, needs: Needs) -> Iterator[Loaded]:
        """Lend the model; it is loaded first if it is not in memory, or was for other needs.

        Raises:
            TampuError: when it cannot be loaded.
        """
        with self._lock:
            self._stop_timer()
            if self._loaded is None or self._loaded[1] != needs:
                self._put_away()
                self._loaded = self._load(self.known, needs), needs
            try:
                yield self._loaded[0]
            finally:
                self._rest()

    def change(self, name: str, needs: Callable[[Known], Needs]) -> Known:
        """Mean another model, and load it; if that fails all is as it was.

        The model of before stays in memory meanwhile, unless there is no room for both.

        Raises:
            TampuError: when it cannot be loaded.
        """
        known = self._shelf.find(name)
        wanted = needs(known)
        with self._lock:
            self._stop_timer()
            try:
                loaded = self._load(known, wanted)
            except OutOfMemoryError:
                if self._loaded is None:
                    raise
                self._put_away()  # it comes back with the next question, if this fails too
                loaded = self._load(known, wanted)
            self._put_away()
            self._loaded, self.known = (loaded, wanted), known
            self._rest()
        return known

    def take_load_ns(self) -> int:
        """Return how long loading took since this was asked last, in nanoseconds."""
        taken, self._load_ns = self._load_ns, 0
        return taken

    def close(self) -> None:
        """Put the model away."""
        with self._lock:
            self._stop_timer()
            self._put_away()

    def _load(self, known: Known, needs: Needs) -> Loaded:
        began = time.monotonic_ns()
        loaded = self._shelf.load(known, needs)
        self._load_ns += time.monotonic_ns() - began
        return loaded

    def _rest(self) -> None:
        if self._keep_s is None or self._loaded is None:
            return
        if self._keep_s <= 0:
            self._put_away()
            return
        self._timer = self._make_timer(self._keep_s, self.close)
        self._timer.daemon = True
        self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _put_away(self) -> None:
        if self._loaded is not None:
            self._loaded[0].close()
        self._loaded = None
