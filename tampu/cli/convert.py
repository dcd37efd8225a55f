"""`tampu convert`: a Hugging Face checkpoint becomes a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tampu.cli.completion import complete_type


def convert_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder of a checkpoint (config.json, safetensors, tokenizer) or of an adapter.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="GGUF file to write.")],
    type: Annotated[
        str,
        typer.Option(
            "--type",
            help="F32, F16, BF16, or a quantized type such as Q4_K_M.",
            autocompletion=complete_type,
        ),
    ] = "F16",
    tensor_type: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor-type",
            metavar="PATTERN=TYPE",
            help="Type of the tensors whose name matches; the first match wins.",
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option("--base", help="GGUF file of the base model, for an adapter."),
    ] = None,
) -> None:
    """Convert a Hugging Face checkpoint, or a PEFT adapter, to a GGUF file."""
    from tampu.cli.progress import progress_bar
    from tampu.convert import convert  # slow to import, and no other command needs it
    from tampu.convert.quant_mix import Override

    if base is not None:
        from tampu.convert.adapters import plan_adapter
        from tampu.ml.gguf import read_gguf

        plan_adapter(source, read_gguf(base)).write(output)
        print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
        return
    overrides = [Override.parse(text) for text in tensor_type or []]
    with progress_bar("converting") as progress:
        convert(source, output, type, overrides=overrides, progress=progress)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
