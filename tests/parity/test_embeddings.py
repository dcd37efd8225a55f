"""Embeddings of texts equal those of transformers, pooled as the checkpoint says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.laboratory import Laboratory, relative_error, tokens
from tokenizers import Tokenizer

from tampu.convert import convert
from tampu.engine.engine import Engine
from tampu.errors import ContextLengthError, RequestError

pytestmark = pytest.mark.parity

POOLINGS = {
    "pooling_mode_mean_tokens": lambda hidden: hidden.mean(0),
    "pooling_mode_cls_token": lambda hidden: hidden[0],
    "pooling_mode_lasttoken": lambda hidden: hidden[-1],
}
LENGTHS = [1, 2, 17, 100, 128]


def texts() -> list[list[int]]:
    return [tokens(length, seed) for seed, length in enumerate(LENGTHS)]


def expected(laboratory: Laboratory, text: list[int], pooling: str) -> np.ndarray:
    with torch.no_grad():
        hidden = laboratory.reference("bert")(torch.tensor([text])).last_hidden_state[0].numpy()
    pooled = POOLINGS[pooling](hidden)
    return pooled / np.linalg.norm(pooled)


@pytest.mark.parametrize("pooling", list(POOLINGS))
def test_embeddings_equal_those_of_transformers(
    laboratory: Laboratory, arithmetic: str, tmp_path: Path, pooling: str
) -> None:
    folder = shutil.copytree(laboratory.checkpoint("bert"), tmp_path / "checkpoint")
    (folder / "1_Pooling").mkdir()
    settings = {name: name == pooling for name in POOLINGS}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    convert(folder, tmp_path / "bert.gguf", "F32")
    with Engine.load(tmp_path / "bert.gguf", context=128, threads=1, cache_type="f32") as engine:
        ours = engine.embed(texts())
        again = engine.embed(texts()[::-1])[::-1]
    reference = np.stack([expected(laboratory, text, pooling) for text in texts()])
    limit = 1e-5 if arithmetic == "f32" else 5e-3
    laboratory.compare("bert", ours, reference, "F32, embeddings", limit)
    # Their neighbours in a batch are others, and in F16 so is the rounding of other batch sizes.
    np.testing.assert_allclose(again, ours, atol=1e-6 if arithmetic == "f32" else limit)


def test_an_encoders_context_is_no_longer_than_its_positions(laboratory: Laboratory) -> None:
    path = laboratory.file("bert", "F32")
    with Engine.load(path, threads=1) as engine:
        assert engine.context == engine.info.context < 4096


def test_memory_for_a_text_is_that_of_the_context(laboratory: Laboratory) -> None:
    """A model may know texts that are far longer than the context that it is loaded with."""
    taken = []
    for context in (64, 512):
        path = laboratory.file("modern_bert")
        with Engine.load(path, context=context, threads=1, batch=64) as engine:
            taken.append(engine.runner.graphs.backend.graph_bytes)
            text = tokens(context)
            assert engine.embed([text]).shape == (1, 128)
            assert engine.runner.graphs.backend.graph_bytes == taken[-1]
    assert taken[0] < taken[1] / 2


def test_a_text_gets_begin_and_end_tokens(laboratory: Laboratory) -> None:
    original = Tokenizer.from_file(str(laboratory.checkpoint("bert") / "tokenizer.json"))
    with laboratory.engine("bert") as engine:
        for text in ("Hello, World!", "self.parse(args) returns 12", ""):
            assert engine.tokenizer.encode(text) == original.encode(text).ids


def test_an_embedding_model_refuses_to_generate(laboratory: Laboratory) -> None:
    with laboratory.engine("bert") as engine, pytest.raises(RequestError, match="embedding model"):
        engine.generate("Hello")


def test_a_text_longer_than_the_positions_is_refused(laboratory: Laboratory) -> None:
    with (
        laboratory.engine("bert") as engine,
        pytest.raises(ContextLengthError, match="129"),
    ):
        engine.embed([tokens(129)])


def test_late_chunks_are_means_of_one_texts_states(laboratory: Laboratory) -> None:
    first, second, third = tokens(5, 1), tokens(9, 2), tokens(1, 3)
    with laboratory.engine("bert") as engine:
        begin, end = engine.tokenizer.around
        ours = engine.embed([first, second, third], late_chunking=True)
        whole = [*begin, *first, *second, *third, *end]
        alone = engine.embed([first], late_chunking=True)
        usual = engine.embed([[*begin, *first, *end]])
    with torch.no_grad():
        states = laboratory.reference("bert")(torch.tensor([whole])).last_hidden_state[0].numpy()
    parts = [states[:6], states[6:15], states[15:]]
    reference = np.stack([part.mean(0) / np.linalg.norm(part.mean(0)) for part in parts])
    laboratory.compare("bert", ours, reference, "F32, late chunks", 1e-5)
    np.testing.assert_allclose(alone, usual, rtol=1e-5)


@pytest.mark.parametrize(
    ("texts", "message"),
    [([[9] * 100, [9] * 30], "too large"), ([[9], []], r"texts\[1\] is empty")],
)
def test_late_chunks_that_do_not_fit_are_refused(
    laboratory: Laboratory, texts: list[list[int]], message: str
) -> None:
    with (
        laboratory.engine("bert") as engine,
        pytest.raises((ContextLengthError, RequestError), match=message),
    ):
        engine.embed(texts, late_chunking=True)


def test_late_chunks_need_mean_pooling(laboratory: Laboratory) -> None:
    path = laboratory.file("bert", "F32")
    with (
        Engine.load(path, threads=1, pooling="cls") as engine,
        pytest.raises(RequestError, match="needs mean pooling; the model's is cls"),
    ):
        engine.embed([[9], [10]], late_chunking=True)


def test_prompts_are_put_before_texts(laboratory: Laboratory, tmp_path: Path) -> None:
    folder = shutil.copytree(laboratory.checkpoint("bert"), tmp_path / "checkpoint")
    prompts = {"prompts": {"q": "query: ", "d": ""}, "default_prompt_name": "q"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    convert(folder, tmp_path / "bert.gguf", "F32")
    with Engine.load(tmp_path / "bert.gguf", threads=1, cache_type="f32") as engine:
        plain = engine.embed(["query: Hello", "Hello"], prompt="")
        for prompt, expected in ((None, plain[0]), ("q", plain[0]), ("d", plain[1])):
            assert (engine.embed("Hello", prompt=prompt)[0] == expected).all()
        with pytest.raises(RequestError, match="prompt 'x' is not known; the model has: 'q', 'd'"):
            engine.embed("Hello", prompt="x")
        with pytest.raises(RequestError, match="before texts, not before tokens"):
            engine.embed([[9]], prompt="q")
        with pytest.raises(RequestError, match='set prompt to ""'):
            engine.embed(["a", "b"], late_chunking=True)


def test_hybrid_embeddings_are_those_of_bge_m3(laboratory: Laboratory, tmp_path: Path) -> None:
    """Weights of words are above 0 and the largest of each; vectors leave out the first token."""
    folder = shutil.copytree(laboratory.checkpoint("xlm_roberta"), tmp_path / "checkpoint")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    generator = torch.Generator().manual_seed(1)
    heads = {name: torch.nn.Linear(128, width) for name, width in (("sparse", 1), ("colbert", 128))}
    for name, head in heads.items():
        for value in head.parameters():
            value.data = torch.randn(value.shape, generator=generator) / 128**0.5
        save_file(dict(head.state_dict()), folder / f"{name}_linear.safetensors")
    convert(folder, tmp_path / "m3.gguf", "F32")
    texts = ["The class parses the arguments, the class.", "x"]
    with Engine.load(tmp_path / "m3.gguf", threads=1, cache_type="f32") as engine:
        found = engine.embed_hybrid(texts)
        dense = engine.embed(texts)
        ids = [engine.tokenize(text) for text in texts]
    for text, ours, vector in zip(ids, found, dense, strict=True):
        with torch.no_grad():
            states = laboratory.reference("xlm_roberta")(torch.tensor([text])).last_hidden_state[0]
            weights = heads["sparse"](states)[:, 0].relu().tolist()
            vectors = torch.nn.functional.normalize(heads["colbert"](states[1:]), dim=-1).numpy()
        expected: dict[int, float] = {}
        for token, weight in zip(text, weights, strict=True):
            if weight > 0 and token > 3:  # <s>, <pad>, </s> and <unk>
                expected[token] = max(weight, expected.get(token, 0.0))
        assert ours.sparse == pytest.approx(expected, rel=1e-4)
        assert relative_error(ours.multi_vector, vectors) < 1e-5
        np.testing.assert_allclose(ours.dense, vector, rtol=1e-6)
    first, second = found
    assert first.sparse
    assert first.sparse_score(first) == pytest.approx(sum(w * w for w in first.sparse.values()))
    assert first.multi_vector_score(first) == pytest.approx(1.0)
    assert first.multi_vector_score(second) < 1


def test_a_model_without_heads_for_tokens_has_no_hybrid_embeddings(laboratory: Laboratory) -> None:
    message = "they need a file made of a checkpoint with sparse_linear.safetensors"
    with laboratory.engine("bert") as engine, pytest.raises(RequestError, match=message):
        engine.embed_hybrid("x")


def test_pickled_heads_are_named_and_not_read(
    laboratory: Laboratory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(laboratory.checkpoint("bert"), tmp_path / "checkpoint")
    (folder / "sparse_linear.pt").write_bytes(b"pickle")
    convert(folder, tmp_path / "bert.gguf", "F32")
    assert "sparse_linear.pt is a pickle, which is not read" in caplog.text
