"""`tampu export` and `tampu import`: a model as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tampu.cli.completion import complete_model
from tampu.cli.table import human_bytes


def export_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", autocompletion=complete_model)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write (default: MODEL-TAG.tar)."
        ),
    ] = None,
) -> None:
    """Write a model into one file, to carry it to another machine."""
    from tampu.cli.models import own_model
    from tampu.cli.progress import progress_bar
    from tampu.settings.settings import Settings
    from tampu.store.archive import export_model

    store, name = own_model(model, Settings.from_environment())
    path = output or Path(f"{name.model}-{name.tag}.tar")
    with progress_bar(f"exporting {model}") as progress:
        export_model(store, name, path, progress)
    print(f"{path}: {human_bytes(path.stat().st_size)}")


def import_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `tampu export` wrote.")],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="MODEL", help="Name of the model (default: as in the file)."
        ),
    ] = None,
) -> None:
    """Bring a model from a file that was exported into the store."""
    from tampu.cli.progress import progress_bar
    from tampu.settings.settings import Settings
    from tampu.store.archive import import_model
    from tampu.store.names import ModelName
    from tampu.store.store import Store

    store = Store(Settings.from_environment().models)
    chosen = ModelName.parse(name) if name else None
    with progress_bar(f"importing {file.name}") as progress:
        model = import_model(store, file, chosen, progress)
    print(f"imported '{model.name.short}'")
