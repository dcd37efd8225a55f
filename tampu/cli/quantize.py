"""`tampu quantize`: a GGUF file becomes a smaller one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tampu.cli.completion import complete_type


def quantize_command(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="GGUF file to quantize, best in F16, BF16 or F32.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="GGUF file to write.")],
    type: Annotated[
        str,
        typer.Argument(
            metavar="TYPE", help="Target type, such as Q4_K_M.", autocompletion=complete_type
        ),
    ],
    tensor_type: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor-type",
            metavar="PATTERN=TYPE",
            help="Type of the tensors whose name matches; the first match wins.",
        ),
    ] = None,
    requantize: Annotated[
        bool, typer.Option("--requantize", help="Allow a file that is quantized already.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=512, help="Number of CPU threads (default: one per core)."),
    ] = None,
) -> None:
    """Quantise a model's file."""
    from tampu.cli.progress import progress_bar
    from tampu.convert.quant_mix import Override
    from tampu.convert.quantize import quantize_file

    overrides = [Override.parse(text) for text in tensor_type or []]
    with progress_bar("quantising") as progress:
        quantize_file(
            source,
            output,
            type,
            overrides=overrides,
            requantize=requantize,
            threads=threads,
            progress=progress,
        )
    before, after = source.stat().st_size, output.stat().st_size
    print(f"{output}: {before / 1e6:.1f} MB -> {after / 1e6:.1f} MB")
