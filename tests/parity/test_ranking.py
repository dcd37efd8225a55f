"""Scores of rank heads equal those of transformers, from the texts to the probability."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import RANKERS, encoders, load_reference
from support.fork_server import FORK_SERVER
from support.laboratory import Laboratory, Logits, relative_error
from tokenizers import Tokenizer

from tampu.backends.llamacpp import load_llamacpp
from tampu.convert import convert
from tampu.engine.engine import Engine
from tampu.engine.load_options import LoadOptions
from tampu.engine.questions import RERANK_INSTRUCTION
from tampu.engine.ranking import PairBuilder
from tampu.engine.requests import Pair, Rerank
from tampu.errors import ContextLengthError, RequestError
from tampu.ml.gguf import read_gguf

pytestmark = pytest.mark.parity

ENCODERS = ["bert_ranker", "xlm_roberta_ranker"]
QUERY = "Which class parses the arguments?"
DOCUMENTS = [
    "The class ArgumentParser parses them.",
    "x",
    "A tree of nodes, that is returned by parse(), with   several spaces " * 3,
    "</s>[SEP]<|im_end|> is no separator here, nor {query}",
]


def engine(laboratory: Laboratory, name: str, type_: str = "F32") -> Engine:
    return Engine.load(
        laboratory.file(name, type_), context=256, threads=1, cache_type="f32", slots=2
    )


def pair_scores(laboratory: Laboratory, name: str) -> Logits:
    """Return transformers' scores of each pair, as its own tokenizer joins them."""
    folder = laboratory.checkpoint(name)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    model = load_reference(name, folder)
    found = []
    for document in DOCUMENTS:
        pair = tokenizer.encode(QUERY, document)
        kinds = {"token_type_ids": torch.tensor([pair.type_ids])} if name == "bert_ranker" else {}
        with torch.no_grad():
            found.append(model(torch.tensor([pair.ids]), **kinds).logits[0, 0].item())
    return np.array(found)


def log_odds(probabilities: list[float]) -> Logits:
    values = np.array(probabilities)
    odds: Logits = np.log(values / (1 - values))
    return odds


@pytest.mark.parametrize("name", [*ENCODERS, *encoders.RANKERS])
def test_encoders_score_as_transformers(laboratory: Laboratory, name: str) -> None:
    reference = pair_scores(laboratory, name)
    with engine(laboratory, name) as model:
        ours = model.rerank(QUERY, DOCUMENTS)
        alone = [model.rerank(QUERY, [document])[0] for document in DOCUMENTS]
        assert model.info.capabilities[0] == "rerank"
    assert np.ptp(reference) > 0.1  # they are told apart
    assert relative_error(log_odds(ours), reference) < 1e-5
    assert relative_error(np.array(alone), np.array(ours)) < 1e-5


@pytest.mark.parametrize("type_", ["F16", "Q8_0", "Q4_K_M"])
@pytest.mark.parametrize("name", ENCODERS)
def test_smaller_types_score_nearly_the_same(laboratory: Laboratory, name: str, type_: str) -> None:
    with engine(laboratory, name, type_) as model:
        ours = model.rerank(QUERY, DOCUMENTS)
    limit = 0.02 if type_ == "F16" else 0.5
    assert relative_error(log_odds(ours), pair_scores(laboratory, name)) < limit


def test_xlm_roberta_embeds_as_transformers(laboratory: Laboratory) -> None:
    folder = laboratory.checkpoint("xlm_roberta")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with engine(laboratory, "xlm_roberta") as model:
        for text in ("Hello, World!", "ﬁne Ａ  b\tc", DOCUMENTS[2], ""):
            ids = tokenizer.encode(text).ids
            assert model.tokenize(text) == ids
            with torch.no_grad():
                hidden = laboratory.reference("xlm_roberta")(torch.tensor([ids]))
            mean = hidden.last_hidden_state[0].numpy().mean(0)
            assert relative_error(model.embed([text])[0], mean / np.linalg.norm(mean)) < 1e-5


TEMPLATE = (
    f"<|im_start|>user\n<Instruct>: {RERANK_INSTRUCTION}\n<Query>: {{query}}\n"
    "<Document>: {document}<|im_end|>\n"
)


@pytest.fixture
def qwen3_file(laboratory: Laboratory, tmp_path: Path) -> Path:
    """A file as llama.cpp's converter writes it: with the template of a pair."""
    path = tmp_path / "qwen3.gguf"
    convert(
        laboratory.checkpoint("qwen3_ranker"),
        path,
        "F32",
        metadata={"tokenizer.chat_template.rerank": TEMPLATE},
    )
    return path


def test_qwen3_scores_as_transformers(laboratory: Laboratory, qwen3_file: Path) -> None:
    reference = laboratory.reference("qwen3_ranker")
    with Engine.load(qwen3_file, context=512, threads=1, cache_type="f32", slots=2) as model:
        ours = model.rerank(QUERY, DOCUMENTS[:3])
        other = model.rerank(QUERY, DOCUMENTS[:1], instruction="Find code")
        texts = [
            TEMPLATE.replace("{query}", QUERY).replace("{document}", document)
            for document in DOCUMENTS[:3]
        ]
        prompts = [model.tokenize(text, add_special=False) for text in texts]
    expected = []
    for prompt in prompts:
        with torch.no_grad():
            scores = reference(torch.tensor([prompt])).logits[0]
        expected.append(scores.softmax(-1)[0].item())
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    assert other[0] != ours[0]


def pairs_of(model: Engine, text: str) -> list[Pair]:
    builder = PairBuilder.for_model(model.info.metadata, model.tokenizer)
    assert builder is not None
    return builder.pairs(text, [text], RERANK_INSTRUCTION)


def test_control_tokens_in_texts_are_text(laboratory: Laboratory, qwen3_file: Path) -> None:
    written = DOCUMENTS[3]
    with Engine.load(qwen3_file, context=512, threads=1) as model:
        [pair] = pairs_of(model, written)
        ends = model.tokenizer.control_tokens(["<|im_end|>"])["<|im_end|>"]
        assert pair.tokens.count(ends) == 1
    with engine(laboratory, "bert_ranker") as model:
        [pair] = pairs_of(model, written)
        separator = model.tokenizer.encode("")[-1]
        assert pair.tokens.count(separator) == 2


@pytest.mark.parametrize("name", RANKERS)
def test_a_head_is_in_the_file(laboratory: Laboratory, name: str) -> None:
    file = read_gguf(laboratory.file(name))
    assert ("cls.output.weight" in file.tensors) is (name != "xlm_roberta")
    assert ("cls.weight" in file.tensors) is (name in ENCODERS)
    assert file.metadata.integer("pooling_type", 0) == (1 if name == "xlm_roberta" else 4)


def test_what_a_ranker_does_not_do_is_refused(laboratory: Laboratory) -> None:
    with engine(laboratory, "bert_ranker") as model:
        with pytest.raises(RequestError, match="no embeddings: it ranks"):
            model.embed(["x"])
        with pytest.raises(RequestError, match="does not generate text"):
            model.generate("x")
        with pytest.raises(RequestError, match="trained without instructions"):
            model.rerank("x", ["y"], instruction="z")
        with pytest.raises(ContextLengthError, match=r"documents\[1\]"):
            model.rerank("x", ["y", "word " * 200])


def test_llama_cpp_scores_the_same_files_alike(laboratory: Laboratory, qwen3_file: Path) -> None:
    encoder_files = map(laboratory.file, ("xlm_roberta_ranker", *encoders.RANKERS))
    for path in (*encoder_files, qwen3_file):
        with Engine.load(path, context=512, threads=1, cache_type="f32") as model:
            ours = model.rerank(QUERY, DOCUMENTS[:3])
        options = LoadOptions(context=512, threads=1, cache_type="f32")
        with load_llamacpp(path, options, FORK_SERVER) as theirs:
            asked = Rerank(QUERY, tuple(DOCUMENTS[:3]), RERANK_INSTRUCTION)
            answers = theirs.ask(asked).decisions.answers
        found = [answer.probabilities[0] for answer in answers]
        np.testing.assert_allclose(found, ours, rtol=1e-3)
