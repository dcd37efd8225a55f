"""Products that ggml computes for deterministic graphs.

ggml multiplies one row by other code than several, and several by code that depends on how many
there are, so a row's result differs in its last bits. Here each row is a product of its own, all of
them one operation: ggml's dot products are then the same for each of them.
"""

from __future__ import annotations

from tampu.errors import ShapeError
from tampu.ml.library import OpaquePointer, TensorPointer, gg


def multiply_rows(arena: OpaquePointer, weight: TensorPointer, x: TensorPointer) -> TensorPointer:
    """Add x · weightᵀ to a graph, (..., n, outputs), for operands that fit `ggml_mul_mat`.

    Raises:
        ShapeError: for a stack of weights and more than one dimension before x's rows.
    """
    if not gg.ggml_is_contiguous(x):
        x = gg.ggml_cont(arena, x)
    inputs, *lengths = x.contents.ne[:4]
    outputs = weight.contents.ne[1]
    if weight.contents.ne[2] == weight.contents.ne[3] == 1:
        count = lengths[0] * lengths[1] * lengths[2]
        apart = gg.ggml_reshape_3d(arena, x, inputs, 1, count)
        return gg.ggml_reshape_4d(arena, gg.ggml_mul_mat(arena, weight, apart), outputs, *lengths)
    rows, stack, more = lengths
    if more > 1:
        raise ShapeError("a deterministic product with a stack of weights has too many dimensions")
    turned = gg.ggml_cont(arena, gg.ggml_permute(arena, x, 0, 2, 1, 3))
    apart = gg.ggml_reshape_4d(arena, turned, inputs, 1, stack, rows)
    product = gg.ggml_reshape_3d(arena, gg.ggml_mul_mat(arena, weight, apart), outputs, stack, rows)
    return gg.ggml_cont(arena, gg.ggml_permute(arena, product, 0, 2, 1, 3))
