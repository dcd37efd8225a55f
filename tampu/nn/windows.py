"""Which layers have a sliding window, as files describe it."""

from __future__ import annotations

from collections.abc import Callable

from tampu.errors import ModelFileError
from tampu.ml.metadata import Metadata

_KEY = "attention.sliding_window_pattern"


def read_windows(
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
        layers = metadata.integer("block_count")
        stated = metadata.get(metadata.full_key(_KEY), period)
        if not isinstance(stated, int):
            pattern = tuple(bool(each) for each in metadata.integers(_KEY))
            if len(pattern) != layers:
                reason = f"{len(pattern)} entries for {layers} layers"
                raise ModelFileError(f"key '{metadata.full_key(_KEY)}'", reason)
            return pattern
        every = metadata.integer(_KEY, period)
        if every < 1:
            raise ModelFileError(f"key '{metadata.full_key(_KEY)}'", f"{every} is not above 0")
        return tuple((layer + (not full_first)) % every != 0 for layer in range(layers))

    return read
