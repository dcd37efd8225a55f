"""Architectures made of parts that `test_logits` compares in depth: each equals transformers.

A new one needs a recipe in `support.checkpoints`, and no line here.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.checkpoints import FAMILIES, FOR_LLAMA_CPP
from support.laboratory import Laboratory, answer, relative_error, tokens
from support.llama_cpp import greedy
from support.mimicry import Mimicry

from tampu.engine.engine import Engine

pytestmark = [pytest.mark.parity, pytest.mark.parametrize("name", FAMILIES)]

SHORT = 24
COUNT = 12
QUANTIZED = 5e-2  # what quantized activations change at most


def exact(name: str) -> float:
    return 2e-3 if FAMILIES[name].approximate else 1e-5


def test_logits_at_once_in_chunks_and_token_by_token(laboratory: Laboratory, name: str) -> None:
    reference = laboratory.answer(name)
    with laboratory.engine(name) as engine:
        for chunk, what in ((None, "at once"), (7, "in chunks of 7"), (1, "token by token")):
            ours = engine.logits(tokens(), chunk=chunk)
            laboratory.compare(name, ours, reference, f"F32, {what}", exact(name))


def test_a_wrong_weight_would_be_noticed(laboratory: Laboratory, name: str) -> None:
    """Each weight that is zero moves transformers' logits by much more than we allow."""
    model = laboratory.reference(name)
    expected = answer(model, tokens(SHORT))
    unnoticed = []
    for weight, parameter in model.named_parameters():
        held = parameter.detach().clone()
        with torch.no_grad():
            parameter.zero_()
            changed = answer(model, tokens(SHORT))
            parameter.copy_(held)
        if not relative_error(changed, expected) > 5 * exact(name):
            unnoticed.append(weight)
    assert not unnoticed


def test_sequences_in_one_batch_and_after_a_reused_prefix(
    laboratory: Laboratory, name: str
) -> None:
    texts = [tokens(90), [*tokens(60), 11, 12, 13], tokens(17, 1), tokens(40, 2)]

    def continued(engine: Engine, prompt: list[int]) -> list[int]:
        return engine.generate(prompt, temperature=0.0, max_tokens=COUNT, ignore_eos=True).tokens

    with (
        laboratory.engine(name, cache="f16", flash=True, slots=4) as engine,
        ThreadPoolExecutor(4) as pool,
    ):
        together = list(pool.map(lambda prompt: continued(engine, prompt), texts))
        again = engine.generate(texts[0], temperature=0.0, max_tokens=COUNT, ignore_eos=True)
    assert again.usage.cached_tokens > 0
    compared = sum(
        laboratory.require_greedy(name, prompt, ours, lead=0.1)
        for prompt, ours in zip([*texts, texts[0]], [*together, again.tokens], strict=True)
    )
    assert compared >= COUNT


def test_quantized_weights_match_their_dequantized_values(
    laboratory: Laboratory, name: str
) -> None:
    """As for the others: no further from the exact answer than transformers with rounding is."""
    model = laboratory.quantized_reference(name, "Q8_0")
    reference = answer(model, tokens())
    with Mimicry(rounds=True):
        rounded = answer(model, tokens())
    with laboratory.engine(name, "Q8_0", cache="f16") as engine:
        ours = engine.logits(tokens())[:, : reference.shape[1]]
    limit = min(1.3 * relative_error(rounded, reference), QUANTIZED)
    laboratory.compare(name, ours, reference, "Q8_0, cache F16", limit)
    assert np.abs(reference - laboratory.answer(name)).max() > 1e-2  # the weights were rounded


@pytest.mark.slow
def test_llama_cpp_gives_the_same_greedy_tokens(laboratory: Laboratory, name: str) -> None:
    if not FAMILIES[name].is_in_llama_cpp:
        with pytest.raises(AssertionError, match="unsupported model architecture"):
            greedy(laboratory.file(name, "F32"), tokens(SHORT), 1)
        return
    clear, usual = 0, f"{name}_usual" if f"{name}_usual" in FOR_LLAMA_CPP else name
    for seed in range(3):  # some lead llama.cpp to an end of text at once
        prompt = tokens(SHORT, seed)
        found = greedy(laboratory.file(usual, "F32"), prompt, 8)
        clear += laboratory.require_greedy(usual, prompt, found, lead=0.02)
    assert clear >= 3
