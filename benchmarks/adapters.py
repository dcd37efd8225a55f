"""A model with a LoRA adapter of small random changes, for the soak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np

from tampu.ml.gguf import read_gguf

_RANK = 4
_SPREAD = 0.01  # of the factors: the changes are small beside the weights
_CHANGED = ("attn_q.weight", "ffn_up.weight")


def write_adapter(path: Path, base: Path) -> Path:
    """Write an adapter for the queries and the feed-forward layers of a model."""
    file, random = read_gguf(base), np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, file.metadata.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(_RANK))
    for name, tensor in file.tensors.items():
        if name.startswith("blk.") and name.endswith(_CHANGED):
            outputs, inputs = tensor.shape
            for end, shape in (("lora_a", (_RANK, inputs)), ("lora_b", (outputs, _RANK))):
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
