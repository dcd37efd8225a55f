"""Files that tampu converts load in llama.cpp and answer there as the checkpoint does."""

from __future__ import annotations

import pytest
from support.laboratory import Laboratory, tokens
from support.llama_cpp import greedy

from tampu import Engine
from tampu.convert.quantize import quantize_file

pytestmark = [pytest.mark.parity, pytest.mark.slow]

PROMPT = tokens(24)
# Not Gemma 3: the recipes have a scale of attention, or a period of windows, that llama.cpp fixes.
# Nor gpt-oss: its limit of activations is another there.
MODELS = [
    "llama",
    "llama_rope_llama3",
    "mistral",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3_yarn",
    "qwen3moe",
    "gemma2",
]


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_gives_the_same_greedy_tokens(laboratory: Laboratory, name: str) -> None:
    found = greedy(laboratory.file(name, "F32"), PROMPT, 12)
    assert laboratory.require_greedy(name, PROMPT, found, lead=0.02) >= 3


@pytest.mark.parametrize("type_", ["F16", "Q8_0", "Q4_K_M"])
def test_llama_cpp_and_tampu_agree_on_a_quantised_file(laboratory: Laboratory, type_: str) -> None:
    source = laboratory.file("llama", "F16")
    path = source.with_name(f"quantised-{type_}.gguf")
    quantize_file(source, path, type_)
    found = greedy(path, PROMPT, 8)
    with Engine.load(path, context=256, threads=1, cache_type="f32") as engine:
        ours = [int(row.argmax()) for row in engine.logits([*PROMPT, *found])[len(PROMPT) - 1 : -1]]
    assert sum(a == b for a, b in zip(ours, found, strict=True)) >= len(found) - 1
    assert len(found) >= 3
