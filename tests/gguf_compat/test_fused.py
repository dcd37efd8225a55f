"""Files with queries, keys and values in one tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_model import Floats, Tiny, tiny_weights, write_tiny

from tampu.engine.engine import Engine
from tampu.errors import ModelFileError
from tampu.gguf_compat.fused import split_fused
from tampu.ml.gguf import read_gguf

TOKENS = [1, 20, 21, 2, 40]
OPTIONS: dict[str, Any] = {"context": 64, "threads": 1, "cache_type": "f32"}


def fused_weights(tiny: Tiny) -> dict[str, Floats]:
    """Return the weights as `--fuse-qkv` writes them."""
    found: dict[str, Floats] = {}
    for name, values in tiny_weights(tiny).items():
        layer, _, part = name.rpartition(".attn_")
        letter, _, kind = part.partition(".")
        if letter not in {"q", "k", "v"}:
            found[name] = values
            continue
        whole = f"{layer}.attn_qkv.{kind}"
        found[whole] = np.concatenate([found[whole], values]) if whole in found else values
    return found


@pytest.mark.parametrize("type_", ["F32", "Q8_0", "Q4_K"])
def test_a_fused_file_gives_the_logits_of_one_in_parts(tmp_path: Path, type_: str) -> None:
    tiny = Tiny(embedding=256, feed_forward=256, biases=True)
    types = {f"attn_{part}.weight": type_ for part in ("q", "k", "v", "qkv")}
    write_tiny(tmp_path / "parts.gguf", tiny, types=types)
    weights = fused_weights(tiny)
    assert sorted(name for name in weights if "blk.0.attn_qkv" in name) == [
        "blk.0.attn_qkv.bias", "blk.0.attn_qkv.weight",
    ]  # fmt: skip
    write_tiny(tmp_path / "fused.gguf", tiny, weights=weights, types=types)
    with (
        Engine.load(tmp_path / "parts.gguf", **OPTIONS) as one,
        Engine.load(tmp_path / "fused.gguf", **OPTIONS) as other,
    ):
        np.testing.assert_array_equal(one.logits(TOKENS), other.logits(TOKENS))


def test_heads_may_be_listed_by_layer(tmp_path: Path) -> None:
    keys = {"attention.head_count_kv": [2, 2]}
    path = write_tiny(tmp_path / "m.gguf", Tiny(keys=keys), weights=fused_weights(Tiny()))
    tensors = split_fused(read_gguf(path)).tensors
    assert [tensors[f"blk.1.attn_{part}.weight"].shape for part in "qkv"] == [
        (64, 32), (32, 32), (32, 32),
    ]  # fmt: skip
    keys = {"attention.head_count_kv": [2]}
    path = write_tiny(tmp_path / "m.gguf", Tiny(keys=keys), weights=fused_weights(Tiny()))
    with pytest.raises(ModelFileError, match=r"llama.attention.head_count_kv'.*1 numbers.*layer 1"):
        split_fused(read_gguf(path))


def test_a_fused_tensor_with_too_few_rows_is_named(tmp_path: Path) -> None:
    weights = fused_weights(Tiny())
    weights["blk.1.attn_qkv.weight"] = weights["blk.1.attn_qkv.weight"][:64]
    path = write_tiny(tmp_path / "m.gguf", Tiny(), weights=weights)
    with pytest.raises(ModelFileError, match=r"blk.1.attn_qkv.weight.*64 rows.*32 are keys"):
        Engine.load(path, **OPTIONS)


def test_a_layer_with_an_enormous_number_is_an_unknown_tensor(tmp_path: Path) -> None:
    name = "blk.99999999999.attn_qkv.weight"
    weights = tiny_weights(Tiny()) | {name: np.zeros((64, 32), np.float32)}
    path = write_tiny(tmp_path / "m.gguf", Tiny(), weights=weights)
    with pytest.raises(ModelFileError, match=f"not known to the architecture: {name}"):
        Engine.load(path, **OPTIONS)
