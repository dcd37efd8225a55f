"""The logits of every architecture equal those of Hugging Face transformers.

The tolerances are those of the project's rules for fidelity; an error of 1e-6 is the noise of
float32. Gemma's activation comes from a half-precision table in ggml's CPU code.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pytest
from support.checkpoints import DECODERS, RECIPES, load_reference
from support.laboratory import (
    LENGTH,
    Laboratory,
    answer,
    divergence,
    exact,
    in_depth,
    relative_error,
    tabulate_gelu,
    tokens,
)
from support.mimicry import Choices, Mimicry
from support.seeing import Seer

from tampu.ml import Backend
from tampu.ml.device_map import DeviceMap
from tampu.ml.devices import Device

pytestmark = pytest.mark.parity

NAMES = list(DECODERS)
TYPICAL = [
    "llama_rope_llama3", "mistral_window", "mistral3", "qwen2", "qwen3", "lfm2", "qwen35", "gemma2",
    "gemma3_text",
]  # fmt: skip
# What quantized activations change at most: in the tiny Gemma 4 rounding them costs twice as much.
QUANTIZED, QUANTIZED_GEMMA4 = 4e-2, 7e-2
ALONE = {"on": "", "off": "ggml alone: "}  # by whether kernels are used
KERNELS = pytest.mark.parametrize("kernels", list(ALONE))
MIXTURES = [
    "mixtral", "qwen2moe", "qwen3moe", "qwen3vlmoe", "qwen35moe", "qwen3next", "gptoss",
    "llama4_text", "deepseek_ocr2",
]  # fmt: skip


F16_ARITHMETIC = 5e-3  # what it changes at most


def share_of_other_experts(mine: Sequence[Choices], theirs: Sequence[Choices]) -> float:
    """Return for how many of the tokens and layers two runs chose other experts."""
    differ = [
        set(one) != set(other)
        for pair in zip(mine, theirs, strict=True)
        for one, other in zip(*(each.tolist() for each in pair), strict=True)
    ]
    return float(np.mean(differ))


@pytest.mark.parametrize("name", in_depth(name for name in NAMES if RECIPES[name].approximate))
def test_the_table_of_the_activation_explains_its_error(laboratory: Laboratory, name: str) -> None:
    """What is left are arguments that round to the other neighbour: 1e-4 from a change of 3e-7."""
    model = tabulate_gelu(load_reference(name, laboratory.checkpoint(name)))
    with laboratory.engine(name) as engine:
        ours = engine.logits(tokens())
    laboratory.compare(name, ours, answer(model, tokens()), "F32, same table of GELU", 3e-4)


@pytest.mark.parametrize("name", in_depth(NAMES))
def test_the_error_does_not_grow_along_the_text(laboratory: Laboratory, name: str) -> None:
    reference = laboratory.answer(name)
    with laboratory.engine(name) as engine:
        ours = engine.logits(tokens())[:, : reference.shape[1]]
    quarter = LENGTH // 4
    first = relative_error(ours[:quarter], reference[:quarter])
    last = relative_error(ours[-quarter:], reference[-quarter:])
    assert last < 3 * first


@pytest.mark.parametrize("name", in_depth([*TYPICAL, *MIXTURES]))
@pytest.mark.parametrize("length", [1, 2, 16, 17])
def test_logits_of_texts_shorter_and_longer_than_the_window(
    laboratory: Laboratory, name: str, length: int
) -> None:
    with laboratory.engine(name) as engine:
        ours = engine.logits(tokens(length))
    laboratory.compare(name, ours, laboratory.answer(name, length), "F32, short texts", exact(name))


@pytest.mark.parametrize("name", in_depth(NAMES))
def test_logits_with_a_half_precision_cache(laboratory: Laboratory, name: str) -> None:
    with laboratory.engine(name, cache="f16") as engine:
        ours = engine.logits(tokens())
    laboratory.compare(name, ours, laboratory.answer(name), "F32, cache F16", 2e-3)


@pytest.mark.parametrize("name", in_depth(NAMES))
def test_logits_with_fused_attention(laboratory: Laboratory, arithmetic: str, name: str) -> None:
    reference = laboratory.answer(name)
    limit = exact(name) if arithmetic == "f32" else F16_ARITHMETIC
    with laboratory.engine(name, cache="f32", flash=True) as engine:
        for chunk in (None, 1):
            ours = engine.logits(tokens(), chunk=chunk)
            laboratory.compare(name, ours, reference, "F32, fused attention", limit)


@pytest.mark.parametrize("name", in_depth(MIXTURES))
def test_logits_of_experts_on_a_gpu(laboratory: Laboratory, gpu: Device, name: str) -> None:
    """With F16 arithmetic a token goes to other experts: the reference follows our choice.

    Without it, ggml's Vulkan backend still rounds operands of attention that is not fused to F16.
    """
    config = RECIPES[name].values
    layers = config.get("text_config", config)["num_hidden_layers"] + 1
    device_map = DeviceMap((gpu,), layers * (0,))
    with closing(Backend(threads=1, max_nodes=4096, device_map=device_map)) as backend:
        seer = Seer(backend, laboratory.file(name))
        ours, choices = seer.logits_and_choices([tokens()])
        assert seer.weights.device_bytes
        seer.close()
    with Mimicry(choices, RECIPES[name].experts) as followed:
        reference = answer(laboratory.reference(name), tokens())
    limit = exact(name) if gpu.name == "GPU" else F16_ARITHMETIC
    laboratory.compare(name, ours, reference, "F32, same experts, on a GPU", limit)
    assert share_of_other_experts(choices, followed.choices) < 0.02


@pytest.mark.parametrize("name", in_depth(NAMES))
def test_fused_attention_with_a_half_precision_cache(laboratory: Laboratory, name: str) -> None:
    require_fused(laboratory, name, "on")


@pytest.mark.parametrize("name", in_depth(TYPICAL))
def test_fused_attention_of_ggml_with_a_half_precision_cache(
    laboratory: Laboratory, name: str
) -> None:
    require_fused(laboratory, name, "off")


def require_fused(laboratory: Laboratory, name: str, kernels: str) -> None:
    reference, what = laboratory.answer(name), f"{ALONE[kernels]}F32, cache F16, fused attention"
    with laboratory.engine(name, cache="f16", flash=True, kernels=kernels) as engine:
        laboratory.compare(name, engine.logits(tokens()), reference, what, 2e-3)
        # For few tokens at a time ggml also adds up the values in half precision.
        ours = engine.logits(tokens(), chunk=1)
        laboratory.compare(name, ours, reference, f"{what}, token by token", 4e-3)


@pytest.mark.parametrize("name", in_depth(TYPICAL))
@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize(("type_", "limit"), [("F16", 3e-3), ("BF16", 1e-2)])
@KERNELS
def test_logits_with_sixteen_bit_weights(
    laboratory: Laboratory, name: str, type_: str, limit: float, flash: bool, kernels: str
) -> None:
    with laboratory.engine(name, type_, cache="f16", flash=flash, kernels=kernels) as engine:
        ours = engine.logits(tokens())
    what = f"{ALONE[kernels]}{type_}, cache F16" + (", fused attention" if flash else "")
    laboratory.compare(name, ours, laboratory.answer(name), what, limit)


@pytest.mark.parametrize("name", in_depth(MIXTURES))
def test_logits_of_experts_with_half_precision_weights(
    laboratory: Laboratory, backend: Backend, name: str
) -> None:
    """On some processors a token goes to other experts: the reference follows our choice."""
    seer = Seer(backend, laboratory.file(name, "F16"))
    ours, choices = seer.logits_and_choices([tokens()])
    seer.close()
    with Mimicry(choices, RECIPES[name].experts) as followed:
        reference = answer(laboratory.reference(name), tokens())
    laboratory.compare(name, ours, reference, "F16, same experts", 3e-3)
    assert share_of_other_experts(choices, followed.choices) < 0.02


@pytest.mark.parametrize(
    "name", in_depth([*TYPICAL, "gemma4_small", "mllama", "paddleocr", "qwen25vl", "qwen3vl"])
)
def test_quantized_weights_match_their_dequantized_values(
    laboratory: Laboratory, name: str
) -> None:
    """ggml rounds activations too, and each rounding that falls otherwise changes all that follow.

    So the measure is transformers with the same weights and its own activations rounded: ours must
    not be further from the exact answer than that is.
    """
    model = laboratory.quantized_reference(name, "Q8_0")
    reference = answer(model, tokens())
    with Mimicry(rounds=True):
        rounded = answer(model, tokens())
    most = QUANTIZED_GEMMA4 if name == "gemma4_small" else QUANTIZED
    limit = min(1.2 * relative_error(rounded, reference), most)
    for kernels in ("on", "off"):
        with laboratory.engine(name, "Q8_0", cache="f16", kernels=kernels) as engine:
            ours = engine.logits(tokens())[:, : reference.shape[1]]
        laboratory.compare(name, ours, reference, f"{ALONE[kernels]}Q8_0, cache F16", limit)
        assert divergence(ours, reference) < 1.4 * divergence(rounded, reference)
    # The weights themselves were rounded: the comparison was with their stored values.
    assert np.abs(reference - laboratory.answer(name)).max() > 1e-2


@pytest.mark.parametrize("name", in_depth(MIXTURES))
def test_quantized_experts_match_their_dequantized_values(
    laboratory: Laboratory, backend: Backend, name: str
) -> None:
    """Rounded activations send some tokens to other experts: the reference follows our choice.

    Then it is as with other quantised weights. The choices themselves differ in few places.
    """
    for type_ in ("Q8_0", "MXFP4") if name == "gptoss" else ("Q8_0",):
        seer = Seer(backend, laboratory.file(name, type_))
        ours, choices = seer.logits_and_choices([tokens()])
        seer.close()
        model = laboratory.quantized_reference(name, type_)
        with Mimicry(choices, RECIPES[name].experts) as followed:
            reference = answer(model, tokens())
        with Mimicry(choices, RECIPES[name].experts, rounds=True):
            rounded = answer(model, tokens())
        most = 1.5
        limit = most * relative_error(rounded, reference)
        laboratory.compare(name, ours, reference, f"{type_}, same experts", min(limit, 5e-2))
        # The divergence grows with the square of the error.
        assert divergence(ours, reference) < most**2 * divergence(rounded, reference)
        assert share_of_other_experts(choices, followed.choices) < 0.05


@KERNELS
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_logits_with_a_quantized_cache(laboratory: Laboratory, name: str, kernels: str) -> None:
    with laboratory.engine(name, cache="q8_0", flash=True, kernels=kernels) as engine:
        ours = engine.logits(tokens())
    what = f"{ALONE[kernels]}F32, cache Q8_0"
    laboratory.compare(name, ours, laboratory.answer(name), what, 3e-2)
