"""`tampu show`: what a model's file says about it; no weights are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tampu.modelinfo import ModelInfo

_INDENT = "    "
_MOST_LINES = 2
_WIDTH = 76


def show_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, or a model's name.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON, all metadata too.")] = False,
) -> None:
    """Show what a model is."""
    from tampu.catalog import resolve
    from tampu.modelinfo import read_model_info

    info = read_model_info(resolve(model))
    print(as_json(info) if json else as_text(info))


def as_text(info: ModelInfo) -> str:
    """Return the description of a model in the layout of `ollama show`."""
    rows = {
        "architecture": info.architecture,
        "parameters": info.parameter_size,
        "context length": str(info.context),
        "embedding length": str(info.embedding_length),
        "quantization": info.quantization,
        "tensors": str(info.tensors),
    }
    width = max(map(len, rows)) + 4
    sections = {
        "Model": [f"{name:<{width}}{value}" for name, value in rows.items()],
        "Capabilities": list(info.capabilities),
        "Template": _first_lines(info.template),
        "License": _first_lines(info.license),
    }
    return "\n".join(
        "\n".join([f"  {title}", *(_INDENT + line for line in lines), ""])
        for title, lines in sections.items()
        if lines
    )


def as_json(info: ModelInfo) -> str:
    """Return the description of a model as JSON; long arrays are null."""
    import msgspec

    from tampu.modelinfo import plain_metadata

    described = {
        "path": str(info.path),
        "size_bytes": info.size_bytes,
        "architecture": info.architecture,
        "parameters": info.parameters,
        "quantization": info.quantization,
        "context": info.context,
        "embedding_length": info.embedding_length,
        "capabilities": info.capabilities,
        "tensors": info.tensors,
        "license": info.license,
        "template": info.template,
        "metadata": plain_metadata(info.metadata, longest=5),
    }
    return msgspec.json.format(msgspec.json.encode(described), indent=2).decode()


def _first_lines(text: str) -> list[str]:
    """Return the first lines of a text, and dots if there is more."""
    printable = "".join(c if c.isprintable() else "\n" if c == "\n" else " " for c in text)
    lines = [" ".join(line.split()) for line in printable.splitlines() if line.strip()]
    shown = [line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..." for line in lines]
    return shown[:_MOST_LINES] + (["..."] if len(shown) > _MOST_LINES else [])
