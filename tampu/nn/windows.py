"""Which layers have a sliding window, or another property, as files describe it."""

from __future__ import annotations

from collections.abc import Callable

from tampu.errors import ModelFileError
from tampu.ml.metadata import Metadata
from tampu.nn.decoder import read_layers

_WINDOWS = "attention.sliding_window_pattern"


def read_window_pattern(
    period: int, *, full_first: bool = False
) -> Callable[[Metadata], tuple[bool, ...]]:
    """Return a reader of whether each layer has a window, for `option_from`.

    A file lists it for each layer, or has the number of layers of which one has none; without that
    it is `period`.

    Args:
        period: of the architecture.
        full_first: whether the first layer of each period has none, not the last.
    """

    def read(metadata: Metadata) -> tuple[bool, ...]:
        if not isinstance(metadata.get(metadata.full_key(_WINDOWS), period), int):
            return read_pattern(metadata, _WINDOWS)
        layers, every = metadata.integer("block_count"), metadata.integer(_WINDOWS, period)
        if every < 1:  # as llama.cpp reads it: no layer is without one
            return (True,) * layers
        return tuple((layer + (not full_first)) % every != 0 for layer in range(layers))

    return read


def read_windows(
    metadata: Metadata, period: int, *, full_first: bool = False
) -> tuple[int | None, ...]:
    """Return how many positions each layer attends to; None: all. As `read_window_pattern`."""
    window = metadata.integer("attention.sliding_window", 0)
    flags = read_window_pattern(period, full_first=full_first)(metadata)
    return tuple(window if flag and window else None for flag in flags[: read_layers(metadata)])


def read_pattern(metadata: Metadata, key: str) -> tuple[bool, ...]:
    """Return a property that a file lists for each layer; without the list all layers have it.

    Raises:
        ModelFileError: if there are more or fewer entries than layers.
    """
    layers = metadata.integer("block_count")
    if not metadata.has(key):
        return (True,) * layers
    pattern = tuple(bool(each) for each in metadata.integers(key))
    if len(pattern) != layers:
        reason = f"{len(pattern)} entries for {layers} layers"
        raise ModelFileError(f"key '{metadata.full_key(key)}'", reason)
    return pattern
