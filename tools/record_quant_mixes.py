"""Records which types libllama's quantizer chooses, for the test of our choice.

    python -m tools.record_quant_mixes /path/to/libllama.so tests/convert/libllama_quant_mixes.json

The library is that of llama-cpp-python 0.3.36 (ggml 0.25.3); the layout of its parameters is below.
The models have the names and proportions of real ones and nothing but zeros in them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from tampu.convert.quant_mix import FILE_TYPES
from tampu.convert.writer import PlannedFile, TensorToWrite
from tampu.ml.gguf import read_gguf
from tampu.ml.types import GGMLType

Shapes = dict[str, list[int]]


class Parameters(ctypes.Structure):
    """llama_model_quantize_params."""

    _fields_ = (
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int),
        ("output_tensor_type", ctypes.c_int),
        ("token_embedding_type", ctypes.c_int),
        ("allow_requantize", ctypes.c_bool),
        ("quantize_output_tensor", ctypes.c_bool),
        ("only_copy", ctypes.c_bool),
        ("pure", ctypes.c_bool),
        ("keep_split", ctypes.c_bool),
        ("dry_run", ctypes.c_bool),
        ("imatrix", ctypes.c_void_p),
        ("kv_overrides", ctypes.c_void_p),
        ("tt_overrides", ctypes.c_void_p),
        ("prune_layers", ctypes.c_void_p),
        ("max_buf_size", ctypes.c_size_t),
    )


class Peer:
    """libllama's quantizer."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.llama_model_quantize_default_params.restype = Parameters
        self._silence = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda _level, _text, _data: None
        )
        self._library.llama_log_set(self._silence, None)
        self._library.llama_backend_init()

    def quantize(self, source: Path, destination: Path, file_type: int, threads: int = 0) -> None:
        """Write `destination`; `threads` of 0: one for each core."""
        parameters = self._library.llama_model_quantize_default_params()
        parameters.ftype = file_type
        parameters.nthread = threads
        code = self._library.llama_model_quantize(
            str(source).encode(), str(destination).encode(), ctypes.byref(parameters)
        )
        if code:
            raise RuntimeError(f"libllama cannot quantize {source} to {file_type}")


def dense(
    layers: int, width: int, inner: int, heads: int, kv_heads: int, *, tied: bool = False
) -> Shapes:
    head = width // heads
    shapes = {"token_embd.weight": [320, width], "output_norm.weight": [width]}
    if not tied:
        shapes["output.weight"] = [320, width]
    for layer in range(layers):
        parts = {
            "attn_norm.weight": [width],
            "attn_q.weight": [heads * head, width],
            "attn_k.weight": [kv_heads * head, width],
            "attn_k.bias": [kv_heads * head],
            "attn_v.weight": [kv_heads * head, width],
            "attn_output.weight": [width, heads * head],
            "ffn_norm.weight": [width],
            "ffn_gate.weight": [inner, width],
            "ffn_up.weight": [inner, width],
            "ffn_down.weight": [width, inner],
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
    return shapes


def mixture_of_experts(layers: int, experts: int, heads: int, kv_heads: int) -> Shapes:
    shapes = {}
    for name, shape in dense(layers, 256, 256, heads, kv_heads).items():
        if "ffn_" not in name or "norm" in name:
            shapes[name] = shape
        else:
            shapes[name.replace(".weight", "_exps.weight")] = [experts, *shape]
    for layer in range(layers):
        shapes[f"blk.{layer}.ffn_gate_inp.weight"] = [experts, 256]
    return shapes


def fused(layers: int) -> Shapes:
    shapes = dense(layers, 256, 512, 4, 4)
    for layer in range(layers):
        for part in ("q", "k", "v"):
            del shapes[f"blk.{layer}.attn_{part}.weight"]
        del shapes[f"blk.{layer}.attn_k.bias"]
        shapes[f"blk.{layer}.attn_qkv.weight"] = [768, 256]
    return shapes


def models() -> dict[str, tuple[str, int, int, int, int, Shapes]]:
    """Return architecture, layers, heads, kv heads, experts and shapes of each model."""
    return {
        "llama": ("llama", 20, 4, 2, 0, dense(20, 256, 512, 4, 2)),
        "llama_grouped": ("llama", 16, 8, 2, 0, dense(16, 256, 512, 8, 2)),
        "llama_tied": ("llama", 3, 4, 4, 0, dense(3, 256, 256, 4, 4, tied=True)),
        "llama_70b": ("llama", 80, 8, 1, 0, dense(80, 256, 256, 8, 1)),
        "qwen2": ("qwen2", 24, 4, 2, 0, dense(24, 96, 288, 4, 2)),
        "qwen2_odd": ("qwen2", 2, 4, 2, 0, dense(2, 80, 272, 4, 2)),
        "qwen3": ("qwen3", 28, 4, 1, 0, dense(28, 256, 768, 4, 1, tied=True)),
        "gemma3": ("gemma3", 26, 4, 1, 0, dense(26, 288, 1152, 4, 1, tied=True)),
        "mixtral": ("llama", 8, 8, 2, 8, mixture_of_experts(8, 8, 8, 2)),
        "qwen3moe": ("qwen3moe", 12, 4, 2, 4, mixture_of_experts(12, 4, 4, 2)),
        "phi3": ("phi3", 32, 4, 4, 0, fused(32)),
    }


def keys(architecture: str, layers: int, heads: int, kv_heads: int, experts: int) -> dict[str, Any]:
    width = {"gemma3": 288}.get(architecture, 256)
    found: dict[str, Any] = {
        "block_count": layers,
        "context_length": 512,
        "embedding_length": width,
        "feed_forward_length": 512,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": width // heads,
        "vocab_size": 320,
    }
    if architecture == "gemma3":
        found["attention.sliding_window"] = 128
    if experts:
        found |= {"expert_count": experts, "expert_used_count": 2}
    return found


def zeros(name: str, shape: list[int]) -> TensorToWrite:
    kind = GGMLType.F32 if len(shape) == 1 or "ffn_gate_inp" in name else GGMLType.F16
    dtype = np.float32 if kind == GGMLType.F32 else np.float16
    return TensorToWrite(name, tuple(shape), kind, lambda: [lambda: np.zeros(shape, dtype)])


def record(peer: Peer, folder: Path) -> dict[str, Any]:
    found = {}
    for label, (architecture, layers, heads, kv_heads, experts, shapes) in models().items():
        known = keys(architecture, layers, heads, kv_heads, experts)
        metadata = {"general.architecture": architecture, "tokenizer.ggml.model": "none"}
        metadata |= {f"{architecture}.{key}": value for key, value in known.items()}
        source, made = folder / "source.gguf", folder / "made.gguf"
        tensors = [zeros(name, shape) for name, shape in shapes.items()]
        PlannedFile(metadata, tensors).write(source)
        types = {}
        for kind in FILE_TYPES.values():
            peer.quantize(source, made, kind.number)
            types[kind.name] = {
                name: info.type.name for name, info in read_gguf(made).tensors.items()
            }
        found[label] = {
            "architecture": architecture,
            "keys": known,
            "shapes": {_template(name): shape for name, shape in shapes.items()},
            "types": {name: _by_layer(types[name], shapes) for name in types},
        }
    return found


def _template(name: str) -> str:
    return re.sub(r"^blk\.\d+", "blk.{}", name)


def _by_layer(types: dict[str, str], shapes: Shapes) -> dict[str, str]:
    """Return each matrix's types over the layers, as `Q6_K*2 Q4_K*5`."""
    rows: dict[str, list[str]] = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            rows.setdefault(_template(name), []).append(types[name])
    return {
        name: " ".join(f"{kind}*{len(list(run))}" for kind, run in groupby(row))
        for name, row in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = record(Peer(arguments.library), Path(folder))
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
