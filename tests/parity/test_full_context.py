"""Decoders that rotate nothing, at the end of their context: positions with embeddings, ALiBi."""

from __future__ import annotations

import pytest
from support.laboratory import Laboratory, answer, relative_error, tokens

from tampu.engine.engine import Engine
from tampu.engine.load_options import LoadOptions
from tampu.engine.model_loader import load_model

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("may_exceed", [False, True])
def test_a_context_ends_where_positions_have_no_embedding(
    laboratory: Laboratory, may_exceed: bool
) -> None:
    options = LoadOptions(context=2048, threads=1)
    loaded = load_model(laboratory.file("gpt2"), options, may_exceed=may_exceed)
    found = loaded.options.context
    loaded.close()
    assert found == 256


@pytest.mark.parametrize("name", ["gpt2", "bloom"])
def test_an_answer_goes_on_in_a_full_context(laboratory: Laboratory, name: str) -> None:
    """GPT-2 computes the remaining tokens again, at their new positions; BLOOM's have none."""
    with Engine.load(laboratory.file(name), context=64, threads=1, cache_type="f32") as engine:
        found = engine.generate(tokens(20), temperature=0.0, max_tokens=100, ignore_eos=True)
    assert len(found.tokens) == 100
    assert found.usage.dropped_tokens > 0


@pytest.mark.slow
def test_baichuan_with_40_layers_has_alibi(laboratory: Laboratory) -> None:
    name = "baichuan_13b_usual"
    with laboratory.engine(name) as engine:
        ours = engine.logits(tokens())
    assert relative_error(ours, answer(laboratory.reference(name), tokens())) < 1e-5
