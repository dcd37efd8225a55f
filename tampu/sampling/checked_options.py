"""Options that are checked by the table of parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter

import msgspec

from tampu.sampling.parameters import PARAMETERS, Parameter


class CheckedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options whose values are checked by the table of parameters."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            RequestError: naming the option and its range.
        """
        values, rows = _checked(type(self))
        for value, row in zip(values(self), rows, strict=True):
            default = row.default
            # By value: options from another process are equal, not identical. True equals 1.
            if value is not default and (value != default or type(value) is not type(default)):
                row.check(value, row.name)


@cache
def _checked(
    kind: type[CheckedOptions],
) -> tuple[Callable[[CheckedOptions], tuple[object, ...]], list[Parameter]]:
    """Return what gets the values that are checked from options, and their parameters."""
    rows = [PARAMETERS[name] for name in kind.__struct_fields__ if name in PARAMETERS]
    rows = [row for row in rows if row.kind is not list]
    return attrgetter(*(row.name for row in rows)), rows
