"""`tampu list`, `cp`, `rm`: the models on this machine. No weights are opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.completion import complete_model
from tampu.cli.listing import print_list

if TYPE_CHECKING:
    from tampu.store.store import Store


def list_command(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Of the names; case does not matter.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models on this machine."""
    print_list(prefix, as_json=json)


def copy_command(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A model.", autocompletion=complete_model)
    ],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="Its second name.")],
) -> None:
    """Give a model a second name; it takes no more room."""
    from tampu.store.names import ModelName

    own_store().copy(ModelName.parse(source), ModelName.parse(destination))
    print(f"copied '{source}' to '{destination}'")


def remove_command(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", autocompletion=complete_model)],
) -> None:
    """Remove models, and the files that only they had."""
    from tampu.cli.local_server import unload
    from tampu.errors import ModelNotFoundError
    from tampu.store.names import ModelName

    store = own_store()
    for model in models:
        name = ModelName.parse(model)
        if store.find(name) is None:
            raise ModelNotFoundError(f"model {name.short!r} not found")
        unload(model)
        store.delete(name)
        print(f"deleted '{model}'")


def own_store() -> Store:
    """Return the store that tampu writes to."""
    from tampu.settings import Settings
    from tampu.store.store import Store

    return Store(Settings.from_environment().models)
