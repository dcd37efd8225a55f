"""Writes the models of `steps.parity`, with transformers' logits beside them."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file
from support.checkpoints import DECODERS, RECIPES
from support.laboratory import Laboratory, tokens

LENGTH = 48  # tokens of a text: beyond the sliding windows of the models


def names() -> list[str]:
    """Return one recipe of each of transformers' architectures."""
    first: dict[str, str] = {}
    for name in DECODERS:
        first.setdefault(RECIPES[name].architecture, name)
    return list(first.values())


def write_references(folder: Path) -> None:
    """Write one file of each recipe in F32, and its logits of a text; those that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        laboratory = Laboratory(Path(place))
        for name in names():
            target = folder / f"{name}.gguf"
            if target.with_suffix(".npz").is_file():
                continue
            for file in laboratory.checkpoint(name).glob("*.safetensors"):
                weights = {key: coarse(value) for key, value in load_file(file).items()}
                save_file(weights, file, {"format": "pt"})
            logits = laboratory.answer(name, LENGTH)
            config = RECIPES[name].values
            is_mixture = "num_experts_per_tok" in config.get("text_config", config)
            shutil.copy(laboratory.file(name), target)
            np.savez_compressed(
                target.with_suffix(".npz"),
                tokens=np.array(tokens(LENGTH), np.int32),
                logits=logits.astype(np.float32),
                is_mixture=json.dumps(is_mixture),
            )
        laboratory.close()


def coarse(weights: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return floats with one bit of mantissa: their files compress to a tenth."""
    if not np.issubdtype(weights.dtype, np.floating):
        return weights
    mantissa, exponent = np.frexp(weights.astype(np.float32))
    return np.ldexp(np.round(mantissa * 4) / 4, exponent).astype(weights.dtype)
