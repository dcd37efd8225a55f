"""Tensors, graphs, devices and weight files: everything that touches ggml.

The other packages see `Tensor` (a typed handle with shapes in NumPy's order, slowest dimension
first), `Context` (a graph being built), `Backend` (devices, memory, computing) and `Weights` (the
tensors of a file, each in the fastest memory). They are imported when first used: reading the
header of a file (`tampu.ml.gguf`) loads no native code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tampu.ml.backend import Backend
    from tampu.ml.context import Context, Storage
    from tampu.ml.rotary import RopeMode, RopeScaling
    from tampu.ml.tensor import Graph, Tensor
    from tampu.ml.types import GGMLType
    from tampu.ml.weights import Weights

__all__ = [
    "Backend",
    "Context",
    "GGMLType",
    "Graph",
    "RopeMode",
    "RopeScaling",
    "Storage",
    "Tensor",
    "Weights",
]

_HOMES = {
    "Backend": "backend",
    "Context": "context",
    "GGMLType": "types",
    "Graph": "tensor",
    "RopeMode": "rotary",
    "RopeScaling": "rotary",
    "Storage": "context",
    "Tensor": "tensor",
    "Weights": "weights",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tampu.ml' has no attribute '{name}'")
    return vars(import_module(f"tampu.ml.{_HOMES[name]}"))[name]
