"""Which device has which weight, by the names of a file."""

import pytest

from tampu.ml.device_map import DeviceMap, is_of_experts, layer_of
from tampu.ml.devices import Device

FIRST, SECOND = (Device(n + 1, "CUDA", n, "gpu", "product") for n in range(2))
PLACEMENT = DeviceMap((FIRST, SECOND), (-1, 0, 1, 1), frozenset({2}))


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("token_embd.weight", None), ("position_embd.weight", None), ("token_types.weight", None),
        ("token_embd_norm.weight", None), ("v.position_embd.weight", None),
        ("rope_freqs.weight", None), ("blk.0.attn_q.weight", 0), ("blk.31.ffn_down.weight", 31),
        ("output.weight", 3), ("output_norm.weight", 3), ("v.blk.7.attn_q.weight", 3),
        ("mm.0.weight", 3),
    ],
)  # fmt: skip
def test_a_tensor_belongs_to_the_layer_that_its_name_says(name: str, layer: int | None) -> None:
    assert layer_of(name, 3) == layer


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("token_embd.weight", None), ("rope_freqs.weight", None), ("blk.0.attn_q.weight", None),
        ("blk.1.attn_q.weight", FIRST), ("blk.1.ffn_up_exps.weight", FIRST),
        ("blk.2.attn_q.weight", SECOND), ("blk.2.ffn_up_exps.weight", None),
        ("blk.2.ffn_up_exps.bias", None), ("output.weight", SECOND), ("mm.0.weight", SECOND),
        ("blk.9.attn_q.weight", None),
    ],
)  # fmt: skip
def test_a_weight_is_on_the_device_of_its_layer_except_kept_experts(
    name: str, device: Device | None
) -> None:
    assert PLACEMENT.of_weight(name) is device


@pytest.mark.parametrize(
    ("layers", "device"),
    [((0, 0, 0), FIRST), ((1, 1, -1), SECOND), ((0, 1, 1), None), ((-1, 0, 0), None),
     ((-1, -1, 0), None)],
)  # fmt: skip
def test_what_all_layers_use_is_on_the_device_that_has_them_all(
    layers: tuple[int, ...], device: Device | None
) -> None:
    assert DeviceMap((FIRST, SECOND), layers).of_weight("rope_freqs.weight") is device


def test_without_devices_all_is_on_the_cpu() -> None:
    nowhere = DeviceMap()
    assert nowhere.of_output() is None
    assert nowhere.of_layer(0) is None
    assert nowhere.of_weight("output.weight") is None


@pytest.mark.parametrize(
    ("name", "is_experts"),
    [("blk.0.ffn_gate_exps.weight", True), ("blk.0.ffn_gate_chexps.weight", True),
     ("blk.0.ffn_gate_shexp.weight", False), ("blk.0.ffn_gate_inp.weight", False)],
)  # fmt: skip
def test_expert_tensors_are_recognized_by_name(name: str, is_experts: bool) -> None:
    assert is_of_experts(name) is is_experts
