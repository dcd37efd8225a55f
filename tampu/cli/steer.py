"""`tampu steer`: control vectors, which change how a model answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tampu.cli.arguments import Threads
from tampu.cli.completion import complete_model
from tampu.cli.table import counted
from tampu.errors import RequestError
from tampu.text import decode_text

if TYPE_CHECKING:
    from tampu.engine.capturing import CapturePrompt

steer_app = typer.Typer(help="Make control vectors.", rich_markup_mode=None)


@steer_app.callback()
def steer_options() -> None:
    """Make control vectors, which change how a model answers."""


@steer_app.command("make")
def make_command(
    positive: Annotated[
        Path, typer.Argument(metavar="POSITIVE", help="File of prompts, one in each line.")
    ],
    negative: Annotated[
        Path,
        typer.Argument(metavar="NEGATIVE", help="File with the other prompt of each pair."),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="Name of a model, or path of a GGUF file.",
            autocompletion=complete_model,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="GGUF file to write.")],
    method: Annotated[
        Literal["pca", "mean"],
        typer.Option(help="Direction of the pairs' differences: first component, or mean."),
    ] = "pca",
    pooling: Annotated[
        Literal["last", "mean"],
        typer.Option(help="Which tokens of a prompt count: the last, or the mean of all."),
    ] = "last",
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Prompts are users' messages, for the model's chat template."),
    ] = False,
    context: Annotated[int, typer.Option(min=8, help="Tokens of the longest prompt.")] = 2048,
    threads: Threads = None,
) -> None:
    """Make a control vector from pairs of prompts, in llama.cpp's format.

    Lines with the same number are a pair; empty lines are left out. Each layer from 1 on has a
    direction of length 1, from what it returns for the negative prompts to the positive ones.
    """
    pairs = _prompts(positive, is_chat=chat), _prompts(negative, is_chat=chat)
    if len(pairs[0]) != len(pairs[1]):
        raise RequestError(
            f"{positive} has {counted(len(pairs[0]), 'prompt')} and {negative} has "
            f"{counted(len(pairs[1]), 'prompt')}: the prompts of the two files are pairs"
        )
    from tampu.engine.engine import Engine

    with Engine.load(model, context=context, threads=threads) as engine:
        vector = engine.make_control_vector(*pairs, method=method, pooling=pooling)
    vector.save(output)
    layers = counted(len(vector.directions), "layer")
    print(f"{output}: {layers}, from {counted(len(pairs[0]), 'pair')} of prompts")


def _prompts(path: Path, *, is_chat: bool) -> list[CapturePrompt]:
    lines = decode_text(path.read_bytes(), str(path)).splitlines()
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise RequestError(f"{path} has no prompts")
    if not is_chat:
        return [*prompts]
    return [[{"role": "user", "content": each}] for each in prompts]
