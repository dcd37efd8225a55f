"""`tampu convert`: a Hugging Face checkpoint becomes a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder with config.json, safetensors and tokenizer files."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The GGUF file to write.")],
    type: Annotated[
        str, typer.Option("--type", help="Type of the large tensors: F32, F16, BF16 or Q8_0.")
    ] = "F16",
) -> None:
    """Convert a Hugging Face checkpoint to a GGUF file."""
    from tampu.convert import convert  # slow to import, and no other command needs it

    convert(source, output, type)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
