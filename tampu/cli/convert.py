"""`tampu convert` and `tampu quantize`: write GGUF files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tampu.cli.arguments import TensorTypes, Threads
from tampu.cli.completion import complete_type


def convert_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder of a Hugging Face checkpoint (config.json, safetensors, tokenizer), "
            "or of a PEFT adapter.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="GGUF file to write.")],
    type: Annotated[
        str | None,
        typer.Option(
            "--type",
            help="F32, F16, BF16, or a quantized type such as Q4_K_M. "
            "Default: the types of the checkpoint.",
            autocompletion=complete_type,
        ),
    ] = None,
    mmproj: Annotated[
        Path | None,
        typer.Option(
            help="GGUF file to write the encoders of images and sounds to, as llama.cpp wants it. "
            "Default: text and encoders in one file."
        ),
    ] = None,
    tensor_type: TensorTypes = None,
    allow_unknown: Annotated[
        bool,
        typer.Option(
            "--allow-unknown", help="Convert although a file of DIR has an unknown setting."
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare the written model with the checkpoint by transformers, and remove it if "
            "it differs. Needs torch and transformers.",
        ),
    ] = False,
    base: Annotated[
        Path | None, typer.Option(help="GGUF file of the base model, for an adapter.")
    ] = None,
) -> None:
    """Convert a checkpoint or an adapter to a GGUF file."""
    from tampu.cli.progress import progress_bar
    from tampu.convert import convert  # slow to import, and no other command needs it
    from tampu.convert.checkpoint import Checkpoint
    from tampu.convert.quant_mix import Override
    from tampu.convert.token_check import compare_tokens
    from tampu.ml.gguf import read_gguf

    if verify:
        from tampu.engine.verification import libraries
        from tampu.errors import RequestError

        if base is not None:
            raise RequestError("--verify compares models, not adapters (--base)")
        libraries()  # what is missing is said before the work
    if base is not None:
        from tampu.convert.adapters import plan_adapter

        plan_adapter(source, read_gguf(base), allow_unknown=allow_unknown).write(output)
    else:
        overrides = [Override.parse(text) for text in tensor_type or []]
        with progress_bar("converting") as progress:
            convert(
                source,
                output,
                type,
                mmproj=mmproj,
                overrides=overrides,
                allow_unknown=allow_unknown,
                progress=progress,
            )
        print(compare_tokens(Checkpoint.open(source), read_gguf(output).metadata))
        if verify:
            _verify(output, source, [output, *([mmproj] if mmproj else [])])
        if mmproj is not None:
            print(f"{mmproj}: {mmproj.stat().st_size / 1e6:.1f} MB")
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")


def _verify(file: Path, checkpoint: Path, written: Sequence[Path]) -> None:
    """Print how far a written model is from its checkpoint; remove its files if that is too far."""
    from tampu.engine import verification
    from tampu.errors import ModelFileError, UnsupportedModelError

    names = " and ".join(map(str, written))
    try:
        found = verification.verify(file, checkpoint)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{error}; not compared: {names}") from error
    if not found.passed:
        for path in written:
            path.unlink()
        raise ModelFileError("weights", f"{found}: this is another model; removed {names}")
    print(found)


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
    tensor_type: TensorTypes = None,
    requantize: Annotated[
        bool, typer.Option("--requantize", help="Allow a file that is already quantized.")
    ] = False,
    threads: Threads = None,
) -> None:
    """Quantize a GGUF file."""
    from tampu.cli.progress import progress_bar
    from tampu.convert.quant_mix import Override
    from tampu.convert.quantize import quantize_file

    overrides = [Override.parse(text) for text in tensor_type or []]
    with progress_bar("quantizing") as progress:
        fallbacks = quantize_file(
            source,
            output,
            type,
            overrides=overrides,
            requantize=requantize,
            threads=threads,
            progress=progress,
        )
    for line in fallbacks:
        print(line)
    before, after = source.stat().st_size, output.stat().st_size
    print(f"{output}: {before / 1e6:.1f} MB -> {after / 1e6:.1f} MB")
