"""`tampu list`, `cp`, `rm`, `export` and `import`: the models on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tampu.cli.arguments import AsJSON, NamePrefix, StoredModel, model_argument
from tampu.cli.listing import print_list
from tampu.cli.table import human_bytes
from tampu.errors import ModelNotFoundError
from tampu.settings.settings import Settings
from tampu.store.library import Library
from tampu.store.names import ModelName
from tampu.store.store import Store


def list_command(prefix: NamePrefix = "", json: AsJSON = False) -> None:
    """List the models on this machine."""
    print_list(prefix, Settings.from_environment(), as_json=json)


def copy_command(
    source: Annotated[str, model_argument("SOURCE", "Name of an existing model.")],
    destination: Annotated[str, model_argument("DESTINATION", "Name of the copy.")],
) -> None:
    """Give a model a second name.

    This takes no disk space: files that are not in tampu's store stay where they are.
    """
    from tampu.store.create import copy_model

    copy_model(Library.from_settings(Settings.from_environment()), source, destination)
    print(f"copied '{source}' to '{destination}'")


def remove_command(
    models: Annotated[list[str], model_argument("MODEL", "Names of models.")],
) -> None:
    """Remove models, and the files that no other model uses."""
    from tampu.cli.server_client import HTTPServer, unload

    settings = Settings.from_environment()
    found = [stored_model(model, settings) for model in models]  # all are there, or none is removed
    for model, (store, name) in zip(models, found, strict=True):
        unload(HTTPServer(settings), model)
        store.delete(name)
        print(f"deleted '{model}'")


def export_command(
    model: StoredModel,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write (default: MODEL-TAG.tar)."
        ),
    ] = None,
) -> None:
    """Write a model to one file, to copy it to another machine."""
    from tampu.cli.progress import progress_bar
    from tampu.store.archive import export_model

    store, name = stored_model(model, Settings.from_environment())
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
    """Add a model from an exported file."""
    from tampu.cli.progress import progress_bar
    from tampu.store.archive import import_model, name_in

    store = Store(Settings.from_environment().models)
    chosen = ModelName.parse(name) if name else None
    _ask_to_replace(store, chosen or name_in(store, file))
    with progress_bar(f"importing {file.name}") as progress:
        model = import_model(store, file, chosen, progress)
    print(f"imported '{model.name.short}'")


def _ask_to_replace(store: Store, name: ModelName) -> None:
    """Ask whether a model is replaced; without a terminal it is, and a line says so."""
    if store.find(name) is None:
        return
    if sys.stdin is not None and sys.stdin.isatty():
        typer.confirm(f"There is a model {name.short!r}. Replace it?", abort=True, err=True)
    else:
        print(f"{name.short!r} is replaced", file=sys.stderr)


def stored_model(model: str, settings: Settings) -> tuple[Store, ModelName]:
    """Return the store that tampu writes to, and a model's name in it.

    Raises:
        ModelNotFoundError: if it is not there; the message says if it is elsewhere.
    """
    store, name = Store(settings.models), ModelName.parse(model)
    found = store.find(name)
    if found is not None:
        return store, found
    Library.from_settings(settings).check_own(name)
    raise ModelNotFoundError(f"model {model!r} not found")
