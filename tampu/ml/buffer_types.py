"""Chooses the device and buffer type of each weight by how the model uses it, before loading."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass

from tampu.ml.backend import Backend
from tampu.ml.device_map import layer_of
from tampu.ml.devices import Device
from tampu.ml.library import OpaquePointer
from tampu.ml.tensor import Shape, Tensor


class WeightUse(enum.Enum):
    """How a model uses a weight."""

    ELEMENTS = "elements"  # multiplied or added element by element
    ROWS = "rows"  # rows are looked up
    PRODUCT = "product"  # matrix product
    EXPERTS = "experts"  # products with the matrices of experts, of which each token uses a few
    CONVOLUTION = "convolution"  # product of patches with a kernel: all but its first axis are one


_ONLY_PRODUCTS = ({WeightUse.PRODUCT}, {WeightUse.EXPERTS}, {WeightUse.CONVOLUTION})


@dataclass(frozen=True, slots=True)
class BufferTypes:
    """The CPU weights of a file by the kind of memory that they go to.

    Attributes:
        copied: also copied to a device.
        repacked: in the layout of the package's kernels, with their size in it in bytes.
        packed: in a buffer of this ggml type, repacked by ggml or as they are.
        in_place: used in the mapped file.
    """

    copied: dict[str, Device]
    repacked: dict[str, int]
    packed: dict[str, OpaquePointer]
    in_place: list[str]


def choose_buffer_types(
    backend: Backend,
    uses: Mapping[str, Set[WeightUse]],
    tensors: Mapping[str, Tensor],
    *,
    mapped: bool,
    computed: Collection[str] = (),
) -> BufferTypes:
    """Choose the memory of each weight in `uses`.

    Args:
        backend: whose devices compute with them.
        uses: how the model uses each.
        tensors: by name.
        mapped: whether the file's mapping may be used.
        computed: weights that are not in the file as they are.
    """
    near = [name for name in uses if backend.device_map.of_weight(name) is None]
    device = backend.device_map.of_output()
    copied = {
        name: device  # a tied output's
        for name in uses
        if device
        and uses[name] == {WeightUse.ROWS, WeightUse.PRODUCT}
        and layer_of(name, 0) is None
        and name in near
    }
    repacked = {
        name: size
        for name in near
        if name not in copied
        and name not in computed
        and (size := _repacked_bytes(backend, tensors[name], uses[name]))
    }
    others = [name for name in near if name not in repacked]
    packed = {
        name: kind for name in others if (kind := _packing(backend, tensors[name], uses[name]))
    }
    in_place = [name for name in others if name not in packed]
    in_place += [name for name in repacked if uses[name] not in _ONLY_PRODUCTS]
    apart = [name for name in in_place if not mapped or name in computed]
    in_place = [name for name in in_place if name not in apart]
    packed |= dict.fromkeys(apart, backend.cpu.buffer_type)
    return BufferTypes(copied, repacked, packed, in_place)


def _repacked_bytes(backend: Backend, weight: Tensor, uses: Set[WeightUse]) -> int:
    """Return a weight's size in the layout of the package's kernels; 0: it has none."""
    kernels = backend.kernels
    if kernels is None:
        return 0
    is_product = WeightUse.PRODUCT in uses and len(weight.shape) == 2 and kernels.choice.products
    is_product |= uses == {WeightUse.CONVOLUTION} and kernels.choice.products
    is_of_experts = WeightUse.EXPERTS in uses and len(weight.shape) == 3 and kernels.choice.experts
    if not (is_product or is_of_experts):
        return 0
    *experts, rows, inputs = matrix_shape(weight.shape, uses)
    return kernels.packed_bytes(weight.type, rows, inputs, *experts)


def matrix_shape(shape: Shape, uses: Set[WeightUse]) -> Shape:
    """Return the shape in which a weight is multiplied: (outputs, inputs), or with experts."""
    if WeightUse.CONVOLUTION in uses:
        return shape[0], math.prod(shape[1:])
    return shape


def _packing(backend: Backend, weight: Tensor, uses: Set[WeightUse]) -> OpaquePointer | None:
    """Return the packed buffer type that supports all uses of a weight, if any."""
    if uses not in _ONLY_PRODUCTS or backend.is_deterministic:
        return None  # ggml multiplies its packed layouts by other code for one row than for several
    if uses == {WeightUse.CONVOLUTION}:
        return None  # ggml has no view of a kernel in such a layout as a matrix
    is_of_experts = WeightUse.EXPERTS in uses
    for kind in backend.cpu.packed_buffer_types:
        if backend.cpu.can_multiply(weight.pointer, kind, is_of_experts=is_of_experts):
            return kind
    return None
