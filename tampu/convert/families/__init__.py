"""The model families whose checkpoints are converted: each module has the tables of one or a few.

A family that a module declares is known by the names in its `checkpoints`; nothing lists it again.
"""

from __future__ import annotations

import importlib
import pkgutil

from tampu.convert.family import Family

__all__ = ["FAMILIES"]


def _declared() -> dict[str, Family]:
    """Return the families of all modules by their names in config.json's `architectures`."""
    names = [f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)]
    return {
        checkpoint: value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, Family)
        for checkpoint in value.checkpoints
    }


FAMILIES = _declared()
