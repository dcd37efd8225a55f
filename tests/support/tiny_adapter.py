"""Small adapters, as GGUF files, for tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tampu.ml.gguf import read_gguf


def write_tiny_adapter(
    path: Path, model: Path, *, seed: int = 1, rank: int = 4, size: float = 1.0, **changes: Any
) -> Path:
    """Write an adapter of every projection of a model's layers.

    Args:
        path: of the file.
        model: the model's file.
        seed: of the values.
        rank: of the matrices.
        size: of the values.
        changes: to the metadata: architecture, type, kind; `extra` names one more tensor.
    """
    random = np.random.default_rng(seed)
    base = read_gguf(model)
    writer = gguf.GGUFWriter(path, changes.get("architecture", base.metadata.architecture))
    writer.add_string("general.type", changes.get("type", "adapter"))
    writer.add_string("adapter.type", changes.get("kind", "lora"))
    writer.add_float32("adapter.lora.alpha", 2.0 * rank)
    for name, info in base.tensors.items():
        if name.startswith("blk.") and len(info.shape) == 2 and "conv1d" not in name:
            outputs, inputs = info.shape
            a, b = random.normal(size=(rank, inputs)), random.normal(size=(outputs, rank))
            writer.add_tensor(f"{name}.lora_a", (a / inputs**0.5).astype(np.float32))
            writer.add_tensor(f"{name}.lora_b", (b * size / rank**0.5).astype(np.float32))
    if "extra" in changes:
        writer.add_tensor(changes["extra"], np.ones((rank, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
