"""Ranking by a rank head: which files have one, and what its scores mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import SMALL
from support.tiny_model import Tiny, tiny_weights, write_tiny

from tampu.engine.engine import Engine
from tampu.engine.questions import RERANK_INSTRUCTION
from tampu.engine.ranking import PairBuilder, rank
from tampu.engine.requests import Pair
from tampu.errors import ContextLengthError, ModelFileError, RequestError
from tampu.ml.metadata import Metadata


def ranker(path: Path, labels: int) -> Path:
    head = np.random.default_rng(0).normal(size=(labels, Tiny().embedding)).astype(np.float32)
    weights = tiny_weights(Tiny()) | {"cls.output.weight": head}
    return write_tiny(path, weights=weights, pooling=4)


CONTEXT = 12


class Words:
    """Letters are tokens; 1 begins and 2 ends a text."""

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        assert add_special is (text == "")
        assert parse_special is (text == "")
        return [1, *map(ord, text), 2] if add_special else [*map(ord, text)]

    def encode_pieces(
        self, pieces: Sequence[tuple[str, bool]], *, continues: bool = False
    ) -> list[int]:
        assert not continues
        return [ord(letter) + 1000 * parses for text, parses in pieces for letter in text]


TOKENIZER: Any = Words()


def ranked(pairs: Sequence[Pair]) -> list[list[float]]:
    return [[pair.document.count("!") * 800.0 - 800.0] for pair in pairs]


def builder(keys: Mapping[str, bool | str] | None = None) -> PairBuilder:
    named = {"general.architecture": "bert", "bert.pooling_type": 4, **(keys or {})}
    found = PairBuilder.for_model(Metadata(named), TOKENIZER)
    assert found is not None
    return found


def tokens(built: PairBuilder) -> tuple[list[int], int]:
    [pair] = built.pairs("a", ["b"], RERANK_INSTRUCTION)
    return pair.tokens, pair.second


def test_texts_are_joined_as_each_kind_of_model_was_trained() -> None:
    wordpiece = builder({"tokenizer.ggml.model": "bert"})
    assert tokens(wordpiece) == ([1, ord("a"), 2, ord("b"), 2], 3)
    unigram = builder({"tokenizer.ggml.model": "t5"})
    assert tokens(unigram) == ([1, ord("a"), 2, 2, ord("b"), 2], 4)
    single = builder({"tokenizer.ggml.model": "t5", "tokenizer.ggml.add_sep_token": False})
    assert tokens(single) == ([1, ord("a"), 2, ord("b"), 2], 3)


def test_a_template_is_filled_and_control_tokens_in_texts_are_not_read() -> None:
    template = f"<{RERANK_INSTRUCTION}>{{query}}:{{document}}."
    built = builder({"tokenizer.chat_template.rerank": template})
    [pair] = built.pairs("{document}", ["{query}"], "X")
    text = "".join(chr(token % 1000) for token in pair.tokens)
    assert text == "<X>{document}:{query}."
    trusted = [chr(token - 1000) for token in pair.tokens if token >= 1000]
    assert "".join(trusted) == "<X>:."


def test_other_models_have_no_builder() -> None:
    plain = Metadata({"general.architecture": "bert", "bert.pooling_type": 1})
    assert PairBuilder.for_model(plain, TOKENIZER) is None


def test_a_score_is_a_probability_however_large_it_is() -> None:
    found = rank(builder(), ranked, CONTEXT, "a", ["b", "b!", "b!!"], RERANK_INSTRUCTION)
    assert [answer.probabilities[0] for answer in found.answers] == [0.0, 0.5, 1.0]
    assert found.input_tokens == 6 + 7 + 8


def test_a_document_that_is_too_long_is_named() -> None:
    with pytest.raises(ContextLengthError, match=r"documents\[1\] with the query is too long"):
        rank(builder(), ranked, CONTEXT, "a", ["b", "b" * 20], RERANK_INSTRUCTION)


def test_a_decoder_with_one_label_ranks(tmp_path: Path) -> None:
    with Engine.load(ranker(tmp_path / "m.gguf", 1), **SMALL) as engine:
        scores = engine.rerank("a", ["b", "c", "b"])
        assert scores[0] == pytest.approx(scores[2], rel=1e-4)
        assert scores[0] != pytest.approx(scores[1], rel=1e-2)
        with pytest.raises(RequestError, match="does not generate text: it ranks"):
            engine.generate("a")


def test_labels_that_do_not_say_what_a_match_is_are_refused(tmp_path: Path) -> None:
    with (
        Engine.load(ranker(tmp_path / "m.gguf", 3), **SMALL) as engine,
        pytest.raises(RequestError, match=r"its 3 labels \(no names\) do not have 'yes'"),
    ):
        engine.rerank("a", ["b"])


def test_a_file_that_ranks_without_a_head_is_refused(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", pooling=4)
    with pytest.raises(ModelFileError, match=r"neither cls\.weight nor cls\.output\.weight"):
        Engine.load(path, **SMALL)
