"""Small adapters as PEFT saves them, and checkpoints with the same changes merged in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file
from transformers import PreTrainedModel

Floats = npt.NDArray[np.float32]
Factors = dict[str, tuple[Floats, Floats]]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ALPHA = 16


def draw_factors(model: PreTrainedModel, rank: int = 4, seed: int = 3) -> Factors:
    """Return A (rank, inputs) and B (outputs, rank) for each projection of a model."""
    random = np.random.default_rng(seed)
    factors = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.endswith(PROJECTIONS):
            outputs, inputs = module.weight.shape
            a = random.normal(size=(rank, inputs)) / inputs**0.5
            b = random.normal(size=(outputs, rank)) / 16
            factors[name] = (a.astype(np.float32), b.astype(np.float32))
    return factors


def merge(model: PreTrainedModel, factors: Factors, scale: float) -> PreTrainedModel:
    """Add scale * B A to each weight, in place."""
    modules = dict(model.named_modules())
    with torch.no_grad():
        for name, (a, b) in factors.items():
            modules[name].weight += scale * torch.from_numpy(b @ a)
    return model


def write_adapter(folder: Path, factors: Factors, **changes: Any) -> Path:
    """Write an adapter's folder; `changes` to adapter_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = next(iter(factors.values()))[0].shape[0] if factors else 1
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "bias": "none"} | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors: dict[str, Floats] = {}
    for name, (a, b) in factors.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
    write_tensors(folder, tensors)
    return folder


def write_tensors(folder: Path, tensors: Mapping[str, Floats]) -> None:
    """Write an adapter's tensors."""
    save_file(dict(tensors), folder / "adapter_model.safetensors")
