"""transformers made to compute as ggml does: activations rounded, and experts chosen as we do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from tampu.ml.gguf import GGMLType
from tampu.ml.quantize import dequantize, quantize

Choices = npt.NDArray[np.int64]

# Which argument is the activation; the one after it may be a weight.
_PRODUCTS: Mapping[Callable[..., Any], int] = {
    torch.nn.functional.linear: 0,
    torch.bmm: 0,
    torch.Tensor.__matmul__: 0,
    torch.Tensor.matmul: 0,
    torch.addmm: 1,
}
_FEWEST_OUTPUTS = 16  # routers, whose weights stay in F32, have fewer


class Mimicry(TorchFunctionMode):
    """While it is entered, what models of transformers compute is changed.

    Attributes:
        choices: the experts of each layer, (tokens, experts of each), as its router chose them.
    """

    def __init__(
        self, choices: Sequence[Choices] = (), experts: int = 0, *, rounds: bool = False
    ) -> None:
        """Set what is changed.

        Args:
            choices: the experts of each layer that are chosen; empty: as usual.
            experts: how many a layer has; their choices are noted.
            rounds: whether products with weights round their activations to Q8_0 first.
        """
        super().__init__()
        self.choices: list[Choices] = []
        self._given = iter(choices)
        self._experts = experts
        self._rounds = rounds

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute a function of torch's, or what takes its place."""
        if function is torch.topk and arguments[0].shape[-1] == self._experts:
            return self._choose(arguments[0], (keywords or {}).get("k") or arguments[1])
        at = _PRODUCTS.get(function) if self._rounds else None
        if at is not None and _has_weights(function, arguments[at + 1]):
            arguments = (*arguments[:at], _rounded(arguments[at]), *arguments[at + 1 :])
        return function(*arguments, **(keywords or {}))

    def _choose(self, own: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores and numbers of the experts that were given, or of the best."""
        self.choices.append(own.sort(descending=True, stable=True).indices[:, :count].numpy())
        choice = torch.from_numpy(next(self._given, self.choices[-1]))
        return own.gather(-1, choice), choice


def _has_weights(function: Callable[..., Any], second: torch.Tensor) -> bool:
    """Whether a product's second operand is a weight that a file quantises."""
    if function is torch.nn.functional.linear:
        return second.shape[0] >= _FEWEST_OUTPUTS
    if function is torch.bmm:  # of experts, or of values, as BLOOM mixes them
        return isinstance(second, Parameter) or isinstance(second._base, Parameter)
    return second.ndim == 2


def _rounded(values: torch.Tensor) -> torch.Tensor:
    rows = np.ascontiguousarray(values.numpy()).reshape(-1, values.shape[-1])
    stored = quantize(rows, GGMLType.Q8_0)
    return torch.from_numpy(dequantize(stored, GGMLType.Q8_0, values.shape))
