"""Conversion of Hugging Face checkpoints to GGUF files that tampu, llama.cpp and Ollama read.

A family of models is a small table of names and keys; nothing of a checkpoint is executed and no
pickle is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tampu.convert.checkpoint import Checkpoint, StoredTensor
from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters
from tampu.convert.gemma3 import GEMMA3, GEMMA3_TEXT
from tampu.convert.llama import LLAMA
from tampu.convert.qwen import QWEN2, QWEN3
from tampu.convert.storage import FILE_TYPES, encode, storage_type
from tampu.convert.vocabulary import tokenizer_metadata
from tampu.convert.writer import TensorToWrite, write_gguf
from tampu.errors import UnsupportedModelError
from tampu.ml.types import GGMLType

__all__ = ["FAMILIES", "TYPES", "convert"]

FAMILIES: Mapping[str, Family] = {
    checkpoint: family
    for family in (LLAMA, QWEN2, QWEN3, GEMMA3_TEXT, GEMMA3)
    for checkpoint in family.checkpoints
}
TYPES: tuple[str, ...] = tuple(kind.name for kind in FILE_TYPES)

_QUANTIZATION_VERSION = 2  # of ggml's block formats
_TRAINING_FILE = "training.json"  # how a model of our own was made


def convert(
    source: Path,
    destination: Path,
    type: str = "F16",
    *,
    metadata: Mapping[str, str | int | float | bool] | None = None,
) -> None:
    """Write the checkpoint in the folder `source` as the GGUF file `destination`.

    The file appears when it is complete. Memory is bounded by the largest tensor.

    Args:
        source: a folder with config.json, safetensors and tokenizer files.
        destination: the file to write; one that is there is replaced.
        type: the type of the large tensors: F32, F16, BF16 or Q8_0.
        metadata: further keys, which win over the converter's own.

    Raises:
        ModelNotFoundError: if there is no checkpoint in `source`.
        ModelFileError: if a file is damaged or incomplete, or the result can't be written.
        UnsupportedModelError: if the architecture, its settings, its tokeniser or `type` are not
            known.
    """
    kind = _file_type(type)
    checkpoint = Checkpoint.open(source)
    family = _family(checkpoint.config)
    config = Config(checkpoint.config)
    parameters = family.parameters(config)
    tied = config.flag("tie_word_embeddings", default=family.tied)
    plan = family.plan(checkpoint.tensors.values(), parameters, tied=tied)
    rows = plan["token_embd.weight"].shape[0]
    keys = {
        "general.architecture": family.architecture,
        "general.type": "model",
        "general.name": source.resolve().name,
        "general.file_type": FILE_TYPES[kind],
        "general.quantization_version": _QUANTIZATION_VERSION,
        **{f"{family.architecture}.{key}": value for key, value in parameters.items()},
        **tokenizer_metadata(checkpoint, rows),
        **_training(checkpoint),
        **(metadata or {}),
    }
    tensors = [*_made(family.made(config)), *_stored(plan, family, parameters, kind)]
    write_gguf(destination, keys, tensors)


def _file_type(name: str) -> GGMLType:
    if name.upper() not in TYPES:
        raise UnsupportedModelError(f"type {name!r} is not known; known: {', '.join(TYPES)}")
    return GGMLType[name.upper()]


def _family(config: Mapping[str, object]) -> Family:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        known = ", ".join(FAMILIES)
        raise UnsupportedModelError(f"architecture {name!r} is not known; known: {known}")
    return family


def _training(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the plain values of training.json, so that a file says how it was made."""
    training = checkpoint.json(_TRAINING_FILE) or {}
    return {
        f"tampu.training.{key}": value
        for key, value in training.items()
        if isinstance(value, str | int | float | bool)
    }


def _made(arrays: Mapping[str, npt.NDArray[np.float32]]) -> Iterator[TensorToWrite]:
    for name, values in arrays.items():
        yield TensorToWrite(
            name, values.shape, GGMLType.F32, partial(encode, name, values, GGMLType.F32)
        )


def _stored(
    plan: Mapping[str, StoredTensor], family: Family, parameters: Parameters, wanted: GGMLType
) -> Iterator[TensorToWrite]:
    for name, tensor in plan.items():
        shape = tensor.shape or (1,)
        kind = storage_type(name, shape, wanted)
        yield TensorToWrite(
            name, shape, kind, partial(_encoded, name, tensor, family, parameters, kind)
        )


def _encoded(
    name: str, tensor: StoredTensor, family: Family, parameters: Parameters, kind: GGMLType
) -> npt.NDArray[np.uint8]:
    values = family.transform(name, np.atleast_1d(tensor.read()), parameters)
    return encode(name, values, kind)
