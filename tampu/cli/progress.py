"""The progress of long tasks on standard error: bars on a terminal, else lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from tampu.cli.table import human_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from tampu.store.registry.progress import Progress


@contextmanager
def progress_bar(
    text: str, *, of_bytes: bool = True
) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar; yield a function of what is done and the total, None without a terminal.

    `of_bytes`: both are sizes in bytes; else they are counts.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with _bars(of_bytes=of_bytes) as bars:
        task = bars.add_task(text, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def show_progress(steps: Iterable[Progress]) -> None:
    """Show the steps of a transfer."""
    with step_progress() as report:
        for step in steps:
            report(step)


@contextmanager
def step_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows a step: a bar if its size is known, else a line."""
    tasks: dict[str, TaskID] = {}
    last = ""
    with _bars() if sys.stderr.isatty() else nullcontext() as bars:

        def show(step: Progress) -> None:
            nonlocal last
            if bars is not None and step.total:
                if step.status not in tasks:
                    tasks[step.status] = bars.add_task(step.status, total=step.total)
                bars.update(tasks[step.status], completed=step.completed)
            elif step.status != last:
                size = f" ({human_bytes(step.total)})" if step.total else ""
                print(step.status + size, file=sys.stderr, flush=True)
            last = step.status

        yield show


def _bars(*, of_bytes: bool = True) -> Bars:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        TextColumn("{task.percentage:>3.0f}%"),
        BarColumn(),
        *((DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
