"""The notebook of examples/ shows what its cells give when they run, its pictures too."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tools.run_notebook import run_notebook, written

PATH = Path(__file__).parents[2] / "examples" / "notebook" / "in_python.ipynb"


def pixels(picture: str) -> Any:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(picture))), np.float32)


def taken(notebook: dict[str, Any], kind: str) -> list[Any]:
    """Remove the outputs of a kind from a notebook, and return them in their order."""
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", ()))
    return [data.pop(kind) for output in outputs if kind in (data := output.get("data", {}))]


def test_the_notebook_shows_what_its_cells_give() -> None:
    text = PATH.read_text(encoding="utf-8")
    shown = json.loads(text)
    assert text == written(shown)
    found = run_notebook(shown)
    pictures = [*map(pixels, taken(shown, "image/png"))], [*map(pixels, taken(found, "image/png"))]
    assert len(pictures[0]) == 2
    assert found == shown
    for old, new in zip(*pictures, strict=True):
        assert old.shape == new.shape
        assert np.abs(old - new).mean() < 2  # letters, and bars by a pixel


def test_the_notebook_shows_answers() -> None:
    cells = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert outputs[0]["text"] == ["85\n"]
    assert [output["data"]["text/plain"] for output in outputs[-2:]] == [
        ["'Red.'"], ["Person(name='Ann', age=31)"],
    ]  # fmt: skip
