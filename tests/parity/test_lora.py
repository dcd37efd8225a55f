"""Requests with different adapters in one batch give the answers of the merged models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.adapters import ALPHA, Factors, draw_factors, merge, write_adapter
from support.checkpoints import load_reference
from support.laboratory import Laboratory, answer, tokens

from tampu import Engine
from tampu.convert.adapters import plan_adapter
from tampu.engine.completion import Stream
from tampu.ml.gguf import read_gguf

pytestmark = [pytest.mark.parity, pytest.mark.slow]

RANKS = {"one": 4, "two": 8, "three": 2}
CHOICES: list[dict[str, float]] = [
    {}, {"one": 1.0}, {"two": 1.0}, {"two": 0.5}, {"three": -1.0}, {"one": 0.75, "three": 1.0},
    {"one": 0.0},
]  # fmt: skip
PROMPT = tokens(40)
ANSWER = 12


class Merged:
    """The models of transformers with the chosen adapters merged in."""

    def __init__(self, laboratory: Laboratory, name: str, folder: Path) -> None:
        self.laboratory, self.name = laboratory, name
        model = laboratory.reference(name)
        self.drawn: dict[str, Factors] = {
            each: draw_factors(model, rank, seed=rank) for each, rank in RANKS.items()
        }
        self.files = {each: self._write(folder, each) for each in RANKS}

    def logits(self, chosen: dict[str, float], text: list[int]) -> npt.NDArray[np.float32]:
        model = load_reference(self.name, self.laboratory.checkpoint(self.name))
        for each, scale in chosen.items():
            merge(model, self.drawn[each], scale * ALPHA / RANKS[each])
        return answer(model, text)

    def _write(self, folder: Path, each: str) -> Path:
        path = folder / f"{each}.gguf"
        checkpoint = write_adapter(folder / each, self.drawn[each])
        plan_adapter(checkpoint, read_gguf(self.laboratory.file(self.name, "F32"))).write(path)
        return path


def load(laboratory: Laboratory, merged: Merged, *, slots: int) -> Engine:
    engine = laboratory.engine(merged.name, slots=slots)
    for each, path in merged.files.items():
        engine.adapters.load(each, path)
    return engine


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    result: npt.NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return result


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen35", "gemma3_text", "gemma4_small"])
def test_each_request_of_a_batch_gets_its_own_adapters(
    laboratory: Laboratory, tmp_path: Path, name: str
) -> None:
    merged = Merged(laboratory, name, tmp_path)
    plain = merged.logits({}, PROMPT)
    with load(laboratory, merged, slots=len(CHOICES)) as engine:
        given = {"max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
        streams: list[Stream] = [engine.stream(PROMPT, lora=chosen, **given) for chosen in CHOICES]
        answers = [
            [token for event in each for token in getattr(event, "tokens", ())] for each in streams
        ]
        compared = 0
        for chosen, found in zip(CHOICES, answers, strict=True):
            assert len(found) == ANSWER
            logits = merged.logits(chosen, [*PROMPT, *found])
            rows = logits[len(PROMPT) - 1 : -1]
            best = np.sort(rows, axis=-1)[:, -2:]
            clear = best[:, 1] - best[:, 0] > 0.05
            assert (rows.argmax(-1) == np.array(found))[clear].all(), chosen
            compared += int(clear.sum())
            if any(chosen.values()):
                change = np.linalg.norm(logits[: len(PROMPT)] - plain) / np.linalg.norm(plain)
                assert change > 0.05  # the adapter does something
        assert compared > len(CHOICES) * ANSWER / 2


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_the_log_probabilities_are_those_of_the_merged_model(
    laboratory: Laboratory, tmp_path: Path, name: str
) -> None:
    merged = Merged(laboratory, name, tmp_path)
    with load(laboratory, merged, slots=2) as engine:
        for chosen in CHOICES:
            stream = engine.stream(PROMPT, lora=chosen, max_tokens=1, prompt_logprobs=True)
            done = [*stream][-1]
            found = [each.logprob for each in done.prompt_logprobs]
            expected = log_softmax(merged.logits(chosen, PROMPT))
            np.testing.assert_allclose(
                found, expected[np.arange(len(PROMPT) - 1), PROMPT[1:]], atol=2e-2
            )
