"""Files that say the same in other keys than ours, as other converters write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.laboratory import Laboratory, tokens
from support.ollama_files import Arrays, Published, publish

from tampu.convert import convert
from tampu.convert.quantize import quantize_file
from tampu.engine.engine import Engine
from tampu.errors import ModelFileError
from tampu.gguf_compat import read_model
from tampu.ml.gguf import read_gguf
from tampu.ml.types import GGMLType

pytestmark = pytest.mark.parity

# What llama.cpp's converter writes in place of ours; where it has no key, what stands for none.
LAYOUTS: dict[str, dict[str, float]] = {
    "mistral3": {
        "mistral3.rope.scaling.attn_factor": 1.0,
        "mistral3.rope.scaling.yarn_log_multiplier": 1.0,
    },
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_file_in_llama_cpps_keys_gives_the_same_logits(
    laboratory: Laboratory, tmp_path: Path, name: str
) -> None:
    folder = laboratory.checkpoint(name)
    files = {"ours": None, "theirs": LAYOUTS[name]}
    logits = []
    for file, keys in files.items():
        convert(folder, tmp_path / f"{file}.gguf", "F32", metadata=keys)
        path = tmp_path / f"{file}.gguf"
        with Engine.load(path, context=128, threads=1, cache_type="f32") as engine:
            logits.append(engine.logits(tokens(60)))
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-5, atol=1e-5)


def fuse_gate_and_up(arrays: Arrays, keys: dict[str, Any]) -> None:  # noqa: ARG001
    """Put gate and up of experts in one, as llama.cpp's converter with `--fuse-gate-up-exps`."""
    for name in [name for name in arrays if ".ffn_gate_exps." in name]:
        up = arrays.pop(name.replace("ffn_gate_exps", "ffn_up_exps"))
        fused = name.replace("ffn_gate_exps", "ffn_gate_up_exps")
        arrays[fused] = np.concatenate([arrays.pop(name), up], 1)


@pytest.mark.parametrize(
    "name", ["mixtral", "qwen2moe", "qwen3moe", "qwen35moe", "qwen3vlmoe", "gptoss", "llama4_text"]
)
def test_gate_and_up_of_experts_may_be_one_tensor(
    laboratory: Laboratory, tmp_path: Path, name: str
) -> None:
    parts = laboratory.file(name)
    fused = publish(parts, Published(change=fuse_gate_and_up), tmp_path / "fused.gguf")
    assert any("ffn_gate_up_exps" in tensor for tensor in read_gguf(fused).tensors)
    logits = []
    for path in (parts, fused):
        with Engine.load(path, context=128, threads=1, cache_type="f32") as engine:
            logits.append(engine.logits(tokens(60)))
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-4)


def one_matrix_of_keys_and_values(arrays: Arrays, keys: dict[str, Any]) -> None:
    """Write `attn_kv_b`, and the keys of files from before llama.cpp divided it."""
    for name in [name for name in arrays if name.endswith("attn_k_b.weight")]:
        key, value = arrays.pop(name), arrays.pop(name.replace("attn_k_b", "attn_v_b"))
        both = np.concatenate([key.swapaxes(1, 2), value], 1)
        arrays[name.replace("attn_k_b", "attn_kv_b")] = both.reshape(-1, both.shape[-1])
    keys["attention.head_count_kv"] = keys["attention.head_count"]
    for part in ("key", "value"):
        keys[f"attention.{part}_length"] = keys.pop(f"attention.{part}_length_mla")


@pytest.mark.parametrize("name", ["deepseek2_v2_lite", "deepseek2_v3"])
def test_keys_and_values_of_latent_attention_may_be_one_matrix(
    laboratory: Laboratory, tmp_path: Path, name: str
) -> None:
    """As in Ollama's files of DeepSeek V2."""
    divided = laboratory.file(name)
    old = publish(divided, Published(change=one_matrix_of_keys_and_values), tmp_path / "old.gguf")
    assert "blk.0.attn_kv_b.weight" in read_gguf(old).tensors
    logits = []
    for path in (divided, old):
        with Engine.load(path, context=128, threads=1, cache_type="f32") as engine:
            logits.append(engine.logits(tokens(60)))
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-5, atol=1e-5)


def test_a_quantized_matrix_of_keys_and_values_is_divided_too(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    """Keys become F16, values keep their type."""
    divided = laboratory.file("deepseek2_v2_lite")
    old = publish(divided, Published(change=one_matrix_of_keys_and_values), tmp_path / "old.gguf")
    quantized = tmp_path / "quantized.gguf"
    quantize_file(old, quantized, "Q8_0")
    tensors = read_model(quantized).tensors
    types = [tensors[f"blk.0.attn_{part}_b.weight"].type for part in "kv"]
    assert types == [GGMLType.F16, GGMLType.Q8_0]
    logits = []
    for path in (publish(quantized, Published(), tmp_path / "values.gguf"), quantized):
        with Engine.load(path, context=128, threads=1, cache_type="f32") as engine:
            logits.append(engine.logits(tokens(60)))
    assert np.linalg.norm(logits[1] - logits[0]) < 0.02 * np.linalg.norm(logits[0])


def test_one_matrix_of_keys_and_values_must_fit_the_keys(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    def change(arrays: Arrays, keys: dict[str, Any]) -> None:
        one_matrix_of_keys_and_values(arrays, keys)
        keys["attention.value_length"] += 1

    old = publish(laboratory.file("deepseek2_v3"), Published(change=change), tmp_path / "old.gguf")
    with pytest.raises(
        ModelFileError, match=r"attn_kv_b.weight.*shape \[224, 64\], not \[228, 64\]"
    ):
        Engine.load(old)
