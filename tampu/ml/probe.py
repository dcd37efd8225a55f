"""Asks a device which operations it supports, for weights in which buffer types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tampu.ml.library import OpaquePointer, TensorPointer, gg
from tampu.ml.types import GGMLType

_TOKENS = 512
_HISTORY = 256


def can_multiply(device: OpaquePointer, weight: TensorPointer, kind: OpaquePointer) -> bool:
    """Ask a device whether it multiplies by a weight that lives in a buffer of this type.

    ggml answers for an operation whose weight has a buffer, so the weight gets one of no size.
    """
    with _arena() as arena:
        header = weight.contents
        if header.ne[2] > 1:
            rows = gg.ggml_new_tensor_3d(arena, gg.GGML_TYPE_F32, header.ne[0], 1, _TOKENS)
            choice = gg.ggml_new_tensor_2d(arena, gg.GGML_TYPE_I32, 1, _TOKENS)
            product = gg.ggml_mul_mat_id(arena, weight, rows, choice)
        else:
            rows = gg.ggml_new_tensor_2d(arena, gg.GGML_TYPE_F32, header.ne[0], _TOKENS)
            product = gg.ggml_mul_mat(arena, weight, rows)
        before, probe = header.buffer, gg.ggml_backend_buft_alloc_buffer(kind, 0)
        header.buffer = probe
        supported = bool(gg.ggml_backend_dev_supports_op(device, product))
        header.buffer = before
        gg.ggml_backend_buffer_free(probe)
        return supported


def can_fuse_attention(
    device: OpaquePointer,
    heads: int,
    features: int,
    value_features: int,
    keys: GGMLType,
    values: GGMLType,
) -> bool:
    """Ask a device whether it has fused attention for heads of these sizes and types."""
    with _arena() as arena:
        tensor = gg.ggml_new_tensor_3d
        pointer = gg.ggml_flash_attn_ext(
            arena,
            tensor(arena, gg.GGML_TYPE_F32, features, _TOKENS, heads),
            tensor(arena, int(keys), features, _HISTORY, heads),
            tensor(arena, int(values), value_features, _HISTORY, heads),
            gg.ggml_new_tensor_2d(arena, gg.GGML_TYPE_F16, _HISTORY, _TOKENS),
            1.0,
            0.0,
            0.0,
        )
        gg.ggml_flash_attn_ext_set_prec(pointer, gg.GGML_PREC_F32)
        return bool(gg.ggml_backend_dev_supports_op(device, pointer))


@contextmanager
def _arena() -> Iterator[OpaquePointer]:
    size = gg.ggml_tensor_overhead() * 8
    arena = gg.ggml_init(gg.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
    try:
        yield arena
    finally:
        gg.ggml_free(arena)
