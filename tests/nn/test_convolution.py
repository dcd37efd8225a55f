"""Convolutions equal those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.graphs import floats

from tampu.nn import Conv1d, Conv2d, zero_rows


def part(kind: type[Any], weight: Any, bias: Any) -> Any:
    made = kind()
    made.weight, made.bias = weight, bias
    return made


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 7, 8])
@pytest.mark.parametrize("taps", [3, 5])
def test_a_convolution_over_time(
    compute: Callable[..., Any], stride: int, count: int, taps: int
) -> None:
    x, w, b = floats(count, 4), floats(6, 4, taps, seed=1), floats(6, 1, seed=2)
    found = compute(lambda x, w, b: part(Conv1d, w, b)(x, stride), x, w, b)
    given = torch.from_numpy(x.T[None].copy())
    kernel, bias = torch.from_numpy(w), torch.from_numpy(b.reshape(-1))
    expected = torch.conv1d(given, kernel, bias, stride=stride, padding=taps // 2)[0].T
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (4, 7), (5, 8)])
def test_a_convolution_over_a_map(
    compute: Callable[..., Any], stride: int, size: tuple[int, int]
) -> None:
    x, w, b = floats(3, *size), floats(6, 3, 3, 3, seed=1), floats(6, 1, 1, seed=2)
    found = compute(lambda x, w, b: part(Conv2d, w, b)(x, stride), x, w, b)
    given = torch.from_numpy(x[None])
    kernel, bias = torch.from_numpy(w), torch.from_numpy(b.reshape(-1))
    expected = torch.conv2d(given, kernel, bias, stride=stride, padding=1)[0].permute(1, 2, 0)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_rows_of_zeros(compute: Callable[..., Any], count: int) -> None:
    found = compute(lambda x: zero_rows(x, count), floats(2, 5))
    assert np.array_equal(found, np.zeros((count, 5)))
