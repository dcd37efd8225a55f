"""Quant mixes: the type of each tensor of a quantized file, as llama.cpp chooses it.

A mix has a base type and spends more bits where errors hurt most: on the output, on attention's
values, and on the down projection in the first and last layers and every third between. The rules
follow llama.cpp's quantizer without an importance matrix (llama-quant.cpp, October 2026); a test
compares with libllama's choices.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tampu.errors import ModelFileError, RequestError, UnsupportedModelError
from tampu.ml.types import GGMLType

Shape = tuple[int, ...]

F32, F16, BF16 = GGMLType.F32, GGMLType.F16, GGMLType.BF16
Q4_0, Q5_0, Q5_1, Q8_0 = GGMLType.Q4_0, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0
Q2_K, Q3_K, Q4_K = GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q4_K
Q5_K, Q6_K = GGMLType.Q5_K, GGMLType.Q6_K
IQ4_NL, IQ4_XS, MXFP4 = GGMLType.IQ4_NL, GGMLType.IQ4_XS, GGMLType.MXFP4


@dataclass(frozen=True, slots=True)
class FileType:
    """A quant mix: its name, GGUF's general.file_type, and the type of most matrices."""

    name: str
    number: int
    base: GGMLType


FILE_TYPES: Mapping[str, FileType] = {
    name: FileType(name, number, base)
    for name, number, base in (
        ("F32", 0, F32), ("F16", 1, F16), ("BF16", 32, BF16), ("Q8_0", 7, Q8_0), ("Q6_K", 18, Q6_K),
        ("Q5_K_M", 17, Q5_K), ("Q5_K_S", 16, Q5_K), ("Q5_1", 9, Q5_1), ("Q5_0", 8, Q5_0),
        ("Q4_K_M", 15, Q4_K), ("Q4_K_S", 14, Q4_K), ("Q4_1", 3, GGMLType.Q4_1), ("Q4_0", 2, Q4_0),
        ("IQ4_NL", 25, IQ4_NL), ("IQ4_XS", 30, IQ4_XS), ("MXFP4", 38, MXFP4),
        ("Q3_K_L", 13, Q3_K), ("Q3_K_M", 12, Q3_K), ("Q3_K_S", 11, Q3_K), ("Q2_K", 10, Q2_K),
    )
}  # fmt: skip
# Common short forms.
_SHORT = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

# For rows that are not a multiple of 256 elements: a type with blocks of 32.
_FALLBACKS = {
    Q2_K: Q4_0, Q3_K: Q4_0, Q4_K: Q5_0, Q5_K: Q5_1, Q6_K: Q8_0, IQ4_XS: IQ4_NL,
}  # fmt: skip

# Small matrices whose errors matter, and vision and audio towers and projectors, parts of which
# ggml multiplies only unquantized.
_KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp|altup|laurel|per_layer_model_proj|^position_embd\.|^token_types\."
    r"|ssm_conv1d|shortconv\.conv|attn_rel_b|^v\.|^mm\.|^a\."
)
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
_VALUES = ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")
_LAYER = re.compile(r"blk\.(\d+)\.")
_LAYERS_OF_70B = 80
_SHOWN = 8


def file_type(name: str) -> FileType:
    """Return the quant mix of a name, in any case.

    Raises:
        UnsupportedModelError: if there is none; the message lists the known ones.
    """
    wanted = name.upper()
    kind = FILE_TYPES.get(_SHORT.get(wanted, wanted))
    if kind is None:
        known = ", ".join(FILE_TYPES)
        raise UnsupportedModelError(f"unknown type {name[:40]!r}; known: {known}")
    return kind


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The facts about a model that the choice of types depends on."""

    layers: int
    experts: int = 0
    heads_per_kv: int = 1
    is_70b: bool = False

    @classmethod
    def of(cls, architecture: str, keys: Mapping[str, object]) -> ModelShape:
        """Return the facts about a model.

        Args:
            architecture: the name.
            keys: its metadata, without the architecture's prefix.
        """
        layers = _first(keys, "block_count", None)
        experts = _first(keys, "expert_count", 0)
        heads = _first(keys, "attention.head_count", 1)
        kv_heads = _first(keys, "attention.head_count_kv", heads)
        return cls(
            layers=layers,
            experts=experts,
            heads_per_kv=heads // kv_heads if kv_heads else 0,
            is_70b=layers == _LAYERS_OF_70B
            and experts != 8
            and (architecture == "qwen2" or (architecture == "llama" and heads != kv_heads)),
        )


def _first(keys: Mapping[str, object], key: str, default: int | None) -> int:
    """Return a number, that of the first layer if it differs by layer."""
    value = keys.get(key, default)
    if isinstance(value, list | np.ndarray) and len(value):
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ModelFileError(f"key '{key}'", "is missing or not an integer")
    return int(value)


@dataclass(frozen=True, slots=True)
class Override:
    """The user's choice of type for tensors whose names match."""

    pattern: re.Pattern[str]
    type: GGMLType
    is_optional: bool = False  # whether it may match nothing

    @classmethod
    def parse(cls, text: str) -> Override:
        """Parse `PATTERN=TYPE`."""
        pattern, _, name = text.rpartition("=")
        storable = {kind.base.name: kind.base for kind in FILE_TYPES.values()}
        if not pattern or name.upper() not in storable:
            known = ", ".join(storable)
            raise UnsupportedModelError(f"{text!r} is not PATTERN=TYPE with a type of: {known}")
        try:
            return cls(re.compile(pattern), storable[name.upper()])
        except re.error as error:
            raise UnsupportedModelError(f"invalid pattern {pattern!r}: {error}") from error


def is_matrix(name: str, shape: Shape) -> bool:
    """Return whether the quant mix chooses this tensor's type."""
    return name.endswith("weight") and math.prod(shape[:-1]) > 1 and not _KEPT.search(name)


def choose_types(
    shapes: Mapping[str, Shape],
    kind: FileType,
    model: ModelShape,
    overrides: Sequence[Override] = (),
) -> dict[str, GGMLType]:
    """Return the type of each matrix; tensors not in the result keep theirs.

    Args:
        shapes: of all tensors, slowest dimension first.
        kind: the quant mix.
        model: facts about the model.
        overrides: the first that matches a name overrides the mix.
    """
    matrices = [name for name in shapes if is_matrix(name, shapes[name])]
    _check_matches(overrides, matrices)
    chooser = _Chooser(kind, model, shapes)
    chosen = {}
    for name in sorted(matrices, key=lambda name: (_layer(name), name)):
        wanted = next((o.type for o in overrides if o.pattern.search(name)), None)
        if wanted is None:
            wanted = chooser.choose(name) if kind.base.is_quantized else kind.base
        chosen[name] = fitting(wanted, shapes[name])
    return chosen


def _check_matches(overrides: Sequence[Override], matrices: Sequence[str]) -> None:
    """Refuse a pattern that matches nothing: a mistyped one would be without effect.

    Raises:
        RequestError: naming the pattern and similar names.
    """
    for override in overrides:
        if override.is_optional or any(override.pattern.search(name) for name in matrices):
            continue
        parts = {re.sub(r"^blk\.\d+\.|\.weight$", "", name): None for name in matrices}
        wanted = override.pattern.pattern
        near = difflib.get_close_matches(wanted, parts, n=3, cutoff=0.5) or list(parts)[:_SHOWN]
        raise RequestError(
            f"the pattern {wanted!r} matches no matrix of the model; "
            f"similar names: {', '.join(near)}"
        )


def fallbacks(
    types: Mapping[str, tuple[GGMLType, Shape]], overrides: Sequence[Override]
) -> list[str]:
    """Return a line for each tensor whose row length does not allow the type of its override."""
    lines = []
    for name, (kind, shape) in types.items():
        wanted = next((o.type for o in overrides if o.pattern.search(name)), None)
        if wanted is not None and wanted != kind and is_matrix(name, shape):
            rows = f"its rows have {shape[-1]} values"
            lines.append(f"{name} is {kind.name}, not {wanted.name}: {rows}")
    return lines


def fitting(kind: GGMLType, shape: Shape) -> GGMLType:
    """Return a type whose blocks fill a row: the given one, a fallback, or F16."""
    for candidate in (kind, _FALLBACKS.get(kind, kind)):
        if shape[-1] % candidate.block_size == 0:
            return candidate
    return F16


def _layer(name: str) -> int:
    found = _LAYER.match(name)
    return int(found[1]) if found else -1


def _gets_more_bits(layer: int, layers: int) -> bool:
    """Return whether a layer is in the first or last eighth, or every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


class _Chooser:
    """Chooses types matrix by matrix, in the order of the layers."""

    def __init__(self, kind: FileType, model: ModelShape, shapes: Mapping[str, Shape]) -> None:
        self.kind = kind
        self.model = model
        self.shapes = shapes
        self.tied = "output.weight" not in shapes
        self.values = sum(name.endswith(_VALUES) for name in shapes)
        self.values_seen = 0
        self.downs_seen = 0

    def choose(self, name: str) -> GGMLType:
        if name == "output.weight" or (self.tied and name in _EMBEDDINGS):
            return self._output(name)
        if self.kind.name == "MXFP4" and self.model.experts:
            return MXFP4 if len(self.shapes[name]) > 2 else Q8_0
        if name in _EMBEDDINGS:
            return self.kind.base
        for part, rule in _RULES.items():
            if part in name:
                return rule(self, name)
        return self.kind.base

    def _output(self, name: str) -> GGMLType:
        base = self.kind.base
        if base in (Q8_0, MXFP4) or self.shapes[name][-1] % base.block_size:
            return Q8_0
        return Q6_K

    def value(self, name: str) -> GGMLType:  # noqa: ARG002
        """Choose the type of a value projection."""
        index, self.values_seen = self.values_seen, self.values_seen + 1
        chosen = self._value(index)
        if self.model.experts == 8:
            return Q8_0
        return Q5_K if self.model.is_70b and chosen in (Q3_K, Q4_K) else chosen

    def _value(self, index: int) -> GGMLType:
        grouped = self.model.heads_per_kv >= 4
        match self.kind.name:
            case "Q2_K":
                return Q4_K if grouped else Q3_K
            case "Q3_K_M":
                return Q5_K if index < 2 else Q4_K
            case "Q3_K_L":
                return Q5_K
            case "IQ4_NL" | "IQ4_XS" if grouped:
                return Q5_K
            case "Q4_K_M" | "Q5_K_M" if _gets_more_bits(index, self.values):
                return Q6_K
            case "Q4_K_S" if index < 4:
                return Q5_K
        return self.kind.base

    def key(self, name: str) -> GGMLType:  # noqa: ARG002
        """Choose the type of a key projection."""
        return Q8_0 if self.model.experts == 8 else self.kind.base

    def down(self, name: str) -> GGMLType:
        """Choose the type of a down projection."""
        index, self.downs_seen = self.downs_seen, self.downs_seen + 1
        if self.model.experts > 1:
            index = _layer(name)
        layers = self.model.layers
        match self.kind.name:
            case "Q2_K":
                return Q3_K
            case "Q3_K_M":
                return Q5_K if index < layers // 16 else Q4_K
            case "Q3_K_L":
                return Q5_K
            case "Q4_K_M" | "Q5_K_M" if _gets_more_bits(index, layers):
                return Q6_K
            case "IQ4_NL" | "IQ4_XS" | "Q4_K_S" if index < layers // 8:
                return Q5_K
        return self.kind.base

    def attention_output(self, name: str) -> GGMLType:  # noqa: ARG002
        """Choose the type of attention's output projection."""
        mix = self.kind.name
        if self.model.experts == 8:
            few = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")
            return Q5_K if mix in few else self.kind.base
        return {"Q2_K": Q3_K, "Q3_K_M": Q4_K, "Q3_K_L": Q5_K}.get(mix, self.kind.base)


_RULES: Mapping[str, Callable[[_Chooser, str], GGMLType]] = {
    **dict.fromkeys(_VALUES, _Chooser.value),
    "attn_k.weight": _Chooser.key,
    "attn_output.weight": _Chooser.attention_output,
    "ffn_down": _Chooser.down,
}
