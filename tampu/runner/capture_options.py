"""What a request captures, as its caller says it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tampu.errors import RequestError
from tampu.settings.type_errors import convert


class CaptureOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request captures.

    Attributes:
        points: names of points as in `tampu.nn.points`, such as "hidden_states"; with a layer, as
            "hidden_states:12", or all of `layers`.
        layers: numbers of layers from 0, those below 0 from the end; None: all that have the point.
        positions: of tokens in the prompt and the answer, from 0, those below 0 from the end of the
            prompt; None: all.
        max_bytes: that the values may have; None: what fits into memory.
        field: what messages call all of this.
        heads: numbers of heads from 0 whose attention weights are captured, in the order of the
            values and as often as they are named; None: all.
        prefix: of the names of the other fields where they are not inside of `field`.
    """

    points: tuple[str, ...]
    layers: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    max_bytes: int | None = None
    field: str = "capture"
    heads: tuple[int, ...] | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        """Check that something is captured.

        Raises:
            RequestError: naming what is empty.
        """
        lists = (self.points, self.layers, self.positions, self.heads)
        for name, given in zip(("points", "layers", "positions", "heads"), lists, strict=True):
            if given is not None and not given:
                raise RequestError(f"{self.begin(name)} is empty")

    def begin(self, name: str) -> str:
        """Return how a message about one of the fields begins."""
        return f"{self.prefix}{name}" if self.prefix else f"{self.field}: {name}"


def capture_options(values: Mapping[str, object]) -> CaptureOptions:
    """Return keyword values as options.

    Raises:
        RequestError: for an unknown name or a value of the wrong type.
    """
    return convert(dict(values), CaptureOptions, "capture")
