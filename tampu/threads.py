"""Worker threads that keep running after the main thread has ended.

The executors of the standard library refuse work from then on.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_Work: TypeAlias = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class ProgramEndedError(RuntimeError):
    """All threads that the interpreter waits for have ended: nothing is begun any more."""


class Threads(Executor):
    """Threads that run functions in the order in which they were submitted.

    A program that ends without `shutdown` waits for what was submitted, as with the standard
    library's executors, but first for its own threads.
    """

    def __init__(self, count: int, name: str, begin: Callable[[], object] = lambda: None) -> None:
        """Run at most `count` functions at a time, on threads that call `begin` first."""
        self._count, self._name, self._begin = count, name, begin
        self._work: _Work = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._refusal: RuntimeError | None = None
        self._at_exit = partial(_end_program, weakref.ref(self))
        atexit.register(self._at_exit)
        weakref.finalize(self, _end, self._work, self._threads).atexit = False

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Return what the function will return.

        Raises:
            RuntimeError: after `shutdown`.
            ProgramEndedError: at the end of the program.
        """
        result: Future[R] = Future()
        with self._lock:
            if self._refusal:
                raise self._refusal
            self._work.put((result, partial(function, *args, **kwargs)))
            if len(self._threads) < self._count:
                self._add_thread()
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """End the threads, as in the standard library."""
        atexit.unregister(self._at_exit)
        self._stop(RuntimeError("the threads were shut down"), is_cancelled=cancel_futures)
        if wait:
            self._join()

    def end_program(self) -> None:
        """Refuse further work, and wait for what was submitted."""
        self._stop(ProgramEndedError("the program ends"))
        self._join()

    def _stop(self, refusal: RuntimeError, *, is_cancelled: bool = False) -> None:
        with self._lock:
            is_first, self._refusal = self._refusal is None, self._refusal or refusal
            if is_cancelled:
                _cancel(self._work)
            if is_first or is_cancelled:
                _end(self._work, self._threads)

    def _join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _add_thread(self) -> None:
        thread = threading.Thread(
            target=_run,
            args=(self._work, self._begin),
            name=f"{self._name}_{len(self._threads)}",
            daemon=True,  # the interpreter would wait for the others before it calls `end_program`
        )
        self._threads.append(thread)
        thread.start()


def _run(work: _Work, begin: Callable[[], object]) -> None:
    begin()
    while (task := work.get()) is not None:
        result, function = task
        if result.set_running_or_notify_cancel():
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                result.set_exception(error)
        del task, result, function  # what they refer to must not live until the next one


def _cancel(work: _Work) -> None:
    try:
        while True:
            if task := work.get_nowait():
                task[0].cancel()
    except Empty:
        return


def _end(work: _Work, threads: list[threading.Thread]) -> None:
    for _ in threads:
        work.put(None)


def _end_program(reference: weakref.ref[Threads]) -> None:
    if threads := reference():
        threads.end_program()
