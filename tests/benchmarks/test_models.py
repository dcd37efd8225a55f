"""The models to measure with: their vocabulary, and how their types are mixed."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from benchmarks import gemma, hearing
from benchmarks.models import DECODER, plan, rope_factors
from benchmarks.random_models import QUANT_MIXES, has_more_bits
from benchmarks.vocabulary import Vocabulary, byte_alphabet, make_vocabulary
from tampu.ml.types import GGMLType


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


def test_the_vocabulary_is_as_large_as_llama_3s(vocabulary: Vocabulary) -> None:
    assert len(vocabulary.tokens) == len(vocabulary.types) == DECODER.vocabulary
    assert len(set(vocabulary.tokens)) == DECODER.vocabulary
    assert len(vocabulary.merges) == len(set(vocabulary.merges)) == 280_147
    assert vocabulary.tokens[vocabulary.begin_of_text] == "<|begin_of_text|>"
    assert vocabulary.tokens[vocabulary.end_of_turn] == "<|eot_id|>"


def test_each_merge_makes_a_token_of_two_tokens(vocabulary: Vocabulary) -> None:
    known = set(vocabulary.tokens)
    made = set()
    for merge in vocabulary.merges:
        first, second = merge.split(" ")
        assert first in known
        assert second in known
        made.add(first + second)
    assert made == set(vocabulary.tokens[256 : vocabulary.begin_of_text])


def test_the_alphabet_has_a_character_for_each_byte() -> None:
    assert len(set(byte_alphabet())) == 256
    assert "Ġ" in byte_alphabet()


def test_q4_k_m_is_mixed_as_llama_cpp_mixes_it() -> None:
    kinds = Counter(tensor.kind for tensor in plan(QUANT_MIXES["Q4_K_M"]))
    assert kinds == {GGMLType.F32: 34, GGMLType.Q4_K: 96, GGMLType.Q6_K: 17}
    assert [layer for layer in range(16) if has_more_bits(layer, 16)] == [
        0,
        1,
        4,
        7,
        10,
        13,
        14,
        15,
    ]


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_the_other_mixtures_have_one_type_of_matrix(kind: str) -> None:
    assert {tensor.kind for tensor in plan(QUANT_MIXES[kind])} == {GGMLType.F32, GGMLType[kind]}


def test_fast_frequencies_stay_and_slow_ones_are_stretched() -> None:
    factors = rope_factors()
    assert factors.shape == (32,)
    assert factors[0] == 1
    assert factors[-1] == 32
    assert np.all(np.diff(factors) >= 0)


def test_the_model_that_sees_has_the_sizes_of_gemma_3_4b_and_siglip_400m() -> None:
    text, tower = list(gemma.plan_text(QUANT_MIXES["Q4_K_M"])), list(gemma.plan_tower())
    assert round(sum(math.prod(tensor.shape) for tensor in text) / 1e6) == 3880
    assert round(sum(math.prod(tensor.shape) for tensor in tower) / 1e6) == 420
    pieces, types = gemma.make_pieces()
    assert len(set(pieces)) == len(types) == gemma.DECODER.vocabulary


@pytest.mark.parametrize(
    ("name", "sizes"), [(hearing.QWEN, (596, 188)), (hearing.VOXTRAL, (4014, 662))]
)
def test_models_that_hear_have_the_sizes_of_qwen3_asr_600m_and_voxtral_mini(
    name: str, sizes: tuple[int, int]
) -> None:
    shape = hearing.SHAPES[name]
    planned = shape.plan_text(QUANT_MIXES["Q4_K_M"]), shape.plan_tower(shape.tower)
    millions = [sum(math.prod(tensor.shape) for tensor in each) / 1e6 for each in planned]
    assert tuple(map(round, millions)) == sizes
