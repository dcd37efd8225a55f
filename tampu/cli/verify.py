"""`tampu verify`: compares a model file with its checkpoint, tokens first, then layer by layer."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.arguments import AsJSON, Threads, model_argument
from tampu.cli.table import counted, table

if TYPE_CHECKING:
    from tampu.evaluation.verification import NamedToken, Verification


def verify_command(
    file: Annotated[str, model_argument("FILE", "Path of a GGUF file, or name of a model.")],
    against: Annotated[Path, typer.Option(help="Folder of the checkpoint that it was made of.")],
    text: Annotated[
        Path | None,
        typer.Option(help="File with the text that both compute (default: a sentence)."),
    ] = None,
    limit: Annotated[float, typer.Option(help="Relative error from which a part differs.")] = 0.01,
    threads: Threads = None,
    json: AsJSON = False,
) -> None:
    """Compare a model file with the checkpoint that it was made of.

    First the token ids of a text, then all parts of all layers, and the logits. The first that
    differs is named. The exit code is 1 if there is one.
    """
    from tampu.evaluation.verification import TEXT, verify

    found = verify(file, against, text=text or TEXT, limit=limit, threads=threads)
    print(_as_json(found) if json else _as_text(found))
    if not found.is_same:
        raise typer.Exit(1)


def _as_json(found: Verification) -> str:
    report = asdict(found) | {"first": found.first and asdict(found.first)}
    return json_format.dumps(report, indent=2, ensure_ascii=False)


def _as_text(found: Verification) -> str:
    rows = [(part.part, f"{part.error:.2e}", str(part.position)) for part in found.parts]
    lines = [table(("PART", "RELATIVE ERROR", "LARGEST AT TOKEN"), rows), ""]
    if other := found.token_difference:
        lines.append(
            f"token ids: the first difference is at {other.position}: {_shown(other.file)} in the "
            f"file, {_shown(other.checkpoint)} in the checkpoint"
        )
    else:
        lines.append(f"token ids: {counted(found.tokens, 'token')}, all the same")
    if first := found.first:
        lines.append(f"first part over {found.limit:g}: {first.part}, {first.error:.2e}")
    else:
        lines.append(f"no part is over {found.limit:g}")
    return "\n".join(lines)


def _shown(token: NamedToken | None) -> str:
    return "no token" if token is None else f"{token.id} ({token.text!r})"
