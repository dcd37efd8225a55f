"""What llama.cpp's file of a vision encoder has beyond the names: kinds, keys and fused tensors.

By the kind that a file states, or the architecture of its text model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.gguf_compat.layout import Keys, no_keys
from tampu.gguf_compat.tensors import chosen_rows, computed, joined, rows_of
from tampu.ml.gguf_file import GGUFFile, TensorInfo
from tampu.ml.metadata import Metadata, Value

Stated: TypeAlias = dict[str, Value | None]


def _same(value: float) -> npt.NDArray[np.float32]:
    """Return a number for each color."""
    return np.full(3, value, np.float32)


_HALVES: Stated = {"vision.image_mean": _same(0.5), "vision.image_std": _same(0.5)}
_CLIP: Stated = {
    "vision.image_mean": np.array([0.48145466, 0.4578275, 0.40821073], np.float32),
    "vision.image_std": np.array([0.26862954, 0.26130258, 0.27577711], np.float32),
}
_IMAGENET: Stated = {
    "vision.image_mean": np.array([0.485, 0.456, 0.406], np.float32),
    "vision.image_std": np.array([0.229, 0.224, 0.225], np.float32),
}
_NONE: Stated = {"vision.image_mean": _same(0.0), "vision.image_std": _same(1.0)}
_QUERY = re.compile(r"(v\.blk\.\d+)\.attn_q\.(weight|bias)")
_OTHER_PARTS = re.compile(r"v\.blk\.\d+\.attn_[kv]\.(weight|bias)")
_TURNED = re.compile(r"v\.blk\.\d+\.attn_[qk]\.(weight|bias)")
_POSITIONS, _PATCHES = "v.position_embd.weight", "v.patch_embd.weight"


def _unchanged(file: GGUFFile, tensors: Iterable[TensorInfo]) -> Iterable[TensorInfo]:  # noqa: ARG001
    return tensors


@dataclass(frozen=True, kw_only=True)
class Projector:
    """How the vision encoder of an architecture is written.

    Attributes:
        kind: `clip.projector_type`.
        defaults: keys under `clip.` for files that lack them.
        keys: keys that follow from the model's file.
        tensors: the tensors, made of those with llama.cpp's names.
    """

    kind: str
    defaults: Keys = field(default_factory=dict)
    keys: Callable[[GGUFFile], Keys] = no_keys
    tensors: Callable[[GGUFFile, Iterable[TensorInfo]], Iterable[TensorInfo]] = _unchanged


def _width(file: GGUFFile) -> Keys:
    """Return the width of the feed-forward parts, for files that leave it to the tensors."""
    key = "vision.feed_forward_length"
    info = file.tensors.get("v.blk.0.ffn_up.weight")
    return {key: info.shape[0]} if info and not file.metadata.has(key) else {}


def _of_gemma3(file: GGUFFile) -> Keys:
    metadata = file.metadata
    tokens = metadata.integer("mm.tokens_per_image", 0)
    if not tokens:
        return {}
    side = metadata.integer("vision.image_size") // metadata.integer("vision.patch_size")
    return {"vision.projector.scale_factor": max(1, side // max(1, math.isqrt(tokens)))}


def _of_gemma4(file: GGUFFile) -> Keys:
    """Return the keys of Gemma 4; an encoder of one layer, without attention, is another kind."""
    is_unified = any(name.startswith("v.patch_norm.") for name in file.tensors)
    return {**_width(file), **({"projector_type": "gemma4uv"} if is_unified else {})}


def _of_llama4(file: GGUFFile) -> Keys:
    ratio = file.metadata.number("vision.pixel_shuffle_ratio", 0.5)
    return {"vision.projector.scale_factor": max(1, round(1 / ratio)) if ratio > 0 else 2}


def _of_qwen25(file: GGUFFile) -> Keys:
    full = file.metadata.integers("vision.fullatt_block_indexes", [7]).tolist()
    return {
        **_width(file),
        "vision.n_wa_pattern": full[0] + 1 if full else 8,
        "vision.fullatt_block_indexes": None,
    }


def _pixel_limits(file: GGUFFile) -> Keys:
    """Return the fewest and the most pixels of an image."""
    metadata = file.metadata
    return {
        f"vision.image_{name}": metadata.integer(f"vision.{name}")
        for name in ("min_pixels", "max_pixels")
        if metadata.has(f"vision.{name}")
    }


def _of_qwen3(file: GGUFFile) -> Keys:
    metadata, found = file.metadata, dict(_width(file))
    positions = file.tensors.get(_POSITIONS)
    if positions and not metadata.has("vision.image_size"):
        side = math.isqrt(positions.shape[0]) * metadata.integer("vision.patch_size", 16)
        found["vision.image_size"] = side
    layers = metadata.integer("vision.block_count")
    stack = metadata.integers("vision.deepstack_visual_indexes", []).tolist()
    found["vision.is_deepstack_layers"] = np.array([index in stack for index in range(layers)])
    return {**found, **_pixel_limits(file)}


def _fused(file: GGUFFile, tensors: Iterable[TensorInfo]) -> Iterable[TensorInfo]:  # noqa: ARG001
    """Yield the tensors; queries, keys and values are in one."""
    held = {info.name: info for info in tensors}
    for name, info in held.items():
        query = _QUERY.fullmatch(name)
        if query:
            parts = [f"{query[1]}.attn_{part}.{query[2]}" for part in "qkv"]
            missing = next((part for part in parts if part not in held), None)
            if missing:
                raise ModelFileError(f"tensor {missing}", "missing from the file")
            yield joined(f"{query[1]}.attn_qkv.{query[2]}", [held[part] for part in parts])
        elif not _OTHER_PARTS.fullmatch(name):
            yield info


def _neighbours(file: GGUFFile, tensors: Iterable[TensorInfo]) -> Iterable[TensorInfo]:
    """Yield Pixtral's tensors: features that rotate together side by side, and the row's end."""
    heads = file.metadata.integer("vision.attention.head_count")
    for info in tensors:
        if _TURNED.fullmatch(info.name):
            yield chosen_rows(info, info.name, _side_by_side(info, heads))
        else:
            yield info
    tokens = file.metadata.strings("tokenizer.ggml.tokens", ())
    embedding = file.tensors.get("token_embd.weight")
    stop = next((index for index, text in enumerate(tokens) if text == "[IMG_BREAK]"), None)
    if embedding and stop is not None and stop < embedding.shape[0]:
        row = rows_of(embedding, embedding.name, stop, 1)
        shape = (embedding.shape[1],)
        yield computed("v.token_embd.img_break", shape, [row], lambda row: row.reshape(-1))


def _side_by_side(info: TensorInfo, heads: int) -> list[int]:
    """Return the rows 0, n / 2, 1, n / 2 + 1, ... of each head's n."""
    if heads < 1 or info.shape[0] % (2 * heads):
        reason = f"has {info.shape[0]} rows, not {heads} heads of pairs"
        raise ModelFileError(f"tensor {info.name}", reason)
    order = np.arange(info.shape[0]).reshape(heads, 2, -1)
    return [int(row) for row in order.swapaxes(1, 2).reshape(-1)]


def _of_nemotron(file: GGUFFile) -> Keys:
    keys = {"vision.max_tiles", "vision.min_num_patches", "vision.max_num_patches"}
    held = {key: file.metadata[file.metadata.full_key(key)] for key in keys
            if file.metadata.has(key)}  # fmt: skip
    return {**_width(file), **held, "has_audio_encoder": False}


def _on_grid(file: GGUFFile, tensors: Iterable[TensorInfo]) -> Iterable[TensorInfo]:
    """Yield Nemotron's tensors: positions for the usual image, patches as a convolution."""
    metadata = file.metadata
    patch = metadata.integer("vision.patch_size", 16)
    side = metadata.integer("vision.image_size", 512) // max(1, patch)
    for info in tensors:
        if info.name == _POSITIONS:
            yield _resized(info, side)
        elif info.name == _PATCHES and len(info.shape) == 2:
            channels = info.shape[1] // patch**2
            shape = (info.shape[0], channels, patch, patch)
            if math.prod(shape) != math.prod(info.shape):
                reason = f"has {info.shape[1]} inputs, not patches of {patch} x {patch}"
                raise ModelFileError(f"tensor {info.name}", reason)
            yield computed(info.name, shape, [info], partial(_in_shape, shape))
        else:
            yield info


def _in_shape(shape: tuple[int, ...], values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return values.reshape(shape)


def _resized(info: TensorInfo, side: int) -> TensorInfo:
    """Return the embeddings of another square grid, interpolated between those of the file's."""
    positions, features = info.shape[-2:]
    old = math.isqrt(positions)
    if old**2 != positions or side < 1:
        raise ModelFileError(f"tensor {info.name}", f"{positions} positions are not a square")

    def resize(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        where = np.linspace(0, old - 1, side)
        low = np.floor(where).astype(int)
        high, part = np.minimum(low + 1, old - 1), (where - low)[:, None]
        grid = values.reshape(old, old, features)
        rows = grid[low] * (1 - part)[..., None] + grid[high] * part[..., None]
        both: npt.NDArray[np.float32] = rows[:, low] * (1 - part) + rows[:, high] * part
        return both.reshape(-1, features)

    return computed(info.name, (side**2, features), [info], resize)


def _numbers(metadata: Metadata, key: str) -> Keys:
    return {key: metadata[metadata.full_key(key)]} if metadata.has(key) else {}


_GELU: Stated = {"use_gelu": True}
_SILU: Stated = {"use_silu": True}
_EPSILON: Stated = {"vision.attention.layer_norm_epsilon": 1e-6}
_QWEN3 = Projector(
    kind="qwen3vl_merger",
    defaults=_HALVES
    | _GELU
    | _EPSILON
    | {"vision.patch_size": 16, "vision.spatial_merge_size": 2, "vision.num_channels": 3},
    keys=_of_qwen3,
    tensors=_fused,
)
_NEMOTRON = Projector(
    kind="nemotron_v2_vl",
    defaults=_CLIP
    | _GELU
    | _EPSILON
    | {
        "vision.attention.head_count": 16,
        "vision.patch_size": 16,
        "vision.image_size": 512,
        "vision.projector.scale_factor": 2,
    },
    keys=_of_nemotron,
    tensors=_on_grid,
)
_GEMMA4 = Projector(
    kind="gemma4v", defaults=_NONE | _EPSILON | {"vision.image_size": 224}, keys=_of_gemma4
)
_STATED: Mapping[str, Projector] = {
    "idefics3": Projector(kind="idefics3", defaults=_HALVES | _GELU | _EPSILON),
    "paddleocr": Projector(
        kind="paddleocr", defaults=_HALVES | _GELU | _EPSILON, keys=_pixel_limits
    ),
    "internvl": Projector(kind="internvl", defaults=_IMAGENET | _GELU | _EPSILON),
    "minicpmv4_6": Projector(kind="minicpmv4_6", defaults=_HALVES | _GELU | _EPSILON),
    "deepseekocr2": Projector(kind="deepseekocr2", defaults=_HALVES | _GELU | _EPSILON),
    "lfm2": Projector(kind="lfm2", defaults=_HALVES | _GELU | _EPSILON),
}
_OF_ARCHITECTURES: Mapping[str, Projector] = {
    "deepseek2-ocr": Projector(
        kind="deepseekocr",
        defaults=_HALVES
        | _GELU
        | _EPSILON
        | {
            "vision.feed_forward_length": 64,
            "vision.projector.scale_factor": 1,
            "vision.window_size": 14,
        },
    ),
    "gemma3": Projector(kind="gemma3", defaults=_HALVES | _GELU | _EPSILON, keys=_of_gemma3),
    "gemma4": _GEMMA4,
    "gemma-embedding2": _GEMMA4,
    "glm4": Projector(
        kind="glm4v",
        defaults=_CLIP | _SILU,
        tensors=_fused,
        keys=lambda file: _numbers(file.metadata, "vision.projection_dim"),
    ),
    "llama": Projector(
        kind="mlp",
        defaults=_CLIP | {"use_gelu": False},
        keys=lambda file: _numbers(file.metadata, "use_gelu"),
    ),
    "llama4": Projector(kind="llama4", defaults=_HALVES | _GELU | _EPSILON, keys=_of_llama4),
    "mistral3": Projector(
        kind="pixtral",
        defaults=_CLIP | _SILU | {"vision.attention.layer_norm_epsilon": 1e-5},
        tensors=_neighbours,
    ),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": _NEMOTRON,
    "qwen2vl": Projector(
        kind="qwen2.5vl_merger",
        defaults=_CLIP | _SILU | _EPSILON | {"vision.image_size": 560},
        keys=_of_qwen25,
    ),
    "qwen35": _QWEN3,
    "qwen35moe": _QWEN3,
    "qwen3vl": _QWEN3,
    "qwen3vlmoe": _QWEN3,
}


def projector_of(metadata: Metadata) -> Projector:
    """Return how the vision encoder of a file of text and vision is written.

    Raises:
        UnsupportedModelError: if it is not known.
    """
    stated, architecture = metadata.string("vision.projector_type", ""), metadata.architecture
    found = _STATED.get(stated) or _OF_ARCHITECTURES.get(architecture)
    if not found:
        known = ", ".join(sorted({*_STATED, *_OF_ARCHITECTURES}))
        raise UnsupportedModelError(
            f"the vision encoder of '{architecture}' cannot be written to a file of its own; "
            f"known: {known}"
        )
    return found
