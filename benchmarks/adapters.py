"""LoRA adapters of small random changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np

from tampu.ml.gguf import read_gguf

_SPREAD = 0.01  # of the factors: the changes are small beside the weights
_CHANGED = ("attn_q.weight", "ffn_up.weight")


def write_adapter(
    path: Path, base: Path, *, rank: int = 4, seed: int = 1, changed: tuple[str, ...] = _CHANGED
) -> Path:
    """Write an adapter for weights of a model's layers, by default of the queries and `up`.

    Args:
        path: of the file.
        base: the model's file.
        rank: of the matrices.
        seed: of their values.
        changed: ends of the names of the weights that it changes; "": all matrices.
    """
    file, random = read_gguf(base), np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, file.metadata.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for name, tensor in file.tensors.items():
        is_matrix = name.startswith("blk.") and len(tensor.shape) == 2
        if is_matrix and name.endswith(changed):
            outputs, inputs = tensor.shape
            for end, shape in (("lora_a", (rank, inputs)), ("lora_b", (outputs, rank))):
                values = random.normal(0, _SPREAD, shape).astype(np.float32)
                writer.add_tensor(f"{name}.{end}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def create_adapted(name: str, base: Path, models: Path) -> None:
    """Create a model with an adapter in a folder of models."""
    adapter = write_adapter(models / "adapter.lora", base)
    file = models / "Modelfile"
    file.write_text(f"FROM {base}\nADAPTER {adapter}\n")
    command = [sys.executable, "-m", "tampu.cli.entry", "create", name, "--file", str(file)]
    variables = {"PATH": os.defpath, "HOME": str(models), "TAMPU_MODELS": str(models)}
    subprocess.run(command, env=variables, check=True, capture_output=True)
