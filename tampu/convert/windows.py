"""Layers with a sliding window among others: which they are, and their own rotation."""

from __future__ import annotations

from collections.abc import Sequence

from tampu.convert.config import Config, Rope, read_rope, rope_settings
from tampu.errors import UnsupportedModelError

FULL, SLIDING = "full_attention", "sliding_attention"


def window_flags(config: Config, usual: Sequence[bool] | None = None) -> list[bool]:
    """Return which layers have a window, as `layer_types` says.

    Args:
        config: the text model's configuration.
        usual: which have one if it does not say; None: none.

    Raises:
        ModelFileError: for other kinds, or another number of them.
    """
    layers = config.layers()
    kinds = config.strings("layer_types")
    if not kinds:
        return [*(usual or [False] * layers)]
    if len(kinds) != layers or set(kinds) - {FULL, SLIDING}:
        raise config.error("layer_types", f"{kinds[:4]} for {layers} layers")
    return [kind == SLIDING for kind in kinds]


def window_rope(config: Config, flags: list[bool], *, is_partial: bool = False) -> Rope | None:
    """Return the rotation of the layers with a window; None if there are none.

    Args:
        config: the text model's configuration.
        flags: which layers have one.
        is_partial: as `read_rope` takes it.

    Raises:
        UnsupportedModelError: if it is scaled.
    """
    if not any(flags):
        config.get("sliding_window")  # files have one that no layer uses
        rope_settings(config).get(SLIDING)
        return None
    rope = read_rope(config, layers=SLIDING, is_partial=is_partial)
    if rope.kind != "none":
        raise UnsupportedModelError(
            f"{rope.settings.where}: sliding layers with scaled positions are not supported"
        )
    return rope
