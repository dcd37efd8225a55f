"""A local-LLM engine and server in Python on ggml.

    from tampu import Engine

    with Engine.load("model.gguf") as engine:
        print(engine.generate("Once upon a time", max_tokens=50).text)

`Engine` is one loaded model, and the place to begin. It answers with a `Completion`, or with a
`Stream` of `TextDelta` and a last `Done`. Options are the fields of `GenerateOptions`. Every error
is a `TampuError`; `tampu.errors` has them all.

The names below are imported when they are first used, so that `import tampu` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tampu.version import __version__

if TYPE_CHECKING:
    from tampu.engine.completion import Completion, Handle, Stream
    from tampu.engine.engine import Engine
    from tampu.errors import TampuError
    from tampu.ml.offload import Offload
    from tampu.runner.events import Done, TextDelta, TokenLogprob, Usage
    from tampu.runner.request import GenerateOptions

__all__ = [
    "Completion",
    "Done",
    "Engine",
    "GenerateOptions",
    "Handle",
    "Offload",
    "Stream",
    "TampuError",
    "TextDelta",
    "TokenLogprob",
    "Usage",
    "__version__",
]

_HOMES = {
    "Completion": "tampu.engine.completion",
    "Done": "tampu.runner.events",
    "Engine": "tampu.engine.engine",
    "GenerateOptions": "tampu.runner.request",
    "Handle": "tampu.engine.completion",
    "Offload": "tampu.ml.offload",
    "Stream": "tampu.engine.completion",
    "TampuError": "tampu.errors",
    "TextDelta": "tampu.runner.events",
    "TokenLogprob": "tampu.runner.events",
    "Usage": "tampu.runner.events",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tampu' has no attribute '{name}'")
    return vars(import_module(_HOMES[name]))[name]


def __dir__() -> list[str]:
    """List the public names too, for `help(tampu)` and completion."""
    return sorted({*globals(), *__all__})
