"""Adapters applied at load give the logits of transformers' model with the adapter merged in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.adapters import ALPHA, Factors, draw_factors, merge, write_adapter
from support.checkpoints import load_reference
from support.laboratory import Laboratory, answer, tokens
from support.llama_cpp import greedy

from tampu import Engine
from tampu.convert.adapters import plan_adapter
from tampu.convert.quantize import quantize_file
from tampu.ml.gguf import read_gguf

pytestmark = [pytest.mark.parity, pytest.mark.slow]

PROMPT = tokens(40)
RANK = 4


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMPU_CACHE", str(tmp_path / "cache"))


def loaded(path: Path, *adapters: tuple[Path, float]) -> Engine:
    return Engine.load(path, context=64, threads=1, cache_type="f32", adapters=adapters)


def factors_of(laboratory: Laboratory, name: str) -> Factors:
    return draw_factors(laboratory.reference(name), RANK)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen35", "mistral", "gemma3_text"])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_adapter_logits_equal_those_of_the_merged_model(
    laboratory: Laboratory, tmp_path: Path, name: str, scale: float
) -> None:
    factors = factors_of(laboratory, name)
    adapter = write_adapter(tmp_path / "adapter", factors)
    merged = load_reference(name, laboratory.checkpoint(name))
    merge(merged, factors, scale * ALPHA / RANK)
    expected = answer(merged, PROMPT)
    with loaded(laboratory.file(name, "F32"), (adapter, scale)) as engine:
        found = engine.logits(PROMPT)
    plain = answer(laboratory.reference(name), PROMPT)
    assert np.linalg.norm(expected - plain) > 0.05 * np.linalg.norm(plain)  # it does something
    laboratory.compare(name, found, expected, "an adapter", 2e-3 if "gemma" in name else 2e-5)


def test_several_adapters_add_up(laboratory: Laboratory, tmp_path: Path) -> None:
    model = laboratory.reference("llama")
    one, two = draw_factors(model, 4, seed=1), draw_factors(model, 2, seed=2)
    merged = load_reference("llama", laboratory.checkpoint("llama"))
    merge(merge(merged, one, ALPHA / 4), two, -0.5 * ALPHA / 2)
    first, second = write_adapter(tmp_path / "1", one), write_adapter(tmp_path / "2", two)
    with loaded(laboratory.file("llama", "F32"), (first, 1.0), (second, -0.5)) as engine:
        found = engine.logits(PROMPT)
    laboratory.compare("llama", found, answer(merged, PROMPT), "two adapters", 2e-5)


def test_patterns_and_the_rank_stabilized_scale_match_peft(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    factors = factors_of(laboratory, "llama")
    config = {"use_rslora": True, "alpha_pattern": {"q_proj": 4}}
    adapter = write_adapter(tmp_path / "adapter", factors, **config)
    queries = {name: pair for name, pair in factors.items() if name.endswith("q_proj")}
    others = {name: pair for name, pair in factors.items() if name not in queries}
    merged = load_reference("llama", laboratory.checkpoint("llama"))
    merge(merge(merged, queries, 4 / RANK**0.5), others, ALPHA / RANK**0.5)
    with loaded(laboratory.file("llama", "F32"), (adapter, 1.0)) as engine:
        found = engine.logits(PROMPT)
    laboratory.compare("llama", found, answer(merged, PROMPT), "an adapter's patterns", 2e-5)


def test_the_weights_stay_quantized_and_mapped(laboratory: Laboratory, tmp_path: Path) -> None:
    path = tmp_path / "q.gguf"
    quantize_file(laboratory.file("llama", "F32"), path, "Q8_0")
    factors = factors_of(laboratory, "llama")
    adapter = write_adapter(tmp_path / "adapter", factors)
    merged = load_reference("llama", laboratory.checkpoint("llama"))
    expected = answer(merge(merged, factors, ALPHA / RANK), PROMPT)
    before = path.read_bytes()
    with loaded(path, (adapter, 1.0)) as engine:
        found = engine.logits(PROMPT)
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_llama_cpp_takes_the_converted_adapter(laboratory: Laboratory, tmp_path: Path) -> None:
    model = laboratory.file("llama", "F32")
    factors = factors_of(laboratory, "llama")
    folder = write_adapter(tmp_path / "adapter", factors)
    plan_adapter(folder, read_gguf(model)).write(tmp_path / "adapter.gguf")
    merged = load_reference("llama", laboratory.checkpoint("llama"))
    merge(merged, factors, ALPHA / RANK)
    counted = 0
    with loaded(model, (tmp_path / "adapter.gguf", 1.0)) as engine:
        for seed in range(3):
            prompt = tokens(24, seed)
            found = greedy(model, prompt, 8, adapter=tmp_path / "adapter.gguf")
            rows = answer(merged, [*prompt, *found])[23:-1] if found else np.zeros((0, 2))
            best: npt.NDArray[Any] = np.sort(rows, axis=-1)[:, -2:]
            clear = best[:, 1] - best[:, 0] > 0.02
            counted += int(clear.sum())
            assert (rows.argmax(-1) == np.array(found))[clear].all()
            ours = engine.logits([*prompt, *found])[23:-1].argmax(-1)
            assert (ours == np.array(found))[clear].all()
    assert counted >= 3
