"""Learned positions of another grid are those of PyTorch's interpolation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tampu.nn import resampling


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("side", "count"), [(64, 48), (64, 40), (16, 10), (7, 7), (5, 9), (9, 2)])
def test_weights_are_those_of_interpolation_with_antialias(
    kind: str, side: int, count: int
) -> None:
    table = torch.randn((1, 3, side, side), generator=torch.Generator().manual_seed(1)).double()
    expected = torch.nn.functional.interpolate(
        table, size=(count, count), mode=kind, antialias=True, align_corners=False
    )
    weights = resampling(side, count, is_cubic=kind == "bicubic")
    found = np.einsum("ai,bj,cij->cab", weights, weights, table[0].numpy())
    np.testing.assert_allclose(found, expected[0].numpy(), atol=1e-6)
