"""Converts PEFT's LoRA adapters to GGUF files that tampu and llama.cpp read.

An adapter changes a weight W, (outputs, inputs), into W + scale * B A, with A (rank, inputs) and B
(outputs, rank). In the file they are `NAME.lora_a` and `NAME.lora_b`; the scale is
`adapter.lora.alpha` / rank. Where the converter reorders rows of W, it reorders those of B too.
Sources: arXiv:2106.09685 (LoRA), arXiv:2312.03732 (rank-stabilized scale), llama.cpp's format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tampu.convert import known_families
from tampu.convert.checkpoint import StoredTensor, read_json, read_safetensors, to_float32
from tampu.convert.family import Family, Parameters, no_tensors
from tampu.convert.keys import ADAPTER, check_file
from tampu.convert.storage import Floats, encoded_parts
from tampu.convert.writer import ChunkSource, PlannedFile, TensorToWrite
from tampu.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from tampu.ml.gguf import GGUFFile
from tampu.ml.types import GGMLType

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_PREFIX = "base_model.model."
_NAME = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(?:\.[A-Za-z0-9_]+)?\.weight")


@dataclass(frozen=True, slots=True)
class _Pair:
    """The two factors of one weight's update."""

    name: str  # in the model's file
    module: str  # in the checkpoint
    family: Family
    a: StoredTensor
    b: StoredTensor


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter of PEFT."""
    return (folder / CONFIG_FILE).is_file()


def plan_adapter(folder: Path, base: GGUFFile, *, allow_unknown: bool = False) -> PlannedFile:
    """Return the GGUF file of a PEFT adapter.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors.
        base: the base model's file.
        allow_unknown: convert although adapter_config.json has unknown settings, with a warning.

    Raises:
        ModelNotFoundError: if there is no adapter in the folder.
        ModelFileError: if it is damaged or does not match the base model.
        UnsupportedModelError: for an unsupported kind of adapter or tensor.
    """
    config = read_json(folder / CONFIG_FILE)
    if config is None:
        raise ModelNotFoundError(f"{folder} has no {CONFIG_FILE}: not an adapter")
    settings = _Settings.read(config, is_allowed=allow_unknown)
    architecture = base.metadata.architecture
    parameters: Parameters = {
        key.removeprefix(f"{architecture}."): value for key, value in base.metadata.items()
    }
    pairs = _pairs(read_safetensors(folder / WEIGHTS_FILE), architecture, base)
    tensors = [tensor for pair in pairs for tensor in _tensors(pair, settings, parameters)]
    metadata = {
        "general.architecture": architecture,
        "general.type": "adapter",
        "general.name": folder.resolve().name,
        "adapter.type": "lora",
        "adapter.lora.alpha": settings.alpha,
    }
    return PlannedFile(metadata, tensors)


@dataclass(frozen=True, slots=True)
class _Settings:
    """The scale settings of adapter_config.json."""

    alpha: float
    stabilized: bool
    alphas: Mapping[str, float]

    @classmethod
    def read(cls, config: Mapping[str, Any], *, is_allowed: bool) -> _Settings:
        for key, allowed in (
            ("peft_type", ("LORA",)),
            ("fan_in_fan_out", (False, None)),
            ("bias", ("none", None)),
            ("modules_to_save", (None, [])),
        ):
            if config.get(key) not in allowed:
                reason = f"{key} is {config.get(key)!r}; only {allowed[0]!r} is supported"
                raise UnsupportedModelError(f"{CONFIG_FILE}: {reason}")
        check_file(config, CONFIG_FILE, ADAPTER, is_allowed=is_allowed)
        alphas = config.get("alpha_pattern") or {}
        values = [config.get("lora_alpha"), *(alphas.values() if isinstance(alphas, dict) else ())]
        if not all(_is_positive(value) for value in values):
            raise ModelFileError(CONFIG_FILE, "lora_alpha is not a positive number")
        return cls(float(values[0] or 0), config.get("use_rslora") is True, alphas)

    def factor(self, module: str, rank: int) -> float:
        """Return the factor for B that makes alpha / rank the right scale."""
        alpha = next(
            (
                float(value)
                for pattern, value in self.alphas.items()
                if module == pattern or module.endswith(f".{pattern}")
            ),
            self.alpha,
        )
        scale = alpha / (rank**0.5 if self.stabilized else rank)
        return scale * rank / self.alpha


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9


def _pairs(tensors: Iterable[StoredTensor], architecture: str, base: GGUFFile) -> list[_Pair]:
    found: dict[str, dict[str, StoredTensor]] = {}
    for tensor in tensors:
        match = _NAME.fullmatch(tensor.name.removeprefix(_PREFIX))
        if match is None:
            raise UnsupportedModelError(
                f"{WEIGHTS_FILE}: {tensor.name} is neither lora_A nor lora_B of a projection"
            )
        found.setdefault(match["module"], {})[match["part"]] = tensor
    if not found:
        raise ModelFileError(WEIGHTS_FILE, "contains no tensors")
    pairs = []
    for module, parts in found.items():
        family, name = _renamed(f"{module}.weight", architecture)
        if parts.keys() != {"A", "B"}:
            raise ModelFileError(WEIGHTS_FILE, f"{module} has only one of lora_A and lora_B")
        pair = _Pair(name, module, family, parts["A"], parts["B"])
        _check_shapes(pair, base)
        pairs.append(pair)
    return pairs


def _renamed(name: str, architecture: str) -> tuple[Family, str]:
    """Return the family that knows a checkpoint's weight, and the weight's GGUF name."""
    for family in _families(architecture):
        try:
            found = family.rename(name)
        except ModelFileError:
            continue
        if found is not None and family.multipliers is not no_tensors:
            raise UnsupportedModelError(
                f"adapters of {architecture} are not supported: its weights are multiplied"
            )
        if found is not None:
            return family, found
    raise UnsupportedModelError(
        f"{WEIGHTS_FILE}: {name} is not a projection of {architecture} that adapters can change"
    )


def _families(architecture: str) -> list[Family]:
    found = {id(family): family for family in known_families().values()}
    return [
        family
        for family in found.values()
        if architecture in (family.architecture, *family.architectures)
    ]


def _check_shapes(pair: _Pair, base: GGUFFile) -> None:
    info = base.tensors.get(pair.name)
    if info is None:
        raise ModelFileError(
            WEIGHTS_FILE, f"the base model has no {pair.name}: the adapter is for another model"
        )
    a, b = pair.a.shape, pair.b.shape
    if len(a) != 2 or len(b) != 2 or a[0] != b[1] or (b[0], a[1]) != info.shape:
        raise ModelFileError(
            WEIGHTS_FILE, f"{a} and {b} do not match {pair.name}, which is {info.shape}"
        )


def _tensors(pair: _Pair, settings: _Settings, parameters: Parameters) -> Iterator[TensorToWrite]:
    factor = np.float32(settings.factor(pair.module, pair.a.shape[0]))

    def values_a() -> Floats:
        changed = pair.family.transform_inputs(pair.name, pair.a.read(), parameters)
        return to_float32(changed)

    def values_b() -> Floats:
        changed = pair.family.transform(pair.name, to_float32(pair.b.read()), parameters)
        return to_float32(changed) * factor

    for part, shape, values in (("a", pair.a.shape, values_a), ("b", pair.b.shape, values_b)):
        name = f"{pair.name}.lora_{part}"
        yield TensorToWrite(name, shape, GGMLType.F32, partial(_parts, name, values))


def _parts(name: str, values: Callable[[], Floats]) -> Iterator[ChunkSource]:
    yield from encoded_parts(name, values(), GGMLType.F32)
