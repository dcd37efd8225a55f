"""A local-LLM engine and server in Python on ggml.

The public names are imported when they are first used, so that `import tampu` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tampu.version import __version__

if TYPE_CHECKING:
    from tampu.completion import Completion, Handle
    from tampu.engine import Engine
    from tampu.errors import TampuError
    from tampu.runner.events import Done, Text, Usage
    from tampu.runner.request import GenerateOptions

__all__ = [
    "Completion",
    "Done",
    "Engine",
    "GenerateOptions",
    "Handle",
    "TampuError",
    "Text",
    "Usage",
    "__version__",
]

_HOMES = {
    "Completion": "tampu.completion",
    "Done": "tampu.runner.events",
    "Engine": "tampu.engine",
    "GenerateOptions": "tampu.runner.request",
    "Handle": "tampu.completion",
    "TampuError": "tampu.errors",
    "Text": "tampu.runner.events",
    "Usage": "tampu.runner.events",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tampu' has no attribute '{name}'")
    return vars(import_module(_HOMES[name]))[name]
