"""The attention of SAM's encoder equals that of its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tampu.nn.sam import Views, _between, _cells, _window_arrays


@pytest.mark.parametrize(("length", "count"), [(127, 95), (127, 79), (27, 27), (5, 11)])
def test_distances_are_interpolated_as_pytorch_does_it(length: int, count: int) -> None:
    table = torch.randn((1, 4, length), generator=torch.Generator().manual_seed(1)).double()
    expected = torch.nn.functional.interpolate(table, size=count, mode="linear")
    found = _between(length, count) @ table[0].T.numpy()
    np.testing.assert_allclose(found.T, expected[0].numpy(), atol=1e-5)


def test_a_place_has_ones_at_its_row_and_column_from_the_last_on() -> None:
    cells = _cells(3).reshape(3, 3, 2, 3)
    for row in range(3):
        for column in range(3):
            assert np.flatnonzero(cells[row, column, 0]).tolist() == [2 - row]
            assert np.flatnonzero(cells[row, column, 1]).tolist() == [2 - column]


def test_windows_have_each_place_once_and_zeros_around() -> None:
    views = [Views(2, 5), Views(1, 4)]
    arrays = _window_arrays(views, 4)
    windows = arrays["windows"].reshape(-1, 4, 4)
    assert len(windows) == 2 * 4 + 1
    assert windows[0].tolist() == [[5 * row + column for column in range(4)] for row in range(4)]
    assert windows[1].tolist() == [[5 * row + 4, 66, 66, 66] for row in range(4)]
    assert windows[8].tolist() == [
        [50 + 4 * row + column for column in range(4)] for row in range(4)
    ]
    rows = arrays["windows"][arrays["places"]]
    assert rows.tolist() == list(range(66))
