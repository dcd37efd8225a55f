"""A file's layer of multi-token prediction guesses tokens, and changes nothing but the steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.drafting import OPTIONS, answers, ask_always
from support.laboratory import Laboratory, relative_error, tokens
from support.mtp_files import with_mtp_layer

from tampu.engine.engine import Engine
from tampu.ml.backend import Computed
from tampu.runner.graph_cache import GraphCounts
from tampu.runner.mtp_drafter import MTPDrafter
from tampu.runner.speculation import Speculation
from tampu.runner.step_inputs import StepInputs

pytestmark = pytest.mark.parity

NAMES = [
    "qwen35",
    *(
        pytest.param(each, marks=pytest.mark.slow)
        for each in ("qwen35moe", "qwen3next", "glm4moe", "deepseek2_v3", "deepseek2_glm")
    ),
]


def load(path: Path, slots: int = 1, **options: Any) -> Engine:
    return Engine.load(
        path, context=256, threads=1, slots=slots, cache_type="f32", flash_attention=False,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_greedy_answers_in_one_batch(laboratory: Laboratory, tmp_path: Path, name: str) -> None:
    path, _ = with_mtp_layer(laboratory, name, tmp_path)
    prompts = [tokens(length, seed) for seed, length in enumerate((17, 90, 48))]
    with laboratory.engine(name, slots=4) as engine:
        wanted = answers(engine, prompts, temperature=0.0)
    texts = [[*prompt, *each.tokens] for prompt, each in zip(prompts, wanted, strict=True)]
    with load(path, slots=4) as engine:
        corrected = ask_always(engine, texts)
        with closing(engine.stream(tokens(30, 9), temperature=0.0, ignore_eos=True)) as cancelled:
            next(cancelled)
            found = answers(engine, prompts, temperature=0.0)
        engine.runner.call(engine.model.scheduler.check)
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    accepted = sum(each.usage.accepted_tokens for each in found)
    assert 0 < accepted < sum(each.usage.drafted_tokens for each in found)
    assert corrected.asked > 10


@pytest.mark.parametrize("options", OPTIONS.values(), ids=[*OPTIONS])
def test_sampled_answers_with_a_seed(
    laboratory: Laboratory, tmp_path: Path, options: dict[str, object]
) -> None:
    path, _ = with_mtp_layer(laboratory, "qwen35", tmp_path)
    prompt = tokens(60, 3)
    with laboratory.engine("qwen35") as engine:
        [wanted] = answers(engine, [prompt], seed=7, **options)
    with load(path) as engine:
        ask_always(engine, [[*prompt, *wanted.tokens]])
        [found] = answers(engine, [prompt], seed=7, **options)
    assert found.tokens == wanted.tokens
    assert found.usage.accepted_tokens > 0


Row = tuple[int, int, npt.NDArray[np.float32]]
"""A position, the token there, and the logits after it."""


@dataclass
class Recorded:
    """Computes the steps of a layer for one sequence.

    Attributes:
        graphs: they compute them.
        rows: what they were.
    """

    graphs: Any
    rows: list[Row] = field(default_factory=list)
    counts: GraphCounts = field(default_factory=GraphCounts)

    def submit(self, step: StepInputs) -> Future[Computed]:
        result: Future[Computed] = self.graphs.submit(step)
        (place,), (token,) = step.positions.reshape(-1)[:1].tolist(), step.tokens.tolist()
        self.rows.append((place, token, np.array(result.result().outputs[0][0])))
        return result


def expected_logits(model: Any, made: Any, text: list[int], guesses: list[int]) -> list[Any]:
    """Return the logits of transformers' layer after a text, and after each of its guesses.

    The first token has no hidden state before it: zeros.
    """
    every = torch.tensor([text])
    with torch.no_grad():
        hidden = model.model(input_ids=every).last_hidden_state[:, :-1]
        hidden = torch.cat([torch.zeros_like(hidden[:, :1]), hidden], 1)
        found = []
        for guess in [*guesses, None]:
            count = every.shape[1]
            places = torch.arange(count)[None]
            seen = torch.full((count, count), -torch.inf).triu(1)[None, None]
            embeddings = model.get_input_embeddings()(every)
            rotary = model.model.rotary_emb(embeddings, places)
            states = made(embeddings, hidden, rotary, seen, places, None)
            found.append(model.lm_head(states)[0, -1].numpy())
            if guess is not None:
                every = torch.cat([every, torch.tensor([[guess]])], 1)
                hidden = torch.cat([hidden, states[:, -1:]], 1)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_logits_of_guesses(laboratory: Laboratory, tmp_path: Path, name: str) -> None:
    """After a prompt in parts, the first of them cached, and after wrong drafts."""
    path, made = with_mtp_layer(laboratory, name, tmp_path)
    prompt, recorded_starts = tokens(70), list[int]()
    with load(path, batch=32) as engine:
        engine.generate(prompt[:64], max_tokens=1)
        source = engine.model.scheduler.drafts.source
        assert isinstance(source, Speculation)
        assert isinstance(source.model, MTPDrafter)
        recorded = source.model._graphs = Recorded(source.model._graphs)
        corrected = ask_always(engine, [])
        corrected.begin = lambda: recorded_starts.append(len(recorded.rows))
        answer = engine.generate(prompt, max_tokens=12, temperature=0.0, ignore_eos=True)
    assert answer.usage.cached_tokens > 30
    assert corrected.asked > 5
    text, model = [*prompt, *answer.tokens], laboratory.reference(name)
    starts = [*recorded_starts, len(recorded.rows)]
    runs = [recorded.rows[start:end] for start, end in pairwise(starts)]
    assert max(map(len, runs)) > 1
    for run in runs:
        at, token, _ = run[0]
        assert text[at] == token
        wanted = expected_logits(model, made, text[: at + 1], [each for _, each, _ in run[1:]])
        for (_, _, logits), expected in zip(run, wanted, strict=True):
            assert relative_error(logits, expected) < 1e-4


_BLOCK = "mtp.layers.0.self_attn.k_proj.weight"


def lacks_keys(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[_BLOCK]


def has_other_keys(tensors: dict[str, torch.Tensor]) -> None:
    tensors[_BLOCK] = tensors[_BLOCK][:-4].clone()


def is_narrow(tensors: dict[str, torch.Tensor]) -> None:
    tensors["mtp.fc.weight"] = tensors["mtp.fc.weight"][:, :-1].clone()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lacks_keys, "blk.4.attn_k.weight"),
        (has_other_keys, "blk.4.attn_k.weight"),
        (is_narrow, "tensor blk.4.nextn.eh_proj.weight: its shape is "),
    ],
)
def test_a_layer_that_does_not_fit_is_named_and_the_model_runs_without(
    laboratory: Laboratory,
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], None],
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, _ = with_mtp_layer(laboratory, "qwen35", tmp_path, change)
    prompt = tokens(30)
    with laboratory.engine("qwen35") as engine:
        wanted = engine.generate(prompt, max_tokens=8, temperature=0.0)
    with load(path) as engine:
        found = engine.generate(prompt, max_tokens=8, temperature=0.0)
        source = engine.model.scheduler.drafts.source
        assert isinstance(source, Speculation)
        assert source.model is None
    assert found.tokens == wanted.tokens
    [warning] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warning.startswith("model.gguf: multi-token prediction is not used: ")
    assert told in warning


@pytest.mark.parametrize("options", [{"spec_type": "none"}, {"spec_type": "ngram-simple"}])
def test_it_can_be_turned_off(
    laboratory: Laboratory, tmp_path: Path, options: dict[str, Any]
) -> None:
    path, _ = with_mtp_layer(laboratory, "qwen35", tmp_path)
    with load(path, **options) as engine, load(path, spec_type="draft-mtp") as other:
        assert engine.model.graphs.model.mtp is None
        assert other.model.graphs.model.mtp is not None
        assert engine.model.cache_bytes < other.model.cache_bytes
