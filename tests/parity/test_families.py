"""Each architecture that generates equals transformers: logits, answers together and after reuse.

A new one needs a recipe in `support.checkpoints`, and no line here. `test_logits` and
`test_generation` compare typical ones in depth, and all others in slow tests.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from support.checkpoints import DECODERS, FAMILIES, FOR_LLAMA_CPP
from support.laboratory import Laboratory, Logits, answer, exact, relative_error, tokens
from support.llama_cpp import greedy
from support.mimicry import Choices, Mimicry
from support.seeing import Seer

from tampu.engine.engine import Engine
from tampu.ml import Backend

pytestmark = pytest.mark.parity

NAMES = [*DECODERS, *FAMILIES]
MORE = pytest.mark.parametrize("name", FAMILIES)  # of others: test_logits, test_llama_cpp

SHORT = 24
COUNT = 12
QUANTIZED = 5e-2  # what quantized activations change at most


@pytest.mark.seed("S24", "S25", "S26", "S35")
@pytest.mark.seed("S84", "S85", "S86", "S87", "S88", "S89", "S91", "S92", "S93", "S96")
@pytest.mark.parametrize("name", NAMES)
def test_logits_at_once_in_chunks_and_token_by_token(laboratory: Laboratory, name: str) -> None:
    reference = laboratory.answer(name)
    with laboratory.engine(name) as engine:
        for chunk, what in ((None, "at once"), (7, "in chunks of 7"), (1, "token by token")):
            ours = engine.logits(tokens(), chunk=chunk)
            laboratory.compare(name, ours, reference, f"F32, {what}", exact(name))


@pytest.mark.slow
@MORE
def test_a_wrong_weight_would_be_noticed(laboratory: Laboratory, name: str) -> None:
    """Each weight that is zero moves transformers' logits by much more than we allow."""
    model = laboratory.reference(name)
    expected = answer(model, tokens(SHORT))
    unnoticed = []
    for weight, parameter in model.named_parameters():
        if ".vision" in weight:
            continue
        held = parameter.detach().clone()
        with torch.no_grad():
            parameter.zero_()
            changed = answer(model, tokens(SHORT))
            parameter.copy_(held)
        if not relative_error(changed, expected) > 5 * exact(name):
            unnoticed.append(weight)
    assert not unnoticed


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.slow
@MORE
def test_quantized_weights_match_their_dequantized_values(
    laboratory: Laboratory, backend: Backend, name: str
) -> None:
    """At most twice as far from the exact answer as transformers with rounded activations.

    Rounding sends some tokens to other experts: the reference follows our choice.
    """
    ours, choices = quantized_logits(laboratory, backend, name)
    model = laboratory.quantized_reference(name, "Q8_0")
    with Mimicry(choices, FAMILIES[name].experts):
        reference = answer(model, tokens())
    with Mimicry(choices, FAMILIES[name].experts, rounds=True):
        rounded = answer(model, tokens())
    limit = min(2 * relative_error(rounded, reference), QUANTIZED)
    laboratory.compare(name, ours, reference, "Q8_0, cache F16", limit)
    assert np.abs(reference - laboratory.answer(name)).max() > 1e-2  # the weights were rounded


def quantized_logits(
    laboratory: Laboratory, backend: Backend, name: str
) -> tuple[Logits, list[Choices]]:
    """Return the logits of a Q8_0 file, and the experts that were chosen."""
    if not FAMILIES[name].experts:
        with laboratory.engine(name, "Q8_0", cache="f16") as engine:
            return engine.logits(tokens()), []
    seer = Seer(backend, laboratory.file(name, "Q8_0"))
    try:
        return seer.logits_and_choices([tokens()])
    finally:
        seer.close()


@pytest.mark.slow
@MORE
def test_llama_cpp_gives_the_same_greedy_tokens(laboratory: Laboratory, name: str) -> None:
    refusal, usual = FAMILIES[name].refusal, f"{name}_usual"
    usual = usual if usual in FOR_LLAMA_CPP else name
    with pytest.raises(AssertionError, match=refusal) if refusal else nullcontext():
        clear = 0
        for seed in range(3):  # some lead llama.cpp to an end of text at once
            prompt = tokens(SHORT, seed)
            found = greedy(laboratory.file(usual, "F32"), prompt, 8)
            clear += laboratory.require_greedy(usual, prompt, found, lead=0.02)
        assert clear >= 3
