"""Adapters of PEFT: what is written, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapters import Factors, write_adapter, write_tensors
from support.tiny_model import Tiny, write_tiny

from tampu.cli.app import run
from tampu.convert.adapters import _Settings, is_adapter, plan_adapter
from tampu.convert.cache import converted_adapter
from tampu.convert.families.llama import interleave
from tampu.engine.engine import Engine
from tampu.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from tampu.ml.gguf import GGUFFile, read_gguf

TINY = Tiny()
QUERY = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def base(tmp_path: Path) -> GGUFFile:
    return read_gguf(write_tiny(tmp_path / "base.gguf", TINY))


def pair(outputs: int, inputs: int, rank: int = 2) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    return (
        random.normal(size=(rank, inputs)).astype(np.float32),
        random.normal(size=(outputs, rank)).astype(np.float32),
    )


def factors() -> Factors:
    return {QUERY: pair(TINY.heads * TINY.head_dim, TINY.embedding)}


def values(path: Path, name: str) -> np.ndarray:
    info = read_gguf(path).tensors[name]
    data = path.read_bytes()[info.offset : info.offset + info.size_bytes]
    return np.frombuffer(data, np.float32).reshape(info.shape)


def test_the_file_is_in_llama_cpps_format(tmp_path: Path, base: GGUFFile) -> None:
    folder = write_adapter(tmp_path / "peft", factors(), lora_alpha=8)
    plan_adapter(folder, base).write(tmp_path / "a.gguf")
    metadata = read_gguf(tmp_path / "a.gguf").metadata
    assert metadata.architecture == "llama"
    assert metadata.string("general.type") == "adapter"
    assert metadata.string("adapter.type") == "lora"
    assert metadata.number("adapter.lora.alpha") == 8
    a, b = factors()[QUERY]
    np.testing.assert_array_equal(values(tmp_path / "a.gguf", "blk.0.attn_q.weight.lora_a"), a)
    np.testing.assert_array_equal(
        values(tmp_path / "a.gguf", "blk.0.attn_q.weight.lora_b"), interleave(b, TINY.heads)
    )


def test_the_command_converts_an_adapter(tmp_path: Path, base: GGUFFile) -> None:
    folder, out = write_adapter(tmp_path / "peft", factors()), tmp_path / "a.gguf"
    assert run(["convert", str(folder), "--base", str(base.path), "-o", str(out)]) == 0
    assert read_gguf(out).metadata.string("general.type") == "adapter"


def test_an_adapter_folder_is_recognized_by_its_config(tmp_path: Path) -> None:
    assert is_adapter(write_adapter(tmp_path / "peft", factors()))
    assert not is_adapter(tmp_path)


def test_an_adapter_is_converted_once_per_base_model(tmp_path: Path, base: GGUFFile) -> None:
    folder = write_adapter(tmp_path / "peft", factors())
    first = converted_adapter(folder, base, tmp_path / "cache")
    assert converted_adapter(folder, base, tmp_path / "cache") == first
    other = read_gguf(write_tiny(tmp_path / "other.gguf", TINY))
    assert converted_adapter(folder, other, tmp_path / "cache") != first
    assert len(list((tmp_path / "cache" / "converted").glob("*.gguf"))) == 2


SETTINGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"peft_type": "IA3"}, UnsupportedModelError, "peft_type is 'IA3'"),
    ({"use_dora": True}, UnsupportedModelError, "use_dora"),
    ({"fan_in_fan_out": True}, UnsupportedModelError, "fan_in_fan_out"),
    ({"bias": "all"}, UnsupportedModelError, "bias"),
    ({"modules_to_save": ["lm_head"]}, UnsupportedModelError, "modules_to_save"),
    ({"lora_alpha": None}, ModelFileError, "lora_alpha"),
    ({"lora_alpha": float("nan")}, ModelFileError, "lora_alpha"),
    ({"lora_alpha": 0}, ModelFileError, "lora_alpha"),
    ({"alpha_pattern": {"q_proj": "x"}}, ModelFileError, "lora_alpha"),
]


@pytest.mark.parametrize(("changes", "error", "message"), SETTINGS)
def test_unsupported_settings_are_refused(
    tmp_path: Path, base: GGUFFile, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    folder = write_adapter(tmp_path / "peft", factors(), **changes)
    with pytest.raises(error, match=message):
        plan_adapter(folder, base)


TENSORS: list[tuple[dict[str, tuple[int, int]], type[Exception], str]] = [
    ({}, ModelFileError, "contains no tensors"),
    ({f"{QUERY}.weight": (4, 4)}, UnsupportedModelError, "neither lora_A nor lora_B"),
    ({f"{QUERY}.lora_A.weight": (2, 32)}, ModelFileError, "only one of"),
    (
        {f"{QUERY}.lora_A.weight": (2, 32), f"{QUERY}.lora_B.weight": (64, 3)},
        ModelFileError,
        "do not match",
    ),
    (
        {f"{QUERY}.lora_A.weight": (2, 16), f"{QUERY}.lora_B.weight": (64, 2)},
        ModelFileError,
        "do not match",
    ),
    (
        {"model.strange.lora_A.weight": (2, 32), "model.strange.lora_B.weight": (64, 2)},
        UnsupportedModelError,
        "not a projection of llama",
    ),
    (
        {
            "model.layers.9.self_attn.q_proj.lora_A.weight": (2, 32),
            "model.layers.9.self_attn.q_proj.lora_B.weight": (64, 2),
        },
        ModelFileError,
        "for another model",
    ),
]


@pytest.mark.parametrize(("shapes", "error", "message"), TENSORS)
def test_mismatched_tensors_are_refused(
    tmp_path: Path,
    base: GGUFFile,
    shapes: dict[str, tuple[int, int]],
    error: type[Exception],
    message: str,
) -> None:
    folder = write_adapter(tmp_path / "peft", factors())
    zeros = {
        f"base_model.model.{name}": np.zeros(shape, np.float32) for name, shape in shapes.items()
    }
    write_tensors(folder, zeros)
    with pytest.raises(error, match=message):
        plan_adapter(folder, base)


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path, base: GGUFFile) -> None:
    with pytest.raises(ModelNotFoundError, match="not an adapter"):
        plan_adapter(tmp_path, base)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, base: GGUFFile) -> None:
    def load(adapter: Path) -> None:
        Engine.load(base.path, context=16, threads=1, adapters=[(adapter, 1.0)]).close()

    with pytest.raises(ModelFileError, match=r"base\.gguf: is not an adapter"):
        load(base.path)
    with pytest.raises(ModelNotFoundError, match="no such adapter"):
        load(tmp_path / "nothing.gguf")
    other = read_gguf(write_tiny(tmp_path / "other.gguf", Tiny(architecture="qwen3")))
    folder = write_adapter(tmp_path / "peft", factors())
    plan_adapter(folder, other).write(tmp_path / "qwen3.gguf")
    with pytest.raises(ModelFileError, match="is an adapter for qwen3, the model is llama"):
        load(tmp_path / "qwen3.gguf")
    wide = read_gguf(write_tiny(tmp_path / "wide.gguf", Tiny(heads=8)))
    factors_wide = {QUERY: pair(8 * TINY.head_dim, TINY.embedding)}
    plan = plan_adapter(write_adapter(tmp_path / "peft2", factors_wide), wide)
    plan.write(tmp_path / "wide-adapter.gguf")
    with pytest.raises(ModelFileError, match="do not fit"):
        load(tmp_path / "wide-adapter.gguf")


@pytest.mark.parametrize(
    ("key", "value"),
    [("layer_replication", [[0, 2]]), ("lora_bias", True), ("use_dora", True), ("invented", 1)],
)
def test_adapter_settings_that_are_not_carried_are_refused_by_name(key: str, value: object) -> None:
    known = {"peft_type": "LORA", "lora_alpha": 8, "r": 4, "target_modules": ["q_proj"]}
    with pytest.raises(UnsupportedModelError, match=rf"adapter_config\.json: {key} "):
        _Settings.read(known | {key: value}, is_allowed=False)
    assert _Settings.read(known, is_allowed=False).alpha == 8
