"""`tampu list`, `cp`, `rm`: the models on this machine. No weights are opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.completion import complete_model
from tampu.cli.listing import print_list

if TYPE_CHECKING:
    from tampu.settings.settings import Settings
    from tampu.store.names import ModelName
    from tampu.store.store import Store


def list_command(
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="[PREFIX]",
            help="List only names with this prefix; case is ignored.",
            autocompletion=complete_model,
        ),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models on this machine."""
    from tampu.settings.settings import Settings

    print_list(prefix, Settings.from_environment(), as_json=json)


def copy_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="Name of an existing model.", autocompletion=complete_model
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DESTINATION", help="Name of the copy.", autocompletion=complete_model
        ),
    ],
) -> None:
    """Give a model a second name; it takes no more room."""
    from tampu.settings.settings import Settings
    from tampu.store.names import ModelName

    store, name = own_model(source, Settings.from_environment())
    store.copy(name, ModelName.parse(destination))
    print(f"copied '{source}' to '{destination}'")


def remove_command(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", autocompletion=complete_model)],
) -> None:
    """Remove models, and the files that only they had."""
    from tampu.cli.server_client import HTTPServer, unload
    from tampu.settings.settings import Settings

    settings = Settings.from_environment()
    for model in models:
        store, name = own_model(model, settings)
        unload(HTTPServer(settings), model)
        store.delete(name)
        print(f"deleted '{model}'")


def own_model(model: str, settings: Settings) -> tuple[Store, ModelName]:
    """Return the store that tampu writes to, and a model's name in it.

    Raises:
        ModelNotFoundError: if it is not there; saying where it is, if it is elsewhere.
    """
    from tampu.errors import ModelNotFoundError
    from tampu.store.library import Library
    from tampu.store.names import ModelName
    from tampu.store.store import Store

    store, name = Store(settings.models), ModelName.parse(model)
    found = store.find(name)
    if found is not None:
        return store, found
    for other in Library.from_settings(settings).listing().models:
        if other.name.lower() == name.short.lower():
            raise ModelNotFoundError(
                f"{name.short} is not in tampu's own store ({other.origin.value}) and only read; "
                f"`tampu create` with FROM {model} makes a model of it that is"
            )
    raise ModelNotFoundError(f"model {name.short!r} not found")
