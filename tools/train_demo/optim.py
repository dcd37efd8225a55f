"""Muon for the matrices inside the layers, Adam for everything else."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn


def _orthogonal(x: Tensor) -> Tensor:
    """Bring the singular values of a stack of matrices near one (Newton-Schulz)."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


class Optimizer:
    """Steps all parameters; matrices of one shape go through Muon together."""

    def __init__(self, model: nn.Module) -> None:
        shapes: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        rest = []
        for name, p in model.named_parameters():
            if p.ndim == 2 and ".layers." in name:
                shapes[tuple(p.shape)].append(p)
            else:
                rest.append(p)
        self.groups = list(shapes.values())
        self.momenta = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]
        self.adam = torch.optim.Adam(rest, lr=0.0, betas=(0.9, 0.98), eps=1e-10)

    @torch.no_grad()
    def step(self, rate: float, *, momentum: float = 0.95, decay: float = 0.05) -> None:
        """One step; ``rate`` is 1 at full speed.

        Args:
            rate: The share of the full learning rates.
            momentum: Of Muon.
            decay: Weight decay of Muon's matrices, times the learning rate.
        """
        lr = 0.02 * rate
        for group, mean in zip(self.groups, self.momenta, strict=True):
            grads = torch.stack([p.grad for p in group if p.grad is not None])
            mean.lerp_(grads, 1 - momentum)
            change = _orthogonal(grads.lerp(mean, momentum))
            rows, columns = change.shape[-2:]
            scale = lr * max(1.0, rows / columns) ** 0.5
            for p, one in zip(group, change, strict=True):
                p.mul_(1 - lr * decay).add_(one, alpha=-scale)
        for settings in self.adam.param_groups:
            settings["lr"] = 0.003 * rate
        self.adam.step()

    def state(self) -> dict[str, Any]:
        """What has to be saved to go on later."""
        return {"momenta": self.momenta, "adam": self.adam.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for mean, saved in zip(self.momenta, state["momenta"], strict=True):
            mean.copy_(saved)
        self.adam.load_state_dict(state["adam"])
