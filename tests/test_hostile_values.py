"""Sound GGUF files whose values make no sense: each is refused by its key, or does no harm."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.cost import cost, yardstick
from support.tiny_model import Tiny, tiny_weights, write_tiny

from tampu.engine.completion import Completion
from tampu.engine.engine import Engine
from tampu.errors import (
    ComputeError,
    ModelFileError,
    OutOfMemoryError,
    TampuError,
    UnsupportedModelError,
)

pytestmark = pytest.mark.slow

NAN, INF = math.nan, math.inf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hostile.gguf"


def answer(path: Path, **options: Any) -> Completion:
    with Engine.load(path, context=32, threads=1, batch=16, **options) as engine:
        return engine.generate("the", max_tokens=3, temperature=0)


REFUSED: dict[str, list[Any]] = {
    "block_count": [0, -1, 1025, 10**9, 2**32 - 1, "2", 1.5, None],
    "attention.head_count": [0, -1, 3, 2**31, "4", None],
    "attention.head_count_kv": [0, 3, 8, 2**31],
    "attention.key_length": [0, 15, 2**31 - 1, 2**31],
    "embedding_length": [0, 2**31, None],
    "context_length": [0, 2**31, 2**32 - 1, None],
    "feed_forward_length": [2**31 - 1],
    "rope.dimension_count": [0, 3, 64, 2**31],
    "rope.freq_base": [NAN, INF, 0.0, -1.0],
    "rope.scaling.type": ["spiral", 5],
    "rope.scaling.factor": [NAN, INF, -1.0],
    "attention.layer_norm_rms_epsilon": [NAN, INF, 0.0, -1.0, None],
    "attention.sliding_window": [2**31],  # 0 is none
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in REFUSED.items() for value in values]
)
def test_a_value_that_cannot_be_is_refused_at_once(path: Path, key: str, value: Any) -> None:
    write_tiny(path, Tiny(keys={key: value}))
    caught = []

    def refuse() -> None:
        with pytest.raises((ModelFileError, OutOfMemoryError, UnsupportedModelError)) as refused:
            answer(path)
        caught.append(str(refused.value))

    assert cost(refuse, times=1) < 30 * yardstick()
    assert "\n" not in caught[0]


HARMLESS: dict[str, list[Any]] = {
    "attention.value_length": [0, 2**31],
    "feed_forward_length": [0, 5],
    "vocab_size": [0, 5, 2**31],
    "rope.scaling.factor": [0.0],
    "attention.scale": [NAN, 0.0],
    "../../etc/passwd": ["x"],
    "x" * 60_000: [1],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, values in HARMLESS.items() for value in values],
    ids=lambda value: str(value)[:40],
)
def test_a_value_that_nothing_reads_does_no_harm(path: Path, key: str, value: Any) -> None:
    write_tiny(path, Tiny(keys={key: value}))
    write_tiny(path.with_name("sound.gguf"))
    assert answer(path).text == answer(path.with_name("sound.gguf")).text


# Experts


def write_experts(path: Path, **keys: Any) -> None:
    """Write a model of two experts, with some keys changed."""
    tiny = Tiny(architecture="qwen3moe", layers=1, query_norms=True)
    weights = {n: w for n, w in tiny_weights(tiny).items() if ".ffn_" not in n or "norm" in n}
    shapes = {"gate_inp": (2, 32), "gate_exps": (2, 8, 32), "up_exps": (2, 8, 32)}
    for name, shape in (shapes | {"down_exps": (2, 32, 8)}).items():
        weights[f"blk.0.ffn_{name}.weight"] = np.full(shape, 0.1, np.float32)
    sizes = {"expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 8}
    write_tiny(path, replace(tiny, keys=sizes | keys), weights=weights)


@pytest.mark.parametrize("used", [0, 3, 2**31, "1"])
def test_more_experts_than_there_are_or_none_cannot_be_used(path: Path, used: int | str) -> None:
    write_experts(path, expert_used_count=used)
    with pytest.raises(ModelFileError):
        answer(path)


@pytest.mark.parametrize("count", [0, 3, 2**31])
def test_how_many_experts_there_are_is_taken_from_the_tensors(path: Path, count: int) -> None:
    write_experts(path)
    expected = answer(path).text
    write_experts(path, expert_count=count)
    assert answer(path).text == expected


# Tensors


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int64, np.float64])
def test_weights_of_types_that_nothing_multiplies_are_refused(
    path: Path, kind: type[np.int8] | type[np.int16] | type[np.int64] | type[np.float64]
) -> None:
    weights = tiny_weights(Tiny())
    write_tiny(path, weights={n: w for n, w in weights.items() if n != "output_norm.weight"})
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(path.with_name("typed.gguf"), "llama")
    for field in reader.fields.values():
        if field.name.startswith("llama."):
            writer.add_uint32(field.name, int(field.parts[-1][0]))
    writer.add_tensor("output_norm.weight", np.ones(32, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError):
        answer(path.with_name("typed.gguf"))


@pytest.mark.parametrize(
    "name", ["../../x", "a/b\\c", "output.weight.weight", "blk.9999.attn_q.weight"]
)
def test_a_tensor_of_a_name_that_nothing_has_is_refused_by_its_name(path: Path, name: str) -> None:
    weights = tiny_weights(Tiny()) | {name: np.ones(32, np.float32)}
    write_tiny(path, weights=weights)
    with pytest.raises(ModelFileError) as caught:
        answer(path)
    assert name.replace("\\", "\\\\") in str(caught.value) or name in str(caught.value)


@pytest.mark.parametrize("name", sorted(tiny_weights(Tiny(layers=1))))
def test_any_tensor_that_is_missing_is_named(path: Path, name: str) -> None:
    weights = tiny_weights(Tiny(layers=1))
    tied = name == "output.weight"
    del weights[name]
    write_tiny(path, Tiny(layers=1), weights=weights)
    if tied:  # then it is the embedding
        assert answer(path).text
        return
    with pytest.raises(ModelFileError, match=name.replace(".", r"\.")):
        answer(path)


# What the numbers are

ODD = {
    "all zero": lambda w: np.zeros_like(w),
    "NaN": lambda w: np.full_like(w, np.nan),
    "infinite": lambda w: np.full_like(w, np.inf),
    "huge": lambda w: np.full_like(w, 3e38),
    "denormal": lambda w: np.full_like(w, 1e-42),
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize(
    "name",
    [
        "output.weight",
        "blk.0.attn_q.weight",
        "blk.0.ffn_down.weight",
        "token_embd.weight",
        "output_norm.weight",
    ],
)
def test_weights_of_odd_numbers_give_an_answer_or_a_clear_error(
    path: Path, what: str, name: str
) -> None:
    weights = tiny_weights(Tiny(layers=1))
    weights[name] = ODD[what](weights[name])
    write_tiny(path, Tiny(layers=1), weights=weights)
    try:
        assert len(answer(path).tokens) <= 3
    except ComputeError as error:
        assert "nan" in str(error) or "inf" in str(error)  # noqa: PT017


@pytest.mark.parametrize("scale", [0x0001, 0x03FF, 0x7C00, 0xFC00, 0x7E00], ids=hex)
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q5_1"])
def test_scales_of_blocks_that_are_no_numbers_do_no_harm(path: Path, scale: int, kind: str) -> None:
    write_tiny(path, Tiny(layers=1), types={"attn_q.weight": kind, "output.weight": kind})
    data = bytearray(path.read_bytes())
    from tampu.ml.gguf import read_gguf

    for info in read_gguf(path).tensors.values():
        if info.type.name == kind:
            for block in range(info.offset, info.offset + info.size_bytes, info.type.block_bytes):
                data[block : block + 2] = struct.pack("<H", scale)
    path.write_bytes(data)
    try:
        assert len(answer(path).tokens) <= 3
    except ComputeError as error:
        assert "nan" in str(error) or "inf" in str(error)  # noqa: PT017


# Adapters and projectors


def write_lora(
    path: Path,
    *,
    a: tuple[int, int] = (2, 32),
    b: tuple[int, int] = (64, 2),
    alpha: float = 4.0,
    architecture: str = "llama",
    kind: str = "lora",
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", alpha)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.ones(a, np.float32))
    writer.add_tensor("blk.0.attn_q.weight.lora_b", np.ones(b, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


ADAPTERS: dict[str, dict[str, Any]] = {
    "ranks that differ": {"a": (3, 32)},
    "inputs that differ": {"a": (2, 16)},
    "outputs that differ": {"b": (32, 2)},
    "a scale of NaN": {"alpha": NAN},
    "a scale without end": {"alpha": INF},
    "another architecture": {"architecture": "qwen3"},
    "another kind": {"kind": "vera"},
    "three dimensions": {"a": (1, 2, 32)},
}


@pytest.mark.parametrize("what", ADAPTERS)
def test_an_adapter_that_does_not_fit_is_refused(path: Path, tmp_path: Path, what: str) -> None:
    write_tiny(path)
    assert answer(path, adapters=[(write_lora(tmp_path / "fits.gguf"), 1.0)]).text
    lora = write_lora(tmp_path / "lora.gguf", **ADAPTERS[what])
    with pytest.raises(TampuError) as caught:
        answer(path, adapters=[(lora, 1.0)])
    assert "\n" not in str(caught.value)


def test_neither_an_adapter_nor_a_projector_is_a_model(path: Path, tmp_path: Path) -> None:
    with pytest.raises(TampuError):
        answer(write_lora(tmp_path / "lora.gguf"))
    write_tiny(path, Tiny(architecture="clip"))
    with pytest.raises(TampuError, match="is a projector"):
        answer(path)
