"""The placement of a loaded model on devices, as its process reports it."""

from __future__ import annotations

import msgspec


class DeviceShare(msgspec.Struct, frozen=True):
    """What one device has of a model.

    Attributes:
        name: of the device: `CUDA.0`, `CPU.0`.
        layers: that it computes; the output layer is the last, after the model's own.
        experts: layers of other devices whose experts it has.
        has_embedding: whether it has the token embeddings.
        weights: bytes.
        cache: bytes of keys and values, and of recurrent states.
        graphs: bytes of intermediate results.
    """

    name: str
    layers: tuple[int, ...]
    experts: tuple[int, ...]
    has_embedding: bool
    weights: int
    cache: int
    graphs: int

    @property
    def total(self) -> int:
        """All of its bytes."""
        return self.weights + self.cache + self.graphs


class Placement(msgspec.Struct, frozen=True):
    """Where a model is.

    Attributes:
        shares: what each device has of it, the CPU last; empty: unknown.
        reason: which layers are on which device and why, in one sentence; empty without a GPU.
    """

    shares: tuple[DeviceShare, ...] = ()
    reason: str = ""

    @property
    def device_bytes(self) -> int:
        """The bytes that it takes on GPUs."""
        return sum(share.total for share in self.shares[:-1])
