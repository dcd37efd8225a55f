"""`tampu run`: prints one answer, or holds a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tampu.cli.arguments import (
    ControlVectorLayers,
    ControlVectors,
    CPUExperts,
    Deterministic,
    Draft,
    Engine,
    GPULayers,
    Insecure,
    ModelOrFile,
    NoKVOffload,
    Threads,
)


def run_command(
    model: ModelOrFile,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="Prompt to answer (default: start a conversation)."),
    ] = None,
    system: Annotated[str, typer.Option(help="System message.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="Set a parameter, such as temperature=0.5."
        ),
    ] = None,
    num_predict: Annotated[
        int | None, typer.Option(help="Maximum number of tokens to generate.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Random seed; with --deterministic the same seed gives the same answer."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="Format of the answer: json, a JSON schema, or a file with one."),
    ] = None,
    think: Annotated[
        str | None,
        typer.Option(
            metavar="[=LEVEL]",
            help="Reason before answering: true (default), false, low, medium, high or max.",
        ),
    ] = None,
    hide_thinking: Annotated[
        bool, typer.Option("--hidethinking", help="Hide the reasoning.")
    ] = False,
    context: Annotated[
        int | None, typer.Option(min=4, help="Context length in tokens (default: 4096).")
    ] = None,
    threads: Threads = None,
    num_gpu: GPULayers = None,
    n_cpu_moe: CPUExperts = None,
    no_kv_offload: NoKVOffload = False,
    deterministic: Deterministic = False,
    keep_alive: Annotated[
        str | None,
        typer.Option(
            "--keepalive",
            metavar="TIME",
            help="Time after which an idle model is unloaded, such as 5m.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print token counts and durations.")
    ] = False,
    no_word_wrap: Annotated[
        bool, typer.Option("--nowordwrap", help="Print text without wrapping words.")
    ] = False,
    no_markdown: Annotated[
        bool, typer.Option("--nomarkdown", help="Print Markdown source without rendering it.")
    ] = False,
    engine: Engine = None,
    draft: Draft = None,
    control_vector: ControlVectors = None,
    control_vector_layer_range: ControlVectorLayers = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Number of dimensions of an embedding (default: all).")
    ] = None,
    truncate: Annotated[
        str | None,
        typer.Option(
            metavar="[=BOOL]",
            help="Truncate a prompt that is too long: true (default) or false.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace of the engine to a file, for Perfetto.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Ask a model a question, or chat with it.

    A model that is not on this machine is pulled first.
    """
    from tampu.cli import parameters
    from tampu.cli.repl.printing import View
    from tampu.cli.repl.session import SessionOptions
    from tampu.cli.run_model import RunOptions, run_model

    given = {
        "num_predict": num_predict, "seed": seed, "num_ctx": context, "num_thread": threads,
        "num_gpu": num_gpu, "n_cpu_moe": n_cpu_moe,
        "kv_offload": False if no_kv_offload else None,
        "deterministic": deterministic or None,
    }  # fmt: skip
    named = {name: value for name, value in given.items() if value is not None}
    session = SessionOptions(
        system=system,
        parameters=parameters.read_assignments(option or []) | named,
        think=parameters.read_think(think),
        format=parameters.read_format(format) if format else None,
        keep_alive_s=parameters.read_keep_alive(keep_alive),
        truncate=parameters.read_truncate(truncate),
    )
    view = View(verbose, not no_word_wrap, not no_markdown, hide_thinking)
    options = RunOptions(
        session=session, view=view, dimensions=dimensions, trace=trace, engine=engine,
        draft=draft, insecure=insecure,
        steering=parameters.read_control_vectors(control_vector or [], control_vector_layer_range),
    )  # fmt: skip
    run_model(model, prompt or [], options)
