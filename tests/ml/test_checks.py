"""Operations on operands that do not fit: each raises ShapeError; ggml would end the process."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from tampu.errors import ShapeError
from tampu.ml import Context, GGMLType, RopeMode, Tensor
from tampu.ml.attention import flash_attention, softmax
from tampu.ml.convolution import average_pool, map_patches
from tampu.ml.gates import gelu_gate, silu_gate
from tampu.ml.rotary import Rope

F32, F16, I32, I64, Q8_0 = (GGMLType[name] for name in ("F32", "F16", "I32", "I64", "Q8_0"))
UNREADABLE = ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64")
UNWRITABLE = (*UNREADABLE, "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")


@pytest.fixture
def t(context: Context) -> Callable[..., Any]:
    """Make a tensor of a shape and type."""
    return lambda *shape, type=F32: context.input("t", shape, type)


@pytest.fixture
def turned(t: Callable[..., Any]) -> Callable[..., Any]:
    """Make a tensor of a shape whose rows are not in one piece."""
    return lambda *shape, type=F32: t(*shape[:-2], shape[-1], shape[-2], type=type).transpose(
        *range(len(shape) - 2), len(shape) - 1, len(shape) - 2
    )


def flash(q: Any, k: Any, v: Any, mask: Any) -> Tensor:
    return flash_attention(q, k, v, mask, 1.0)


def rope(x: Any, positions: Any, dimensions: int = 4, factors: None = None) -> Tensor:
    return Rope(dimensions, 1e4, RopeMode.HALVES, factors=factors)(x, positions)


CALLS: dict[str, Callable[..., Any]] = {
    "linear: another number of inputs": lambda t, _: t(2, 3).linear(t(4, 5)),
    "linear: groups that do not divide": lambda t, _: t(3, 2, 4).linear(t(2, 5, 4)),
    "linear: a weight of a higher rank": lambda t, _: t(2, 4).linear(t(1, 5, 4)),
    "linear: integers": lambda t, _: t(2, 4, type=I32).linear(t(5, 4)),
    "linear: half-precision activations": lambda t, _: t(2, 4, type=F16).linear(t(5, 4)),
    "linear: turned activations": lambda t, turned: turned(2, 4).linear(t(5, 4)),
    "linear: a turned weight": lambda t, turned: t(2, 4).linear(turned(5, 4)),
    "average_pool of 2": lambda t, _: average_pool(t(1, 3, 4), 2),
    "average_pool of 0": lambda t, _: average_pool(t(1, 4, 4), 0),
    "add: another length": lambda t, _: t(2, 3) + t(2),
    "add: a higher rank": lambda t, _: t(3) + t(1, 3),
    "add: the second is longer": lambda t, _: t(1, 3) + t(2, 3),
    "add: integers": lambda t, _: t(4, type=I32) + t(4, type=I32),
    "add: turned first": lambda t, turned: turned(2, 3) + t(2, 3),
    "add: turned second": lambda t, turned: t(2, 3) + turned(2, 3),
    "multiply: another length": lambda t, _: t(2, 3) * t(2),
    "multiply: mixed types": lambda t, _: t(2, 3) * t(3, type=F16),
    "scale: integers": lambda t, _: t(4, type=I32) * 2.0,
    "scale: half precision": lambda t, _: t(4, type=F16) * 2.0,
    "scale: turned": lambda _, turned: turned(2, 3) * 2.0,
    "activation: silu of integers": lambda t, _: t(4, type=I32).silu(),
    "activation: gelu of something turned": lambda _, turned: turned(2, 4).gelu(),
    "activation: tanh of something quantized": lambda t, _: t(32, type=Q8_0).tanh(),
    "gate: another shape": lambda t, _: silu_gate(t(2, 4), t(4)),
    "gate: another type": lambda t, _: gelu_gate(t(4), t(4, type=F16)),
    "gate: integers": lambda t, _: silu_gate(t(4, type=I32), t(4, type=I32)),
    "gate: turned first": lambda t, turned: silu_gate(turned(2, 4), t(2, 4)),
    "gate: turned second": lambda t, turned: gelu_gate(t(2, 4), turned(2, 4)),
    "rms_norm with epsilon -1.0": lambda t, _: t(4).rms_norm(-1.0),
    "rms_norm with epsilon nan": lambda t, _: t(4).rms_norm(math.nan),
    "rms_norm with epsilon 0.1: half precision": lambda t, _: t(4, type=F16).rms_norm(0.1),
    "rms_norm with epsilon 0.1: turned": lambda _, turned: turned(2, 4).rms_norm(0.1),
    "softmax: a mask of another shape": lambda t, _: softmax(t(2, 3), t(3, 2), 1.0),
    "softmax: a mask without rows": lambda t, _: softmax(t(2, 3), t(3), 1.0),
    "softmax: masks that do not divide": lambda t, _: softmax(t(3, 2, 3), t(2, 2, 3), 1.0),
    "softmax: a mask of a higher rank": lambda t, _: softmax(t(2, 3), t(1, 2, 3), 1.0),
    "softmax: an integer mask": lambda t, _: softmax(t(2, 3), t(2, 3, type=I32), 1.0),
    "softmax: a turned mask": lambda t, turned: softmax(t(3, 2), turned(3, 2), 1.0),
    "softmax: half-precision scores": lambda t, _: softmax(t(2, 3, type=F16), None, 1.0),
    "softmax: turned scores": lambda _, turned: softmax(turned(2, 3), None, 1.0),
    "rows: of a tensor of rank 3": lambda t, _: t(2, 3, 4).rows(t(2, type=I32)),
    "rows: indices of rank 2": lambda t, _: t(2, 3).rows(t(2, 2, type=I32)),
    "rows: float indices": lambda t, _: t(2, 3).rows(t(2)),
    "rows: long indices": lambda t, _: t(2, 3).rows(t(2, type=I64)),
    "rows: a turned table": lambda t, turned: turned(2, 3).rows(t(2, type=I32)),
    "set_rows: fewer indices": lambda t, _: t(5, 4).set_rows(t(3, 4), t(2, type=I64)),
    "set_rows: shorter values": lambda t, _: t(5, 4).set_rows(t(2, 3), t(2, type=I64)),
    "set_rows: values of rank 1": lambda t, _: t(5, 4).set_rows(t(2), t(2, type=I64)),
    "set_rows: short indices": lambda t, _: t(5, 4).set_rows(t(2, 4), t(2, type=I32)),
    "set_rows: indices of rank 2": lambda t, _: t(5, 4).set_rows(t(2, 4), t(2, 1, type=I64)),
    "set_rows: half precision": lambda t, _: t(5, 4).set_rows(t(2, 4, type=F16), t(2, type=I64)),
    "set_rows: a cache of rank 3": lambda t, _: t(1, 5, 4).set_rows(t(2, 4), t(2, type=I64)),
    "set_rows: a turned cache": lambda t, turned: turned(5, 4).set_rows(t(2, 4), t(2, type=I64)),
    "set_rows: turned values": lambda t, turned: t(5, 4).set_rows(turned(2, 4), t(2, type=I64)),
    "reshape: another count": lambda t, _: t(2, 3).reshape(5),
    "reshape: no whole number": lambda t, _: t(2, 3).reshape(-1, 4),
    "reshape: two unknowns": lambda t, _: t(2, 3).reshape(-1, -1),
    "reshape: two unknowns and a six": lambda t, _: t(2, 3).reshape(-1, -1, 6),
    "reshape: a zero": lambda t, _: t(2, 3).reshape(0, 6),
    "reshape: a zero and an unknown": lambda t, _: t(2, 3).reshape(0, -1),
    "reshape: less than nothing": lambda t, _: t(2, 3).reshape(-2, -3),
    "reshape: rank 5": lambda t, _: t(2, 3).reshape(1, 1, 1, 2, 3),
    "reshape: rank 0": lambda t, _: t(1, 1).reshape(),
    "reshape: broken blocks": lambda t, _: t(2, 32, type=Q8_0).reshape(4, 16),
    "transpose to (0,)": lambda t, _: t(2, 3).transpose(0),
    "transpose to (0, 0)": lambda t, _: t(2, 3).transpose(0, 0),
    "transpose to (-1, 0)": lambda t, _: t(2, 3).transpose(-1, 0),
    "transpose to (1, 0): broken blocks": lambda t, _: t(32, 32, type=Q8_0).transpose(1, 0),
    "cast to Q8_0: broken blocks": lambda t, _: t(2, 3).cast(Q8_0),
    "cast to Q8_0: turned": lambda _, turned: turned(32, 32).cast(Q8_0),
    "cast to Q8_0: from half precision": lambda t, _: t(2, 32, type=F16).cast(Q8_0),
    "cast to F16: from something quantized": lambda t, _: t(2, 32, type=Q8_0).cast(F16),
    "cast to I32": lambda t, _: t(4, type=F16).cast(I32),
    "strided: too far": lambda t, _: t(2, 3).strided((2, 3), (16,)),
    "strided: too far from its offset": lambda t, _: t(2, 3).strided((2, 3), (12,), 4),
    "strided: overlapping rows": lambda t, _: t(2, 3).strided((3, 3), (4,)),
    "strided: the same row again": lambda t, _: t(2, 3).strided((3, 3), (0,)),
    "map_patches: other channels": lambda t, _: map_patches(t(2, 5, 5), t(4, 3, 3, 3), 2, 1),
    "map_patches: a list of rows": lambda t, _: map_patches(t(5, 5), t(4, 5, 3, 3), 2, 1),
    "map_patches: a larger kernel": lambda t, _: map_patches(t(1, 2, 9), t(4, 1, 5, 3), 2, 1),
    "map_patches: no stride": lambda t, _: map_patches(t(1, 5, 5), t(4, 1, 3, 3), 0, 1),
    "map_patches: half precision": lambda t, _: map_patches(
        t(1, 5, 5, type=F16), t(4, 1, 3, 3), 2, 1
    ),
    "strided: a negative offset": lambda t, _: t(2, 3).strided((3,), (), -4),
    "strided: a negative stride": lambda t, _: t(2, 3).strided((2, 3), (-12,), 12),
    "strided: too few strides": lambda t, _: t(2, 3).strided((2, 3), ()),
    "strided: rank 5": lambda t, _: t(2, 3).strided((1, 1, 1, 1, 3), (4, 4, 4, 4)),
    "strided: rank 0": lambda t, _: t(2, 3).strided((), ()),
    "strided: nothing": lambda t, _: t(2, 3).strided((0, 3), (12,)),
    "strided: less than nothing": lambda t, _: t(2, 3).strided((-2, 3), (12,)),
    "strided: within an element": lambda t, _: t(2, 3).strided((2,), (), 3),
    "strided: half a block": lambda t, _: t(2, 64, type=Q8_0).strided((40,), ()),
    "rope of 4 dimensions: rank 2": lambda t, _: rope(t(2, 4), t(2, type=I32)),
    "rope of 4 dimensions: positions": lambda t, _: rope(t(3, 2, 4), t(2, type=I32)),
    "rope of 4 dimensions: float positions": lambda t, _: rope(t(2, 2, 4), t(2)),
    "rope of 4 dimensions: integers": lambda t, _: rope(t(2, 2, 4, type=I32), t(2, type=I32)),
    "rope of 4 dimensions: turned": lambda t, turned: rope(turned(2, 2, 4), t(2, type=I32)),
    "rope of 3 dimensions": lambda t, _: rope(t(2, 2, 4), t(2, type=I32), 3),
    "rope of 6 dimensions": lambda t, _: rope(t(2, 2, 4), t(2, type=I32), 6),
    "rope of 0 dimensions": lambda t, _: rope(t(2, 2, 4), t(2, type=I32), 0),
    "rope of -2 dimensions": lambda t, _: rope(t(2, 2, 4), t(2, type=I32), -2),
    "rope of 4 dimensions: one factor": lambda t, _: rope(t(2, 2, 4), t(2, type=I32), 4, t(1)),
    "rope of 4 dimensions: half factors": lambda t, _: rope(
        t(2, 2, 4), t(2, type=I32), 4, t(2, type=F16)
    ),
    "rope of 4 dimensions: factors in rows": lambda t, _: rope(
        t(2, 2, 4), t(2, type=I32), 4, t(2, 1)
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_operands_that_do_not_fit_are_refused(
    t: Callable[..., Any], turned: Callable[..., Any], call: str
) -> None:
    with pytest.raises(ShapeError, match=re.escape(call.partition(":")[0])) as caught:
        CALLS[call](t, turned)
    assert "\n" not in str(caught.value)


Q, K, V, MASK = (4, 3, 8), (2, 7, 8), (2, 7, 8), (3, 7)


@pytest.mark.parametrize(
    ("q", "k", "v", "mask"),
    [
        ((3, 3, 8), K, V, MASK), ((4, 3, 4), K, V, MASK), (Q, K, (2, 6, 8), MASK),
        (Q, K, (1, 7, 8), MASK), (Q, K, V, (3, 6)), (Q, K, V, (2, 7)), (Q, K, V, (1, 3, 7)),
        (Q[1:], K, V, MASK), (Q, K[1:], V, MASK), (Q, K, V[1:], MASK), ((1, *Q), K, V, MASK),
    ],
)  # fmt: skip
def test_flash_attention_refuses_shapes_that_do_not_fit(
    t: Callable[..., Any],
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
    mask: tuple[int, ...],
) -> None:
    with pytest.raises(ShapeError, match="flash_attention"):
        flash(t(*q), t(*k), t(*v), t(*mask, type=F16))


@pytest.mark.parametrize(
    ("q", "k", "v", "mask"),
    [(F16, F16, F16, F16), (F32, I32, F16, F16), (F32, F16, I32, F16), (F32, F16, F16, F32)],
)
def test_flash_attention_refuses_types_that_ggml_does_not_take(
    t: Callable[..., Any], q: GGMLType, k: GGMLType, v: GGMLType, mask: GGMLType
) -> None:
    with pytest.raises(ShapeError, match="flash_attention"):
        flash(t(*Q, type=q), t(*K, type=k), t(*V, type=v), t(*MASK, type=mask))


@pytest.mark.parametrize("which", range(4))
def test_flash_attention_refuses_transposed_operands(
    t: Callable[..., Any], turned: Callable[..., Any], which: int
) -> None:
    operands = [t(*Q), t(*K), t(*V), t(*MASK, type=F16)]
    shape = (Q, K, V, MASK)[which]
    operands[which] = turned(*shape, type=F16 if which == 3 else F32)
    with pytest.raises(ShapeError, match="flash_attention"):
        flash(*operands)


@pytest.mark.parametrize("name", UNREADABLE)
def test_types_other_than_weights_are_refused(t: Callable[..., Any], name: str) -> None:
    kind = GGMLType[name]
    for call in (
        lambda: t(2, 256).linear(t(4, 256, type=kind)),
        lambda: t(4, 256, type=kind).cast(F16),
        lambda: t(4, 256) * t(256, type=kind),
        lambda: flash(t(2, 3, 256), t(2, 7, 256, type=kind), t(2, 7, 256), t(3, 7, type=F16)),
    ):
        with pytest.raises(ShapeError, match=name):
            call()


@pytest.mark.parametrize("name", [name for name in UNREADABLE if name != "I32"])
def test_rows_of_other_types_are_refused(t: Callable[..., Any], name: str) -> None:
    with pytest.raises(ShapeError, match=name):
        t(4, 256, type=GGMLType[name]).rows(t(2, type=I32))


def test_rows_of_integers_are_integers(t: Callable[..., Any]) -> None:
    assert t(4, 256, type=I32).rows(t(2, type=I32)).type is I32


@pytest.mark.parametrize("name", UNWRITABLE)
def test_types_that_ggml_cannot_make_are_refused(t: Callable[..., Any], name: str) -> None:
    kind = GGMLType[name]
    with pytest.raises(ShapeError, match=name):
        t(4, 256, type=F16).cast(kind)
    with pytest.raises(ShapeError, match=name):
        t(4, 256, type=kind).set_rows(t(2, 256), t(2, type=I64))


@pytest.mark.parametrize(
    "call",
    [
        lambda w: w + w, lambda w: w * w, lambda w: w * 2.0, lambda w: w.linear(w),
        lambda w: w.silu(), lambda w: silu_gate(w, w), lambda w: w.rms_norm(1e-5),
        softmax, lambda w: w.reshape(-1), lambda w: w.transpose(1, 0),
        lambda w: w.contiguous(), lambda w: w.cast(F16), lambda w: w.strided((1,), ()),
    ],
)  # fmt: skip
def test_computing_a_weight_without_a_graph_is_refused(
    context: Context, call: Callable[[Any], Any]
) -> None:
    with pytest.raises(ShapeError, match="belongs to no graph"):
        call(context.host.zeros((2, 2), F32))
