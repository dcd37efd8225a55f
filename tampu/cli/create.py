"""`tampu create`: a model from a Modelfile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.arguments import model_argument
from tampu.cli.completion import complete_type
from tampu.cli.progress import step_progress
from tampu.cli.pulling import pull_if_missing
from tampu.cli.standard_input import is_standard_input, read_file_or_input
from tampu.errors import RequestError
from tampu.settings.settings import Settings
from tampu.store.library import Library
from tampu.store.names import ModelName

if TYPE_CHECKING:
    from tampu.store.create import CreateSpec
    from tampu.store.registry.progress import Progress

_DEFAULT = "Modelfile"


def create_command(
    name: Annotated[str, model_argument("NAME", "Name of the new model.")],
    file: Annotated[
        Path, typer.Option("--file", "-f", help="Path of the Modelfile; - reads standard input.")
    ] = Path(_DEFAULT),
    quantize: Annotated[
        str | None,
        typer.Option(
            "--quantize",
            "-q",
            metavar="TYPE",
            help="Quantize to this type, such as Q4_K_M.",
            autocompletion=complete_type,
        ),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Use GGUF files where they are, without copying.")
    ] = False,
    allow_unknown: Annotated[
        bool,
        typer.Option(
            "--allow-unknown",
            help="Convert a checkpoint's folder although one of its files has an unknown setting.",
        ),
    ] = False,
) -> None:
    """Create a model from a Modelfile.

    It is based on another model, GGUF files or a checkpoint. A model that FROM names and that is
    not on this machine is pulled first.
    """
    from tampu.store.create import CreateSpec, check_spec, create
    from tampu.store.modelfile import parse_modelfile

    spec = CreateSpec(
        modelfile=parse_modelfile(_read(file)),
        folder=Path.cwd() if is_standard_input(file) else file.resolve().parent,
        quantize=quantize,
        in_place=in_place,
        allow_unknown=allow_unknown,
    )
    check_spec(spec)  # before anything is pulled
    settings = Settings.from_environment()
    with step_progress() as report:
        _pull_sources(spec, settings, report)
        made = create(Library.from_settings(settings), ModelName.parse(name), spec, report)
    print(f"created '{made.name.short}'")


def _pull_sources(spec: CreateSpec, settings: Settings, report: Callable[[Progress], None]) -> None:
    """Pull the models that the Modelfile names and that are not on this machine."""
    from tampu.store.create_sources import path_of_source

    def show(steps: Iterable[Progress]) -> None:
        for step in steps:
            if step.status != "success":  # the model is not created yet
                report(step)

    for source in spec.modelfile.sources:
        if path_of_source(source, spec.folder) is None:
            pull_if_missing(source, settings, show=show)


def _read(file: Path) -> str:
    if not file.exists() and str(file) == _DEFAULT:
        raise RequestError(f"there is no {_DEFAULT} in this folder: name one with -f FILE")
    return read_file_or_input(file)
