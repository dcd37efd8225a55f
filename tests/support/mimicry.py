"""transformers made to compute as ggml does: activations rounded, and experts chosen as we do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.overrides import TorchFunctionMode

from tampu.ml.gguf import GGMLType
from tampu.ml.quantize import dequantize, quantize

Scores = npt.NDArray[np.float32]

_PRODUCTS = (torch.nn.functional.linear, torch.bmm, torch.Tensor.__matmul__)
_FEWEST_OUTPUTS = 16  # routers, whose weights stay in F32, have fewer


class Mimicry(TorchFunctionMode):
    """While it is entered, what models of transformers compute is changed.

    Attributes:
        scores: of the experts, (tokens, experts), as each layer's router gave them.
    """

    def __init__(self, scores: Sequence[Scores] = (), *, rounds: bool = False) -> None:
        """Set what is changed.

        Args:
            scores: of each layer: the experts with the largest ones are chosen; empty: as usual.
            rounds: whether products with weights round their activations to Q8_0 first.
        """
        super().__init__()
        self.scores: list[Scores] = []
        self._given = iter(scores)
        self._rounds = rounds

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute a function of torch's, or what takes its place."""
        if function is torch.topk:
            return self._choose(arguments[0], (keywords or {}).get("k") or arguments[1])
        if self._rounds and function in _PRODUCTS and _has_weights(function, arguments[1]):
            arguments = (_rounded(arguments[0]), *arguments[1:])
        return function(*arguments, **(keywords or {}))

    def _choose(self, own: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.scores.append(own.numpy().copy())
        scores = next(self._given, self.scores[-1])
        best = torch.from_numpy(chosen(scores, count))
        return own.gather(-1, best), best


def chosen(scores: Scores, count: int) -> npt.NDArray[np.int64]:
    """Return the experts (..., count) with the largest scores, the largest first."""
    order: npt.NDArray[np.int64] = np.argsort(-scores, axis=-1, kind="stable")
    return order[..., :count]


def _has_weights(function: Callable[..., Any], second: torch.Tensor) -> bool:
    """Whether a product's second operand is a weight that a file quantises."""
    if function is torch.nn.functional.linear:
        return second.shape[0] >= _FEWEST_OUTPUTS
    return function is torch.bmm or second.ndim == 2


def _rounded(values: torch.Tensor) -> torch.Tensor:
    rows = np.ascontiguousarray(values.numpy()).reshape(-1, values.shape[-1])
    stored = quantize(rows, GGMLType.Q8_0)
    return torch.from_numpy(dequantize(stored, GGMLType.Q8_0, values.shape))
