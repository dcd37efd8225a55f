"""What a batch does for every model: images take the places of their tokens."""

import numpy as np
import pytest
from support.graphs import floats

from tampu.ml import Backend, Context, GGMLType
from tampu.nn import Batch


@pytest.mark.seed("S94")
def test_the_rows_of_an_image_go_to_their_tokens_and_nothing_else_changes(
    backend: Backend, context: Context
) -> None:
    hidden = context.input("hidden", (5, 4), GGMLType.F32)
    images = context.input("images", (2, 4), GGMLType.F32)
    rows = context.input("rows", (2,), GGMLType.I64)
    number = context.input("number", (5,), GGMLType.I32)
    batch = Batch(number, number, number, images, rows)
    placed, before = context.output(batch.place(hidden)), context.output(hidden * 1.0)
    data = [(hidden, floats(5, 4)), (images, floats(2, 4, seed=1))]
    data.append((rows, np.array([3, 1], np.int64)))
    found, unchanged = backend.compute(context, data, [placed, before]).outputs
    expected = floats(5, 4)
    expected[[3, 1]] = floats(2, 4, seed=1)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(unchanged, floats(5, 4))


def test_a_batch_without_images_is_unchanged(context: Context) -> None:
    hidden = context.input("hidden", (5, 4), GGMLType.F32)
    number = context.input("number", (5,), GGMLType.I32)
    assert Batch(number, number, number).place(hidden) is hidden
