"""Files that tampu converts load in llama.cpp and answer there as the checkpoint does."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.checkpoints import FOR_LLAMA_CPP, HYBRIDS
from support.laboratory import Laboratory, tokens
from support.llama_cpp import greedy, seen
from support.projectors import take_apart
from support.seeing import picture

from tampu import Engine
from tampu.bench.llama_cpp import LlamaCpp
from tampu.convert.quantize import quantize_file

pytestmark = [pytest.mark.parity, pytest.mark.slow]

PROMPT = tokens(24)
PROMPTS = [tokens(24, seed) for seed in range(3)]  # some lead llama.cpp to an end of text at once
# Not what llama.cpp fixes: gemma3_text's scale of attention, gptoss' limit of activations,
# llama4_text's chunks, a window of Mistral's.
MODELS = [
    "llama",
    "llama_rope_llama3",
    "llama_biases",
    "mistral",
    "mistral3",
    "mixtral",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3_yarn",
    "qwen3moe",
    "gemma2",
    "gemma4",
    "gemma4_small",
    *FOR_LLAMA_CPP,
    *(name for name in HYBRIDS if not name.endswith("_seeing")),  # their text is as without
]


def text_file(laboratory: Laboratory, name: str) -> Path:
    """Return the model's file, without vision: llama.cpp has that in a file of its own."""
    whole = laboratory.file(name, "F32")
    if not name.startswith(("qwen3vl", "deepseek_ocr")):
        return whole
    text = whole.with_name(f"{name}-text.gguf")
    take_apart(whole, text, whole.with_name(f"{name}-mmproj.gguf"))
    return text


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_gives_the_same_greedy_tokens(laboratory: Laboratory, name: str) -> None:
    file, clear = text_file(laboratory, name), 0
    for prompt in PROMPTS:
        clear += laboratory.require_greedy(name, prompt, greedy(file, prompt, 8), lead=0.02)
        if clear >= 3:
            return
    pytest.fail(f"{name}: only {clear} tokens could be compared")


@pytest.mark.parametrize("name", ["deepseek_ocr_usual", "deepseek_ocr2_usual"])
def test_llama_cpp_sees_the_same(laboratory: Laboratory, name: str) -> None:
    """It rounds operands of convolutions and attention to F16."""
    text, image = text_file(laboratory, name), picture(100, 150)
    projector = text.with_name(f"{name}-mmproj.gguf")
    data = io.BytesIO()
    Image.fromarray(image).save(data, "PNG")
    expected = seen(text, projector, data.getvalue(), "one ", "two")
    with Engine.load(text, projector=projector, context=512, threads=1, cache_type="f32") as engine:
        before, after = engine.tokenize("one "), engine.tokenize("two", add_special=False)
        logits = engine.logits([*before, engine.prepare_image(image), *after])[-1]
    found = logits - np.logaddexp.reduce(logits)
    scores = np.array([expected[token] for token in sorted(expected)])
    ours = found[sorted(expected)]
    assert np.std(ours) > 1
    np.testing.assert_allclose(ours, scores, atol=0.2)


def test_llama_cpp_can_be_measured_with_recurrent_layers(laboratory: Laboratory) -> None:
    peer = LlamaCpp(laboratory.file("qwen35", "F32"), threads=1, context=64)
    for _ in range(2):  # the second time its states are beyond the history
        peer.rewind(tokens(24))
        assert peer.decode([9, 10]) > 0
    peer.close()


@pytest.mark.parametrize("type_", ["F16", "Q8_0", "Q4_K_M"])
def test_llama_cpp_and_tampu_agree_on_a_quantized_file(laboratory: Laboratory, type_: str) -> None:
    source = laboratory.file("llama", "F16")
    path = source.with_name(f"quantised-{type_}.gguf")
    quantize_file(source, path, type_)
    found = greedy(path, PROMPT, 8)
    with Engine.load(path, context=256, threads=1, cache_type="f32") as engine:
        ours = [int(row.argmax()) for row in engine.logits([*PROMPT, *found])[len(PROMPT) - 1 : -1]]
    assert sum(a == b for a, b in zip(ours, found, strict=True)) >= len(found) - 1
    assert len(found) >= 3
