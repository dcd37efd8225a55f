"""Tensors of Ollama's published files that differ from llama.cpp's in more than their name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tampu.gguf_compat.mtp_layers import number_mtp_layers
from tampu.gguf_compat.tensors import frames_of, joined, rows_of
from tampu.ml.gguf_file import GGUFFile, TensorInfo

_PATCHES = "v.patch_embed.weight"
_DEEPSTACK = re.compile(r"v\.deepstack_merger\.(\d+)\.(norm|linear_fc1|linear_fc2)\.(weight|bias)")
_GATE = re.compile(r"(blk\.\d+)\.ffn_gate\.weight")
_FRAMES = ("v.patch_embd.weight", "v.patch_embd.weight.1")
_EMBEDDING, _LAYERS_EMBEDDING = "token_embd.weight", "per_layer_token_embd.weight"


def has_longer_vocabulary(file: GGUFFile) -> bool:
    """Return whether Gemma 3n has embeddings of images and sound behind those of texts."""
    both = [file.tensors.get(name) for name in (_EMBEDDING, _LAYERS_EMBEDDING)]
    whole, layers = both
    return whole is not None and layers is not None and whole.shape[0] > layers.shape[0]


def of_gemma3n(file: GGUFFile) -> Iterable[TensorInfo]:
    """Yield the tensors; the embedding has as many tokens as those of the layers."""
    count = file.tensors[_LAYERS_EMBEDDING].shape[0]
    for info in file.tensors.values():
        yield rows_of(info, info.name, 0, count) if info.name == _EMBEDDING else info


def of_qwen35(file: GGUFFile) -> Iterable[TensorInfo]:
    """Yield the tensors, MTP layers after the last layer and the patches in two kernels."""
    return _two_frames(number_mtp_layers(file, file.tensors.values()))


def of_qwen3vl(file: GGUFFile) -> Iterable[TensorInfo]:
    """Yield the tensors; what is added to the text is numbered by the encoder's layers."""
    stack = file.metadata.integers("vision.deepstack_visual_indexes", []).tolist()

    def placed(info: TensorInfo) -> TensorInfo:
        found = _DEEPSTACK.fullmatch(info.name)
        if not found or int(found[1]) >= len(stack):
            return info
        part = found[2].removeprefix("linear_")
        return replace(info, name=f"v.deepstack.{stack[int(found[1])]}.{part}.{found[3]}")

    return _two_frames(map(placed, file.tensors.values()))


def of_glmocr(file: GGUFFile) -> Iterable[TensorInfo]:
    """Yield the tensors; gate and up projections are in one."""
    for info in file.tensors.values():
        gate = _GATE.fullmatch(info.name)
        up = re.fullmatch(r"(blk\.\d+)\.ffn_up\.weight", info.name)
        if up and f"{up[1]}.ffn_gate.weight" in file.tensors:
            yield joined(info.name, [file.tensors[f"{up[1]}.ffn_gate.weight"], info])
        elif not (gate and f"{gate[1]}.ffn_up.weight" in file.tensors):
            yield info


def _two_frames(tensors: Iterable[TensorInfo]) -> Iterable[TensorInfo]:
    """Yield the tensors, a patch convolution over time as the kernels of its two frames."""
    for info in tensors:
        if info.name == _PATCHES:
            yield from frames_of(info, _FRAMES)
        else:
            yield info
