"""Whole models with kernels on are no further from exact arithmetic than with ggml's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.laboratory import Laboratory, Logits, relative_error, tokens

from tampu.convert.quantize import quantize_file
from tampu.engine.engine import Engine

pytestmark = [pytest.mark.parity, pytest.mark.slow]

MODELS = ["llama", "qwen2", "qwen3", "gemma2", "mistral3"]


def logits(path: Path, kernels: str) -> Logits:
    with Engine.load(path, context=256, threads=1, cache_type="f32", kernels=kernels) as engine:
        return engine.logits(tokens())


@pytest.mark.parametrize("type_", ["Q4_0", "Q8_0"])
def test_whole_models_are_as_exact_as_with_ggml(
    laboratory: Laboratory, tmp_path: Path, type_: str
) -> None:
    """Exact: the same weights as 32-bit floats. What a rounding changes, changes all that follows.

    So single models differ by chance, some one way and some the other: the mean of several counts.
    """
    errors: dict[str, list[float]] = {"on": [], "off": []}
    for name in MODELS:
        rounded, floats = tmp_path / f"{name}-{type_}.gguf", tmp_path / f"{name}-floats.gguf"
        quantize_file(laboratory.file(name, "F32"), rounded, type_)
        quantize_file(rounded, floats, "F32", requantize=True)
        exact = logits(floats, "off")
        for kernels, found in errors.items():
            found.append(relative_error(logits(rounded, kernels), exact))
    assert np.mean(errors["on"]) <= 1.1 * np.mean(errors["off"]), errors
