"""Where each weight of a file goes, by how a model uses it: decided before anything is loaded."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Set
from dataclasses import dataclass

from tampu.ml.backend import Backend
from tampu.ml.device_map import layer_of
from tampu.ml.devices import Device
from tampu.ml.library import OpaquePointer
from tampu.ml.probe import can_multiply
from tampu.ml.tensor import Tensor


class Use(enum.Enum):
    """What a model does with a weight."""

    ELEMENTS = "elements"  # multiplied or added element by element
    ROWS = "rows"  # rows are looked up
    PRODUCT = "product"  # matrix product
    CHOSEN = "chosen"  # products with the matrices of experts, of which each token uses a few


_ONLY_PRODUCTS = ({Use.PRODUCT}, {Use.CHOSEN})


@dataclass(frozen=True, slots=True)
class Homes:
    """Where the weights of a file go, by name; those of other devices' layers are not among them.

    Attributes:
        twice: the processor's that a device needs as well.
        own: in the layout of the package's kernels, with the bytes that they take there.
        packed: in a packed layout of ggml's, or copied as they are, with the type of buffer.
        in_place: in the mapped file.
    """

    twice: dict[str, Device]
    own: dict[str, int]
    packed: dict[str, OpaquePointer]
    in_place: list[str]


def find_homes(
    backend: Backend,
    uses: Mapping[str, Set[Use]],
    tensors: Mapping[str, Tensor],
    *,
    mapped: bool,
) -> Homes:
    """Decide where each weight goes.

    Args:
        backend: whose devices compute with them.
        uses: of each weight that is used.
        tensors: all of the file.
        mapped: whether the file's mapping may be used.
    """
    near = [name for name in uses if backend.placement.of_weight(name) is None]
    device = backend.placement.of_output()
    twice = {
        name: device  # a tied output's
        for name in uses
        if device and uses[name] == {Use.ROWS, Use.PRODUCT} and layer_of(name, 0) is None
    }
    own = {
        name: size
        for name in near
        if name not in twice and (size := _own_bytes(backend, tensors[name], uses[name]))
    }
    others = [name for name in near if name not in own]
    packed = {
        name: kind for name in others if (kind := _packing(backend, tensors[name], uses[name]))
    }
    in_place = [name for name in others if name not in packed]
    in_place += [name for name in own if uses[name] not in _ONLY_PRODUCTS]
    if mapped:
        return Homes(twice, own, packed, in_place)
    return Homes(twice, own, packed | dict.fromkeys(in_place, backend.cpu.buffer_type), [])


def _own_bytes(backend: Backend, weight: Tensor, uses: Set[Use]) -> int:
    """Return how large a weight is in the layout of the package's kernels; 0: it has none."""
    kernels = backend.kernels
    if kernels is None:
        return 0
    is_product = Use.PRODUCT in uses and len(weight.shape) == 2 and kernels.choice.products
    is_chosen = Use.CHOSEN in uses and len(weight.shape) == 3 and kernels.choice.experts
    if not (is_product or is_chosen):
        return 0
    *experts, rows, inputs = weight.shape
    return kernels.packed_bytes(weight.type, rows, inputs, *experts)


def _packing(backend: Backend, weight: Tensor, uses: Set[Use]) -> OpaquePointer | None:
    """Return the packed buffer type that a weight can live in for all its uses, if any."""
    if uses not in _ONLY_PRODUCTS:
        return None
    for kind in backend.cpu.packed_buffer_types:
        if can_multiply(backend.cpu.handle, weight.pointer, kind):
            return kind
    return None
