"""`tampu compare`: how far the predictions of two models or engines are from each other."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.bench import PEER
from tampu.cli.arguments import AsJSON, Threads, model_argument
from tampu.cli.table import columns, counted

if TYPE_CHECKING:
    from tampu.evaluation.comparison import Comparison
    from tampu.evaluation.statistics import Estimate


def compare_command(
    a: Annotated[str, model_argument("A", "The reference: name of a model, or path of a file.")],
    text: Annotated[Path, typer.Option(help="File with the text, of two windows or more.")],
    b: Annotated[
        str,
        model_argument("B", f"The model to compare with it; default: A itself in {PEER}."),
    ] = "",
    peer: Annotated[
        str | None, typer.Option(help=f"Compute B with {PEER} (needs the pip extra `bench`).")
    ] = None,
    peer_library: Annotated[
        Path | None, typer.Option(help="Use this libllama instead of the xllamacpp package's.")
    ] = None,
    context: Annotated[
        int, typer.Option(min=8, help="Tokens of a window; the second half is scored.")
    ] = 512,
    windows: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of windows (default: all).")
    ] = None,
    threads: Threads = None,
    cache_type: Annotated[
        str, typer.Option(help="Element type of tampu's KV cache: f16, f32 or q8_0.")
    ] = "f16",
    chart: Annotated[
        Path | None,
        typer.Option(help="Write the divergence along the text to an SVG file."),
    ] = None,
    json: AsJSON = False,
) -> None:
    """Compare the predictions of two models in a text: divergence, agreement, perplexity.

    Windows and formulas are those of llama.cpp's perplexity tool.
    """
    from tampu.cli.progress import progress_bar
    from tampu.evaluation.comparison import compare
    from tampu.evaluation.picture import svg_picture

    with progress_bar("comparing", of_bytes=False) as progress:
        found = compare(
            a,
            b or None,
            text=text,
            peer=peer if b else peer or PEER,
            context=context,
            max_windows=windows,
            threads=threads,
            cache_type=cache_type,
            library=peer_library,
            progress=progress,
        )
    if chart is not None:
        chart.write_text(svg_picture(found), encoding="utf-8")
    print(_as_json(found) if json else _as_text(found))


def _as_json(found: Comparison) -> str:
    report = asdict(found)
    del report["positions"]
    return json_format.dumps(report, indent=2, ensure_ascii=False)


def _as_text(found: Comparison) -> str:
    windows = counted(found.windows, "window")
    kl, same = found.kl, found.same_top
    rows = [
        ("A", found.a),
        ("B", found.b),
        ("text", f"{windows} of {found.context} tokens, {found.scored} tokens scored"),
        ("perplexity of A", _shown(found.perplexity_a)),
        ("perplexity of B", _shown(found.perplexity_b)),
        ("same best token", f"{same.value:.2%} ± {same.error:.2%}"),
        ("KL divergence, nats", f"mean {kl.mean.value:.6f} ± {kl.mean.error:.6f}"),
        ("", f"median {kl.median:.6f}, 99 % {kl.percentile_99:.6f}, maximum {kl.maximum:.6f}"),
    ]
    for each in found.worst:
        best = repr(each.best_a)
        if each.best_a != each.best_b:
            best = f"{best} in A, {each.best_b!r} in B"
        rows.append((f"  {each.kl:.4f}", f"{each.before!r}, then {each.token!r}; best: {best}"))
    return "\n".join(columns(rows, gap=2))


def _shown(found: Estimate) -> str:
    return f"{found.value:.4f} ± {found.error:.4f}"
