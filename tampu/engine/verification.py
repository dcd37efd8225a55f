"""Compares a converted model with its checkpoint, which transformers computes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.engine.engine import Engine
from tampu.engine.pooling import NONE
from tampu.errors import UnsupportedModelError

Rows = npt.NDArray[np.float32]

TEXTS = (
    "The llamas rest at the way-house, and the runners go on at dawn with 27 + 58 messages.",
    "def area(radius: float) -> float:\n    return 3.14159 * radius ** 2  # square metres\n",
    "¿Dónde está la estación? Ein Zug fährt um 12:45 Uhr nach Zürich. 東京は大きい。",
)
LIMITS = {"F32": 2e-3, "F16": 1e-2, "BF16": 5e-2, "Q8_0": 0.25}
"""The largest relative error by the type of the weights.

With exact weights the tests' families differ by 2e-6 at most, and by 7e-4 where ggml reads GELU
from a table in half precision. F16 and BF16 round each weight by up to 2e-4 and 2e-3 of its size.
In Q8_0 they differ by 1e-2 to 7e-2, and mixtures, whose tokens may get other experts, by up to
0.17. Those models have random weights, which suffer more from rounding than trained ones.
"""
QUANTIZED_LIMIT = 0.8
"""Of types with fewer bits: Q4_0 differs by 0.2 to 0.63, and two different models by 1 and more."""
# What transformers raises for checkpoints that it cannot load, or whose classes lack a library.
_FAILURES = (
    OSError, ValueError, RuntimeError, AttributeError, ImportError, LookupError, TypeError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verification:
    """How far a file is from its checkpoint.

    Attributes:
        what: what was compared: logits or hidden states.
        error: the relative error ||file - checkpoint|| / ||checkpoint||, of the worst text.
        limit: what it may be.
        same: of all positions, the part with the same largest value: of logits, the best token.
    """

    what: str
    error: float
    limit: float
    same: float

    @property
    def passed(self) -> bool:
        """Whether the file computes what the checkpoint does."""
        return self.error <= self.limit

    def __str__(self) -> str:
        return (
            f"compared with transformers: {self.what} of {len(TEXTS)} texts differ by "
            f"{self.error:.1e} (at most {self.limit:.0e}), best token same in {self.same:.0%}"
        )


def verify(file: Path, checkpoint: Path) -> Verification:
    """Compute three texts with a file and with transformers, and compare.

    Args:
        file: the converted model.
        checkpoint: the folder that it was made of.

    Raises:
        UnsupportedModelError: if torch or transformers is missing, or cannot load the checkpoint.
        TampuError: if the file cannot be loaded.
    """
    torch, transformers = libraries()
    options: dict[str, Any] = {"cache_type": "f32", "flash_attention": False, "gpu_layers": 0}
    with Engine.load(file, pooling=NONE, **options) as engine:
        is_decoder = "completion" in engine.info.capabilities
        texts = [engine.tokenize(text) for text in TEXTS]
        compute = engine.logits if is_decoder else _hidden_states(engine)
        ours = [compute(text) for text in texts]
        limit = LIMITS.get(engine.info.quantization, QUANTIZED_LIMIT)
    theirs = _reference(torch, transformers, checkpoint, texts, is_decoder=is_decoder)
    pairs = [(mine[:, : its.shape[1]], its) for mine, its in zip(ours, theirs, strict=True)]
    errors = [float(np.linalg.norm(mine - its) / np.linalg.norm(its)) for mine, its in pairs]
    same = np.concatenate([mine.argmax(-1) == its.argmax(-1) for mine, its in pairs])
    what = "logits" if is_decoder else "hidden states"
    return Verification(what, max(errors), limit, float(same.mean()))


def libraries() -> tuple[Any, Any]:
    """Return torch and transformers.

    Raises:
        UnsupportedModelError: if one is missing.
    """
    return _library("torch"), _library("transformers")


def _hidden_states(engine: Engine) -> Any:
    return lambda text: engine.embed([text], normalize=False)


def _reference(
    torch: Any,
    transformers: Any,
    checkpoint: Path,
    texts: Sequence[Sequence[int]],
    *,
    is_decoder: bool,
) -> list[Rows]:
    """Return what transformers computes in float32: (positions, vocabulary or features).

    Args:
        torch: the library.
        transformers: the library.
        checkpoint: the folder.
        texts: their token ids.
        is_decoder: return logits; False: the final hidden states, without any head.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint)
        name = (config.architectures or [""])[0]
        kind = getattr(transformers, name, None) or transformers.AutoModelForCausalLM
        model = kind.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        if not is_decoder:
            model = model.base_model
        found = []
        with torch.no_grad():
            for text in texts:
                result = model(input_ids=torch.tensor([list(text)]))
                values = result.logits if is_decoder else result.last_hidden_state
                found.append(values[0].float().numpy())
    except _FAILURES as error:
        reason = str(error).strip().partition("\n")[0]
        raise UnsupportedModelError(
            f"{checkpoint}: transformers cannot compute it: {type(error).__name__}: {reason}"
        ) from error
    return found


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UnsupportedModelError(
            f"--verify needs {name}, which is not installed: pip install torch transformers"
        ) from None
