"""`tampu create`: a model of a Modelfile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.completion import complete_model, complete_type
from tampu.errors import ModelNotFoundError, RequestError

if TYPE_CHECKING:
    from tampu.settings.settings import Settings
    from tampu.store.create import CreateSpec
    from tampu.store.library import Library
    from tampu.store.registry.progress import Progress

MODELFILE = "Modelfile"


def create_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the new model.", autocompletion=complete_model
        ),
    ],
    file: Annotated[
        Path, typer.Option("--file", "-f", help="Path of the Modelfile; - reads standard input.")
    ] = Path(MODELFILE),
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
) -> None:
    """Make a model: of another, of GGUF files, of a checkpoint, with settings of its own.

    A model that FROM names and that is not here is pulled first.
    """
    from tampu.settings.settings import Settings
    from tampu.store.create import CreateSpec, create
    from tampu.store.library import Library
    from tampu.store.modelfile import parse_modelfile
    from tampu.store.names import ModelName

    spec = CreateSpec(
        modelfile=parse_modelfile(_read(file)),
        folder=Path.cwd() if str(file) == "-" else file.resolve().parent,
        quantize=quantize,
        in_place=in_place,
    )
    settings = Settings.from_environment()
    library = Library.from_settings(settings)
    with told() as report:
        bring_missing(library, spec, settings, report)
        made = create(library, ModelName.parse(name), spec, report)
    print(f"created '{made.name.short}'")


def bring_missing(
    library: Library, spec: CreateSpec, settings: Settings, report: Callable[[Progress], None]
) -> None:
    """Pull the models that the spec names and that are not on this machine.

    Raises:
        TampuError: if one cannot be had.
    """
    from tampu.store.create_sources import path_of_source
    from tampu.store.names import ModelName
    from tampu.store.registry.options import RemoteOptions
    from tampu.store.registry.pull import pull
    from tampu.store.store import Store

    for source in spec.modelfile.sources:
        if path_of_source(source, spec.folder) is not None:
            continue
        try:
            library.find(source)
        except ModelNotFoundError:
            remote = RemoteOptions.from_settings(settings)
            for step in pull(Store(settings.models), ModelName.parse(source), remote):
                if step.status != "success":  # it is only the beginning
                    report(step)


@contextmanager
def told() -> Iterator[Callable[[Progress], None]]:
    """Show steps on standard error: a bar for each that has a length, else a line."""
    from tampu.cli.progress import progress_bar

    seen = ""
    with progress_bar("") as bar:

        def report(step: Progress) -> None:
            nonlocal seen
            if step.status != seen and bar is None and not step.digest:
                print(step.status, file=sys.stderr)
            seen = step.status
            if bar is not None and step.total:
                bar(step.completed, step.total)

        yield report


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except OSError as error:
        raise RequestError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{file}: is not valid UTF-8") from error
