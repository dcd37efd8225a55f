"""The sampler for filling in is that of its definition, written out plainly, and of llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support import llama_samplers
from support import sampling as reference
from support.tiny_model import EOS, VOCABULARY, Tiny, letter_token, write_tiny

from tampu.ml.gguf import read_gguf
from tampu.sampling import Sampler, SamplingOptions
from tampu.sampling.chain import Ranked
from tampu.sampling.infill import MAX_COMPARED, Infill, infill
from tampu.tokenizer import load_tokenizer

Floats = npt.NDArray[np.float32]
NO_MASK = None


@dataclass(frozen=True)
class Texts:
    """What the sampler knows of a vocabulary."""

    texts: tuple[bytes, ...]
    eos: frozenset[int]

    def token_bytes(self, token: int) -> bytes:
        return self.texts[token]


def left(
    probabilities: list[float], is_end: list[bool], texts: list[bytes]
) -> tuple[list[int], bool]:
    """The definition, one token after the other: what is left, and whether it is clear."""
    size, p = len(probabilities), list(probabilities)
    ends = sum(p[i] for i in range(size) if is_end[i])
    is_clear = abs(3 * ends * size - (sum(p) - ends)) > 1e-4
    if 3 * ends * size > sum(p) - ends:
        return [i for i in range(size) if is_end[i]], is_clear
    for i in range(size):
        for j in range(size):
            if i != j and p[i] > 0 and p[j] > 0 and texts[i] and texts[j].startswith(texts[i]):
                is_clear = is_clear and (p[i] == p[j] or abs(p[i] - p[j]) > 1e-6)
                into, out = (j, i) if p[j] > p[i] else (i, j)
                p[into], p[out] = p[into] + p[out], 0.0
    is_clear = is_clear and all(abs(each - 0.2) > 1e-4 for each in p)
    kept = [i for i in range(size) if is_end[i] or p[i] >= 0.2]
    count = sum(not is_end[i] for i in kept)
    if not count:
        return [], is_clear
    total = sum(p[i] for i in kept)
    is_clear = is_clear and all(abs(p[i] / total - 1 / (count + 1)) > 1e-4 for i in kept)
    kept = [i for i in kept if is_end[i] or p[i] / total >= 1 / (count + 1)]
    return [i for i in kept if p[i] > 0], is_clear


WORDS = st.text("ab", max_size=3).map(str.encode)
ENDS = st.tuples(st.integers(-40, 8), WORDS, st.just(True))
NO_ENDS = st.tuples(st.integers(-8, 8), WORDS, st.just(False))
TOKENS = st.lists(st.one_of(NO_ENDS, NO_ENDS, NO_ENDS, ENDS), min_size=1, max_size=8)


@given(TOKENS)
def test_what_is_left_is_what_the_definition_says(given_tokens: list[Any]) -> None:
    ordered = sorted(given_tokens, key=lambda token: -token[0])
    logits = np.array([token[0] for token in ordered], np.float32) / 4
    weights = np.exp(logits - logits[0])
    is_end = [token[2] for token in ordered]
    texts = [token[1] for token in ordered]
    probabilities = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    expected, is_clear = left(probabilities.tolist(), is_end, texts)
    found = infill(weights, np.array(is_end), texts.__getitem__)
    if is_clear:
        assert found.tolist() == expected


def test_the_end_is_kept_alone_if_it_is_likely_enough() -> None:
    weights = np.array([1.0, 0.9, 0.3], np.float32)
    is_end = np.array([False, False, True])
    assert infill(weights, is_end, [b"a", b"b", b""].__getitem__).tolist() == [2]
    weights[2] = 0.05  # 3 · 0.05 · 3 is less than 1.9: the end stays possible
    assert infill(weights, is_end, [b"a", b"b", b""].__getitem__).tolist() == [0, 1, 2]


def test_probabilities_of_a_common_beginning_are_added_up() -> None:
    weights = np.array([1.0, 0.9, 0.9, 0.9, 0.9, 0.9], np.float32)
    no_end = np.zeros(6, np.bool_)
    apart = [b"a", b"b", b"c", b"d", b"e", b"f"]
    together = [b"a", b"ab", b"ac", b"d", b"e", b"f"]
    assert infill(weights, no_end, apart.__getitem__).tolist() == []
    assert infill(weights, no_end, together.__getitem__).tolist() == [0]


def test_of_a_whole_vocabulary_only_the_best_texts_are_compared() -> None:
    weights = np.full(50_000, 1e-6, np.float32)
    weights[:3] = 1.0, 0.5, 0.4
    asked: list[int] = []

    def text_of(place: int) -> bytes:
        asked.append(place)
        return b"x%d" % place

    assert infill(weights, np.zeros(50_000, np.bool_), text_of).tolist() == [0, 1]
    assert asked == [*range(MAX_COMPARED)]


# In a sampler

LETTERS = Texts((b"", b"a", b"ab", *(b"%c" % letter for letter in b"bcdefghijk")), frozenset({0}))


def sampler(texts: Texts = LETTERS, **options: Any) -> Sampler:
    given_options = SamplingOptions(
        **{"seed": 1, "top_p": 1.0, "temperature": 1.0, **options, "infill": True}
    )
    one = Infill(texts, given_options.logit_bias)
    return Sampler(given_options, len(texts.texts), infill=one)


def row(*values: float) -> Floats:
    return np.log(np.array(values, np.float32))


PATHS: dict[str, dict[str, Any]] = {
    "all logits": {"top_k": 0},
    "the best": {"top_k": 6},
    "top-p": {"top_k": 0, "top_p": 0.999},
    "min-p": {"top_k": 0, "min_p": 0.001},
    "bounds": {"top_k": 0, "top_n_sigma": 9.0},
    "biases": {"top_k": 6, "logit_bias": {12: 0.1}},
}


@pytest.mark.parametrize("options", PATHS.values(), ids=PATHS)
def test_it_is_the_last_filter_on_every_path(options: dict[str, Any]) -> None:
    logits = row(1e-9, 0.3, 0.3, 0.22, 0.1, 0.08, *[1e-9] * 7)
    one = sampler(**options)
    tokens, shares = one.probabilities(logits, NO_MASK)
    assert tokens[0] == 1  # a with ab has 0.6, and b less than a third of 0.82
    assert {*tokens[1:].tolist()} <= {0}
    assert shares[0] == pytest.approx(1)
    assert {one.sample(logits) for _ in range(50)} == {1}


def test_tokens_that_are_left_keep_their_own_probabilities() -> None:
    logits = row(1e-9, 0.3, 0.15, 0.45, 0.05, 0.05, *[1e-9] * 7)
    one = sampler(top_k=5)
    tokens, shares = one.probabilities(logits, NO_MASK)
    assert tokens.tolist() == [3, 1]
    np.testing.assert_allclose(shares, [0.6, 0.4], rtol=1e-5)
    drawn = reference.frequencies([one.sample(logits) for _ in range(5_000)], 13)
    assert reference.close(drawn, np.array([0, 0.4, 0, 0.6, *[0] * 9]), 5_000)


@pytest.mark.parametrize("options", PATHS.values(), ids=PATHS)
def test_the_text_ends_where_nothing_is_likely(options: dict[str, Any]) -> None:
    logits = row(1e-9, 0.08, 0.04, *[0.088] * 10)  # a with ab has no more than 0.2 of the best
    one = sampler(**options)
    assert one.sample(logits) == 0
    assert one.probabilities(logits, NO_MASK)[0].tolist() == [0]


def mask_of(*tokens: int) -> npt.NDArray[np.uint32]:
    return np.array([sum(1 << token for token in tokens)], np.uint32)


def test_a_grammar_decides_what_may_come() -> None:
    logits = row(1e-9, 0.1, 0.09, *[0.081] * 10)
    letters = range(1, 13)
    for top_k in (0, 12):
        one = sampler(top_k=top_k)
        assert one.sample(logits, mask_of(0, *letters)) == 0
        assert one.sample(logits, mask_of(*letters)) == 1  # the best: the text may not end
        assert one.probabilities(logits, mask_of(*letters))[0].tolist() == [1]


def test_an_end_that_is_forbidden_never_comes() -> None:
    texts = Texts((b"", b"", *(b"%c" % letter for letter in b"abcdefghij")), frozenset({0, 1}))
    logits = row(1e-9, 1e-9, 0.11, *[0.1] * 9)
    assert sampler(texts).sample(logits) == 0
    assert sampler(texts, logit_bias={0: -np.inf}).sample(logits) == 1
    assert sampler(texts, logit_bias={0: -np.inf, 1: -np.inf}).sample(logits) == 2


def test_the_best_alone_are_enough() -> None:
    logits = np.random.default_rng(1).normal(0, 2, (200, 13)).astype(np.float32)
    one, two = sampler(top_k=4), sampler(top_k=4)
    assert one.candidates == 4
    for values in logits:
        best = np.argsort(-values, kind="stable")[:4]
        assert one.choose(best, values[best], float(values.sum())) == two.sample(values)


def test_at_temperature_zero_the_best_token_comes() -> None:
    assert sampler(temperature=0.0).sample(row(0.3, 0.31, *[0.03] * 11)) == 1


# llama.cpp's


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Texts]]:
    keys = {"attention.value_length": 16, "rope.dimension_count": 16}  # llama.cpp wants them
    path = write_tiny(tmp_path_factory.mktemp("infill") / "tiny.gguf", Tiny(keys=keys))
    tokenizer = load_tokenizer(read_gguf(path).metadata)
    texts = Texts(tuple(tokenizer.all_token_bytes()), frozenset(tokenizer.eos))
    with llama_samplers.vocabulary(path) as theirs:
        yield theirs, texts


# Each text here begins with that of another, or another begins with it.
CHOSEN = [EOS, *map(letter_token, ["t", "th", "te", "h", "he", "a", "at", "ar", "o", "x", "y"])]


@given(st.lists(st.integers(-60, 8), min_size=len(CHOSEN), max_size=len(CHOSEN)))
def test_it_is_that_of_llama_cpp(vocabulary: Any, values: list[int]) -> None:
    model, texts = vocabulary
    logits = np.full(VOCABULARY, -1e4, np.float32)
    logits[CHOSEN] = np.array(values, np.float32) / 4
    order = reference.descending(logits)
    weights = reference.softmax(logits[order])
    is_end = [token in texts.eos for token in order.tolist()]
    assume(left(weights.tolist(), is_end, [texts.texts[token] for token in order.tolist()])[1])

    ranked = Ranked((weights / weights[0]).astype(np.float32))
    end = Infill(texts, {}).apply(ranked, order, NO_MASK)
    kept = ranked.ranks()[ranked.weights > 0]
    ours = {end} if end is not None else {*order[kept].tolist()}
    with llama_samplers.infill(model) as theirs:
        found = theirs.apply(logits)
    assert ours == {*(found > -1e3).nonzero()[0].tolist()}
