"""Files with queries, keys and values in one tensor, and with the gate in the up projection."""

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
    """Return the weights as `--fuse-qkv` writes them, and gates as files of Phi-3 have them."""
    wholes = {f"attn_{letter}": "attn_qkv" for letter in "qkv"}
    wholes |= {"ffn_gate": "ffn_up", "ffn_up": "ffn_up"}
    parts: dict[str, list[Floats]] = {}
    for name, values in sorted(tiny_weights(tiny).items(), key=_with_queries_first):
        layer, _, rest = name.rpartition(".attn_" if ".attn_" in name else ".ffn_")
        part, _, kind = name.removeprefix(f"{layer}.").partition(".")
        whole = f"{layer}.{wholes[part]}.{kind}" if rest and part in wholes else name
        parts.setdefault(whole, []).append(values)
    return {name: np.concatenate(each) for name, each in parts.items()}


def _with_queries_first(item: tuple[str, Floats]) -> int:
    return "attn_k" in item[0] or "ffn_up" in item[0] or 2 * ("attn_v" in item[0])


@pytest.mark.parametrize("type_", ["F32", "Q8_0", "Q4_K"])
def test_a_fused_file_gives_the_logits_of_one_in_parts(tmp_path: Path, type_: str) -> None:
    tiny = Tiny(embedding=256, feed_forward=256, biases=True)
    types = {f"attn_{part}.weight": type_ for part in ("q", "k", "v", "qkv")}
    types |= {f"ffn_{part}.weight": type_ for part in ("gate", "up")}
    write_tiny(tmp_path / "parts.gguf", tiny, types=types)
    weights = fused_weights(tiny)
    fused = ("blk.0.attn_qkv.bias", "blk.0.attn_qkv.weight", "blk.0.ffn_up.weight")
    assert [len(weights[name]) for name in fused] == [*[len(weights[fused[1]])] * 2, 512]
    assert "blk.0.ffn_gate.weight" not in weights
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
