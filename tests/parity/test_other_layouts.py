"""Files that say the same in other keys than ours, as other converters write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.laboratory import Laboratory, tokens
from support.ollama_files import Arrays, Published, publish

from tampu.convert import convert
from tampu.engine.engine import Engine
from tampu.ml.gguf import read_gguf

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
