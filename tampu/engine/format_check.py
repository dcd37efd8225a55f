"""The kind of request that tries an output format."""

from __future__ import annotations

from typing import Any, ClassVar

from tampu.engine.request import Lane, Request, Result


class FormatChecked(Result, frozen=True):
    """An output format can be used."""


class CheckFormat(Request[FormatChecked], frozen=True):
    """Try an output format, as `StructuredOutput` has it."""

    runs_in: ClassVar[Lane] = "grammar"
    format: Any
