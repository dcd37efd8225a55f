"""Writes the models of `steps.parity`, with transformers' logits beside them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file
from support.checkpoints import DECODERS, FAMILIES, RECIPES
from support.laboratory import Laboratory, tokens

from tampu.convert import FAMILIES as CONVERTERS

LENGTH = 48  # tokens of a text: beyond the sliding windows of the models
PERIOD = 1021  # a prime, so that no two rows of a matrix are the same


def names() -> list[str]:
    """Return one recipe of each of GGUF's architectures, and one with experts where it has them."""
    first: dict[tuple[str, bool], str] = {}
    for name in (*DECODERS, *FAMILIES):
        architecture = CONVERTERS[RECIPES[name].architecture].architecture
        first.setdefault((architecture, is_mixture(name)), name)
    return list(first.values())


def is_mixture(name: str) -> bool:
    """Return whether a recipe has experts."""
    return RECIPES[name].experts > 0


def write_references(folder: Path) -> None:
    """Write one file of each recipe in F32, and its logits of a text."""
    with tempfile.TemporaryDirectory() as place:
        laboratory = Laboratory(Path(place))
        for name in names():
            target = folder / f"{name}.gguf"
            recipe = RECIPES[name]
            is_apart = bool(recipe.published or recipe.layout)  # the reference has its own files
            for file in () if is_apart else laboratory.checkpoint(name).glob("*.safetensors"):
                weights = {key: coarse(value) for key, value in load_file(file).items()}
                save_file(weights, file, {"format": "pt"})
            logits = laboratory.answer(name, LENGTH)
            shutil.copy(laboratory.file(name), target)
            np.savez_compressed(
                target.with_suffix(".npz"),
                tokens=np.array(tokens(LENGTH), np.int32),
                logits=logits.astype(np.float32),
                is_mixture=is_mixture(name),
            )
        laboratory.close()


def coarse(weights: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return floats rounded to powers of two, the first ones again and again, which compress."""
    if not np.issubdtype(weights.dtype, np.floating):
        return weights
    repeated = np.resize(weights.ravel()[:PERIOD], weights.shape)
    mantissa, exponent = np.frexp(repeated.astype(np.float32))
    rounded: npt.NDArray[np.float32] = np.ldexp(
        np.sign(mantissa), exponent - (np.abs(mantissa) < 0.75)
    )
    return np.asarray(rounded, weights.dtype)  # a number as well
