"""The arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tampu.cli.completion import complete_model
from tampu.errors import SettingsError
from tampu.settings.choices import ENGINES, SPEC_TYPES


def check_spec_type(name: str | None) -> str | None:
    """Return how next tokens are guessed, by tampu's names or llama-server's.

    Raises:
        SettingsError: if it is unknown, or needs a draft model.
    """
    if name not in (None, *SPEC_TYPES):
        raise SettingsError(f"--spec-type is {name!r}; it must be one of {', '.join(SPEC_TYPES)}")
    return name


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
GPULayers = Annotated[
    int | None,
    typer.Option(
        "--num-gpu",
        min=-1,
        metavar="N",
        help="Number of layers on GPUs; 0: none, -1: as many as fit (default: TAMPU_NUM_GPU).",
    ),
]
CPUExperts = Annotated[
    int | None,
    typer.Option(
        "--n-cpu-moe",
        min=0,
        metavar="N",
        help="Keep the experts of the first N layers on the CPU (default: TAMPU_N_CPU_MOE).",
    ),
]
NoKVOffload = Annotated[
    bool, typer.Option("--no-kv-offload", help="Keep keys and values on the CPU.")
]
ControlVectors = Annotated[
    list[str] | None,
    typer.Option(
        "--control-vector",
        "--control-vector-scaled",
        metavar="FILE[:SCALE]",
        help="Add a control vector, times a number (default: 1), to what layers return.",
    ),
]
ControlVectorLayers = Annotated[
    tuple[int, int] | None,
    typer.Option(metavar="FIRST LAST", help="Only at these layers (default: all it has)."),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="Compute the same bits whatever else runs, at some cost of speed.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="Engine: auto, native or llamacpp (default: TAMPU_ENGINE).", callback=check_engine
    ),
]
SpecType = Annotated[
    str | None,
    typer.Option(
        "--spec-type",
        metavar="TYPE",
        help="auto: guess next tokens where that is faster; none (default: TAMPU_SPEC_TYPE).",
        callback=check_spec_type,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        "--model-draft",
        "--spec-draft-model",
        "-md",
        metavar="MODEL",
        help="Name or file of a draft model, which guesses next tokens (default: TAMPU_DRAFT).",
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
