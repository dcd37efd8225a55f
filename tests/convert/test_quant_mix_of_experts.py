"""Experts in a checkpoint become one tensor each of gate, up and down projections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tampu.convert.checkpoint import Checkpoint, StoredTensor
from tampu.convert.config import Config
from tampu.convert.families.gptoss import GPT_OSS, decoded
from tampu.convert.families.llama import MIXTRAL
from tampu.convert.families.llama4 import LLAMA4_TEXT
from tampu.convert.families.qwen import QWEN3_MOE
from tampu.convert.family import Family
from tampu.convert.lazy_tensor import nth_part, stacked, viewed
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml.quantize import dequantize, quantize
from tampu.ml.types import GGMLType

Arrays = dict[str, np.ndarray[Any, Any]]


def stored(folder: Path, arrays: Arrays) -> list[StoredTensor]:
    (folder / "config.json").write_text("{}")
    contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    save_file(contiguous, folder / "model.safetensors")
    return list(Checkpoint.open(folder).tensors.values())


def named(family: Family, folder: Path, arrays: Arrays) -> Arrays:
    found = family._named(stored(folder, arrays), family.splits)
    return {name: tensor.read() for name, tensor in found}


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_experts_are_stacked_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    experts = [numbers(3, 2, seed=index) for index in range(11)]  # 10 comes after 9, not after 1
    name = "model.layers.4.mlp.experts.{}.gate_proj.weight"
    found = named(QWEN3_MOE, tmp_path, {name.format(i): e for i, e in enumerate(experts)})
    assert list(found) == ["blk.4.ffn_gate_exps.weight"]
    np.testing.assert_array_equal(found["blk.4.ffn_gate_exps.weight"], np.stack(experts))


@pytest.mark.parametrize(
    ("theirs", "ours"), [("w1", "gate"), ("w2", "down"), ("w3", "up"), ("w4", None)]
)
def test_mixtrals_projections_are_renamed(tmp_path: Path, theirs: str, ours: str | None) -> None:
    name = f"model.layers.0.block_sparse_moe.experts.0.{theirs}.weight"
    if ours is None:
        with pytest.raises(ModelFileError, match="is not a tensor of llama"):
            named(MIXTRAL, tmp_path, {name: numbers(2, 2)})
    else:
        assert list(named(MIXTRAL, tmp_path, {name: numbers(2, 2)})) == [
            f"blk.0.ffn_{ours}_exps.weight"
        ]


@pytest.mark.parametrize("present", [[0, 2], [1], [0, 99_999_999_999]])
def test_a_missing_expert_is_an_error(tmp_path: Path, present: list[int]) -> None:
    name = "model.layers.0.mlp.experts.{}.up_proj.weight"
    with pytest.raises(ModelFileError, match=r"ffn_up_exps\.weight: \d experts"):
        named(QWEN3_MOE, tmp_path, {name.format(index): numbers(2, 2) for index in present})


def test_experts_of_different_shapes_are_an_error(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.{}.up_proj.weight"
    with pytest.raises(ModelFileError, match="differs in shape or type"):
        named(QWEN3_MOE, tmp_path, {name.format(i): numbers(2, 2 + i) for i in range(2)})


@pytest.mark.seed("S90")
def test_llama4s_gate_and_up_are_split_and_transposed(tmp_path: Path) -> None:
    both, down = numbers(3, 4, 10), numbers(3, 5, 4)
    prefix = "model.layers.1.feed_forward.experts."
    found = named(
        LLAMA4_TEXT, tmp_path, {prefix + "gate_up_proj": both, prefix + "down_proj": down}
    )
    x = numbers(4, seed=9)
    np.testing.assert_allclose(
        found["blk.1.ffn_gate_exps.weight"] @ x, x @ both[..., :5], rtol=1e-5
    )
    np.testing.assert_allclose(found["blk.1.ffn_up_exps.weight"] @ x, x @ both[..., 5:], rtol=1e-5)
    np.testing.assert_array_equal(found["blk.1.ffn_down_exps.weight"], down.swapaxes(1, 2))


def test_gpt_oss_gate_and_up_are_interleaved(tmp_path: Path) -> None:
    both, bias = numbers(3, 4, 10), numbers(3, 10)
    prefix = "model.layers.1.mlp.experts."
    found = named(
        GPT_OSS, tmp_path, {prefix + "gate_up_proj": both, prefix + "gate_up_proj_bias": bias}
    )
    np.testing.assert_array_equal(
        found["blk.1.ffn_gate_exps.weight"], both[..., 0::2].swapaxes(1, 2)
    )
    np.testing.assert_array_equal(found["blk.1.ffn_up_exps.bias"], bias[:, 1::2])


def test_mxfp4_blocks_and_scales_are_decoded(tmp_path: Path) -> None:
    blocks = np.zeros((1, 2, 1, 16), np.uint8)
    blocks[0, 0, 0, 0] = 0x21  # the low half first: 0.5, then 1
    blocks[0, 1, 0, 15] = 0xF7  # 6, then -6
    scales = np.array([[[127], [130]]], np.uint8)  # 1 and 8
    name = "model.layers.0.mlp.experts.down_proj"
    arrays = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    found = named(GPT_OSS, tmp_path, arrays)["blk.0.ffn_down_exps.weight"]
    assert found.shape == (1, 2, 32)
    assert found[0, 0, :3].tolist() == [0.5, 1, 0]
    assert found[0, 1, 30:].tolist() == [48, -48]


def test_mxfp4_survives_a_file_of_that_type_unchanged(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    blocks = random.integers(0, 256, (2, 3, 2, 16), np.uint8)
    scales = random.integers(110, 140, (2, 3, 2), np.uint8)
    name = "model.layers.0.mlp.experts.down_proj"
    arrays = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    values = named(GPT_OSS, tmp_path, arrays)["blk.0.ffn_down_exps.weight"]
    stored = quantize(values.reshape(-1, 64), GGMLType.MXFP4)
    again = dequantize(stored, GGMLType.MXFP4, values.shape)
    np.testing.assert_array_equal(again, values)


def test_blocks_without_scales_are_an_error(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.down_proj_blocks"
    with pytest.raises(ModelFileError, match="has no scales"):
        named(GPT_OSS, tmp_path, {name: np.zeros((1, 2, 1, 16), np.uint8)})
    parts = stored(tmp_path, {"a_blocks": np.zeros((1, 2, 1, 8)), "a_scales": np.zeros((1, 2, 1))})
    with pytest.raises(ModelFileError, match="blocks"):
        decoded(parts[0], parts[1])


def test_stacks_and_views_are_never_copied_raw(tmp_path: Path) -> None:
    """A file's bytes are copied where a tensor's stored type is the one that is wanted."""
    (tensor,) = stored(tmp_path, {"a": numbers(4, 2)})
    assert stacked([tensor, tensor]).dtype == viewed(tensor, nth_part(1, axis=0)).dtype == ""
    assert stacked([tensor, tensor]).shape == (2, 4, 2)
    assert viewed(tensor, nth_part(1, axis=0)).shape == (2, 2)
    with pytest.raises(ModelFileError, match="cannot be split"):
        viewed(tensor, nth_part(0, axis=0, count=3))


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        (QWEN3_MOE, {"norm_topk_prob": False}, "norm_topk_prob"),
        (QWEN3_MOE, {"norm_topk_prob": True, "decoder_sparse_step": 2}, "decoder_sparse_step"),
        (LLAMA4_TEXT, {"moe_layers": [0], "interleave_moe_layer_step": 2}, "moe_layers"),
        (LLAMA4_TEXT, {"no_rope_layers": [0, 1]}, "no_rope_layers"),
        (GPT_OSS, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ],
)
def test_settings_without_a_gguf_key_are_refused(
    family: Family, changes: dict[str, Any], named: str
) -> None:
    config = {
        "vocab_size": 8, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 64, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 8, "intermediate_size_mlp": 8,
    }  # fmt: skip
    if family is GPT_OSS:
        yarn = {"rope_type": "yarn", "factor": 4.0, "truncate": False}
        config["rope_scaling"] = yarn | {"original_max_position_embeddings": 16}  # type: ignore[assignment]
    with pytest.raises(UnsupportedModelError, match=named):
        family.parameters(Config(config | changes))
