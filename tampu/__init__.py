"""A local-LLM engine and server in Python on ggml.

    from tampu import Engine

    with Engine.load("model.gguf") as engine:
        print(engine.generate("Once upon a time", max_tokens=50).text)

`Engine` is one loaded model, and the place to begin. `generate` returns a `Completion`, `chat` a
`ChatCompletion`. A `Stream` yields `TextDelta`, for a chat also `ReasoningDelta` and `ToolCall`,
and a last `Done`; with `return_progress` it begins with `PromptProgress`. `decide` answers
questions with probabilities, as `Decisions`; `score` returns those of continuations of a prompt.
`capture` returns values inside the model, as `Captured`; `Steering` and `ControlVector` change
them. `compare` says how far two models'
predictions in a text are from each other, as a `Comparison`, and `verify` in which layer a model
file differs from its checkpoint, as a `Verification`. Options are the fields of
`GenerateOptions`. Every error is a `TampuError`; `tampu.errors` has them all.

The names below are imported at their first use, so `import tampu` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tampu.version import __version__

if TYPE_CHECKING:
    from tampu.chat.output.stream_parser import ToolCall
    from tampu.engine.captures import Captured, CapturedEmbeddings
    from tampu.engine.capturing import LogitLens
    from tampu.engine.completion import ChatCompletion, Completion, RequestHandle, Stream
    from tampu.engine.control_vector import ControlVector
    from tampu.engine.engine import Engine
    from tampu.engine.hybrid import HybridEmbedding
    from tampu.engine.load_options import LoadOptions
    from tampu.engine.questions import Choice, Decision, Decisions, Level, Option, Predicate, Score
    from tampu.engine.requests import Pair, ScoredContinuation
    from tampu.engine.scoring import Scored
    from tampu.engine.snapshots import Saved
    from tampu.errors import TampuError
    from tampu.evaluation.comparison import Comparison, compare
    from tampu.evaluation.verification import Verification, verify
    from tampu.ml.device_map import Offload
    from tampu.runner.capture_options import CaptureOptions
    from tampu.runner.events import (
        Done,
        PromptProgress,
        ReasoningDelta,
        TextDelta,
        TokenLogprob,
        Usage,
    )
    from tampu.runner.generate_options import GenerateOptions
    from tampu.runner.steering_options import Steering

__all__ = [
    "CaptureOptions",
    "Captured",
    "CapturedEmbeddings",
    "ChatCompletion",
    "Choice",
    "Comparison",
    "Completion",
    "ControlVector",
    "Decision",
    "Decisions",
    "Done",
    "Engine",
    "GenerateOptions",
    "HybridEmbedding",
    "Level",
    "LoadOptions",
    "LogitLens",
    "Offload",
    "Option",
    "Pair",
    "Predicate",
    "PromptProgress",
    "ReasoningDelta",
    "RequestHandle",
    "Saved",
    "Score",
    "Scored",
    "ScoredContinuation",
    "Steering",
    "Stream",
    "TampuError",
    "TextDelta",
    "TokenLogprob",
    "ToolCall",
    "Usage",
    "Verification",
    "__version__",
    "compare",
    "verify",
]

_HOMES = {
    "CaptureOptions": "tampu.runner.capture_options",
    "Captured": "tampu.engine.captures",
    "CapturedEmbeddings": "tampu.engine.captures",
    "ChatCompletion": "tampu.engine.completion",
    "Choice": "tampu.engine.questions",
    "Comparison": "tampu.evaluation.comparison",
    "Completion": "tampu.engine.completion",
    "ControlVector": "tampu.engine.control_vector",
    "Decision": "tampu.engine.questions",
    "Decisions": "tampu.engine.questions",
    "Done": "tampu.runner.events",
    "Engine": "tampu.engine.engine",
    "GenerateOptions": "tampu.runner.generate_options",
    "HybridEmbedding": "tampu.engine.hybrid",
    "Level": "tampu.engine.questions",
    "LoadOptions": "tampu.engine.load_options",
    "LogitLens": "tampu.engine.capturing",
    "Offload": "tampu.ml.device_map",
    "Option": "tampu.engine.questions",
    "Pair": "tampu.engine.requests",
    "Predicate": "tampu.engine.questions",
    "PromptProgress": "tampu.runner.events",
    "ReasoningDelta": "tampu.runner.events",
    "RequestHandle": "tampu.engine.completion",
    "Saved": "tampu.engine.snapshots",
    "Score": "tampu.engine.questions",
    "Scored": "tampu.engine.scoring",
    "ScoredContinuation": "tampu.engine.requests",
    "Steering": "tampu.runner.steering_options",
    "Stream": "tampu.engine.completion",
    "TampuError": "tampu.errors",
    "TextDelta": "tampu.runner.events",
    "TokenLogprob": "tampu.runner.events",
    "ToolCall": "tampu.chat.output.stream_parser",
    "Usage": "tampu.runner.events",
    "Verification": "tampu.evaluation.verification",
    "compare": "tampu.evaluation.comparison",
    "verify": "tampu.evaluation.verification",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tampu' has no attribute '{name}'")
    return vars(import_module(_HOMES[name]))[name]


def __dir__() -> list[str]:
    """List the public names too, for `help(tampu)` and completion."""
    return sorted({*globals(), *__all__})
