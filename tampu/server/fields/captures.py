"""Values inside the model that a request asks for, and how a response has them."""

from __future__ import annotations

import base64
from collections.abc import Collection
from typing import Protocol

from tampu.errors import NotAllowedError, RequestError, require
from tampu.nn.points import ATTENTIONS, NAMES
from tampu.runner.capture_options import CaptureOptions
from tampu.server.serving.model_defaults import ModelDefaults
from tampu.worker.frames import MAX_FRAME

_MOST = MAX_FRAME // 2  # bytes that a worker can send together with an answer


class CapturingBody(Protocol):
    """The fields of a request that captures.

    Attributes:
        include: points as in `Engine.capture`: "hidden_states:12" is of layer 12, "hidden_states"
            of all.
        include_positions: tampu's own: those of tokens; None: all.
        include_heads: tampu's own: those whose attention weights are captured, in this order;
            None: all.
    """

    include: list[str] | None
    include_positions: list[int] | None
    include_heads: list[int] | None


def read_capture(
    body: CapturingBody, defaults: ModelDefaults, others: Collection[str] = ()
) -> CaptureOptions | None:
    """Return what a request captures; None: nothing.

    Args:
        body: of the request.
        defaults: have the limit.
        others: values of `include` that mean something else, or nothing.

    Raises:
        RequestError: for a value that is neither a point nor one of the others, and for positions
            or heads of nothing.
        NotAllowedError: if the server returns no values inside models.
    """
    positions, heads = body.include_positions, body.include_heads
    points = [each for each in body.include or () if each not in others]
    for point in points:
        if point.partition(":")[0] not in NAMES:
            known = ", ".join((*others, *NAMES))
            raise RequestError(f"include: {point[:100]!r} is not supported; {known} are")
    weights = any(point.partition(":")[0] == ATTENTIONS for point in points)
    require(heads is None or weights, f"include_heads needs {ATTENTIONS} in include")
    if not points:
        require(positions is None, "include_positions needs a point in include")
        return None
    if not defaults.max_capture_bytes:
        raise NotAllowedError(
            "include: this server does not return values inside models: set TAMPU_MAX_CAPTURE_SIZE"
        )
    return CaptureOptions(
        points=tuple(points),
        positions=None if positions is None else tuple(positions),
        heads=None if heads is None else tuple(heads),
        max_bytes=min(defaults.max_capture_bytes, _MOST),
        field="include",
        prefix="include_",
    )


def captured_text(captured: bytes) -> str:
    """Return captured values, a safetensors file, in base64."""
    return base64.b64encode(captured).decode()


def captured_field(captured: bytes) -> dict[str, str]:
    """Return the field of a response with captured values, if there are any."""
    return {"captured": captured_text(captured)} if captured else {}
