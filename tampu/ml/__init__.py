"""Tensors, graphs, devices and weight files: all that touches ggml.

The other packages see `Tensor` (a typed handle with shapes in NumPy's order, slowest dimension
first), `Context` (a graph being built), `Backend` (devices, memory, computing) and `Weights` (the
tensors of a file, each where it is fastest).
"""

from tampu.ml.backend import Backend
from tampu.ml.context import Context, Storage
from tampu.ml.tensor import RopeMode, RopeScaling, Tensor
from tampu.ml.types import GGMLType
from tampu.ml.weights import Weights

__all__ = [
    "Backend",
    "Context",
    "GGMLType",
    "RopeMode",
    "RopeScaling",
    "Storage",
    "Tensor",
    "Weights",
]
