"""The arguments and options that several commands have, and how the shell completes them.

Completion never fails and never warns.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tampu.errors import SettingsError, TampuError
from tampu.settings.settings import ENGINES, Settings
from tampu.store.library import Library


def complete_model(incomplete: str) -> list[str]:
    """Return the names of local models with this prefix, also without the tag `:latest`."""
    try:
        models = Library.from_settings(Settings.from_environment()).listing().models
    except TampuError:
        return []
    names = {model.name for model in models} | {m.name.removesuffix(":latest") for m in models}
    return sorted(name for name in names if name.lower().startswith(incomplete.lower()))


def complete_type(incomplete: str) -> list[str]:
    """Return the weight types with this prefix, in its case."""
    from tampu.convert.quant_mix import FILE_TYPES

    names = [name for name in FILE_TYPES if name.startswith(incomplete.upper())]
    return [name.lower() for name in names] if incomplete.islower() else names


def check_engine(engine: str | None) -> str | None:
    """Return the name of an engine.

    Raises:
        SettingsError: if it is unknown.
    """
    if engine not in (None, *ENGINES):
        raise SettingsError(f"--engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
    return engine


def model_argument(metavar: str, text: str) -> Any:
    """Return an argument that completes the names of models."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete_model)


StoredModel = Annotated[str, model_argument("MODEL", "Name of a model.")]
ModelOrFile = Annotated[str, model_argument("MODEL", "Name of a model, or path of a GGUF file.")]
NamePrefix = Annotated[
    str, model_argument("PREFIX", "List only names with this prefix; case is ignored.")
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=512, help="Number of CPU threads (default: one per core)."),
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="Engine: auto, native or llamacpp (default: TAMPU_ENGINE).", callback=check_engine
    ),
]
TensorTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--tensor-type",
        metavar="PATTERN=TYPE",
        help="Type of the tensors whose name matches; the first match wins.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow HTTP without TLS, and private networks.")
]
