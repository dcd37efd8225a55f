"""Runs the cells of a notebook and writes their outputs into it.

python -m tools.run_notebook examples/notebook/in_python.ipynb

What a cell prints, the text of its last expression, and its picture, if that is an image of
Pillow's, are stored as Jupyter stores them (nbformat 4), so the file shows them where it is read.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

Notebook = Mapping[str, Any]


def run_notebook(notebook: Notebook) -> dict[str, Any]:
    """Return a notebook with the outputs of its cells, run one after the other."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells: list[dict[str, Any]] = []
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = _outputs("".join(cell["source"]), names, count)
            cells.append({**cell, "execution_count": count, "outputs": outputs})
        else:
            cells.append(dict(cell))
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell, whose names stay for the next ones, and return its outputs."""
    body = ast.parse(source).body
    last = body[-1] if body and isinstance(body[-1], ast.Expr) else None
    statements = ast.Module(body[:-1] if last else body, [])
    value = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(statements, "<cell>", "exec"), names)  # the repository's own file
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        outputs.append(
            {
                "data": _data(value), "execution_count": count, "metadata": {},
                "output_type": "execute_result",
            }
        )  # fmt: skip
    return outputs


def _data(value: object) -> dict[str, Any]:
    if not isinstance(value, Image.Image):
        return {"text/plain": [repr(value)]}
    file = io.BytesIO()
    value.save(file, "PNG")
    size = f"{value.width} x {value.height} pixels"
    picture = base64.b64encode(file.getvalue()).decode()
    return {"image/png": picture, "text/plain": [f"<a picture of {size}>"]}


def written(notebook: Notebook) -> str:
    """Return a notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(run_notebook(json.loads(path.read_text(encoding="utf-8")))), "utf-8")
