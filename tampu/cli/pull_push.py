"""`tampu pull` and `tampu push`: models from registries and to them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.completion import complete_model
from tampu.errors import ModelNameError, ModelNotFoundError, RegistryError
from tampu.settings.parsers import existing_path

if TYPE_CHECKING:
    from tampu.settings.settings import Settings
    from tampu.store.names import ModelName
    from tampu.store.registry.options import RemoteOptions
    from tampu.store.registry.progress import Progress

Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow HTTP without TLS, and private networks.")
]
LimitRate = Annotated[
    str | None, typer.Option(metavar="RATE", help="Maximum rate in bytes per second, such as 10MB.")
]


def pull_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model name, such as llama3.2:1b or hf.co/user/repo:Q4_K_M.",
            autocompletion=complete_model,
        ),
    ],
    insecure: Insecure = False,
    limit_rate: LimitRate = None,
) -> None:
    """Bring a model from a registry or from Hugging Face's hub to this machine."""
    from tampu.settings.settings import Settings
    from tampu.store.registry.pull import pull
    from tampu.store.store import Store

    settings = Settings.from_environment()
    name, options = _remote(model, settings, insecure, limit_rate)
    show_progress(pull(Store(settings.models), name, options))


def push_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", autocompletion=complete_model)],
    insecure: Insecure = False,
    limit_rate: LimitRate = None,
) -> None:
    """Give a model to the registry that its name says."""
    from tampu.cli.models import own_model
    from tampu.settings.settings import Settings
    from tampu.store.registry.push import push

    settings = Settings.from_environment()
    name, options = _remote(model, settings, insecure, limit_rate)
    show_progress(push(own_model(model, settings)[0], name, options))
    print(f"{model} is at {options.base_of(name)}/{name.repository}", file=sys.stderr)


def pull_if_missing(model: str, settings: Settings, insecure: bool) -> None:
    """Pull a model that is not on this machine, showing how far it is; nothing is done for a path.

    Raises:
        ModelNotFoundError: if it is neither here nor to be had, and why not.
        TampuError: as `pull`.
    """
    from tampu.store.gguf_files import SUFFIX
    from tampu.store.library import Library
    from tampu.store.store import Store

    if existing_path(model) is not None:
        return
    try:
        Library.from_settings(settings).find(model)
    except ModelNotFoundError as missing:
        if model.endswith(SUFFIX) or model.startswith((".", "/", "~")):
            raise ModelNotFoundError(f"{model}: no such file") from None
        from tampu.store.registry.pull import pull  # slow to import, and seldom needed

        try:
            name, options = _remote(model, settings, insecure, None)
            show_progress(pull(Store(settings.models), name, options))
        except (RegistryError, ModelNameError) as error:
            raise ModelNotFoundError(f"{missing}; it cannot be pulled: {error}") from error


def show_progress(steps: Iterable[Progress]) -> None:
    """Show a transfer on standard error: bars if someone watches, else a line for each step."""
    if sys.stderr.isatty():
        _show_bars(steps)
    else:
        _show_lines(steps)


def _show_lines(steps: Iterable[Progress]) -> None:
    from tampu.cli.table import human_bytes

    last = ""
    for step in steps:
        if step.status != last:
            size = f" ({human_bytes(step.total)})" if step.total else ""
            print(step.status + size, file=sys.stderr, flush=True)
            last = step.status


def _show_bars(steps: Iterable[Progress]) -> None:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        TextColumn("{task.percentage:>3.0f}%"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=Console(stderr=True)) as bars:
        for step in steps:
            if not step.digest:
                bars.console.print(step.status, highlight=False)
                continue
            if step.digest not in tasks:
                tasks[step.digest] = bars.add_task(step.status, total=step.total)
            bars.update(tasks[step.digest], completed=step.completed)


def _remote(
    model: str, settings: Settings, insecure: bool, limit_rate: str | None
) -> tuple[ModelName, RemoteOptions]:
    from tampu.settings.parsers import parse_rate
    from tampu.store.names import ModelName
    from tampu.store.registry.options import RemoteOptions

    try:
        rate = parse_rate(limit_rate) if limit_rate else None
    except ValueError as error:
        raise typer.BadParameter(f"--limit-rate {limit_rate}: {error}") from error
    options = RemoteOptions.from_settings(settings, is_insecure=insecure, limit_rate=rate)
    return ModelName.parse(model), options
