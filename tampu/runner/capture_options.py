"""What a request captures, as its caller says it."""

from __future__ import annotations

import msgspec

from tampu.errors import RequestError


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
    """

    points: tuple[str, ...]
    layers: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    max_bytes: int | None = None
    field: str = "capture"

    def __post_init__(self) -> None:
        """Check that something is captured.

        Raises:
            RequestError: naming what is empty.
        """
        for name, given in (("points", self.points), ("layers", self.layers)):
            if given is not None and not given:
                raise RequestError(f"{self.field}: {name} is empty")
        if self.positions is not None and not self.positions:
            raise RequestError(f"{self.field}: positions is empty")
