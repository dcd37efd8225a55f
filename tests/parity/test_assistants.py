"""An assistant guesses as transformers' does, and changes nothing but the steps."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.checkpoints import RECIPES, load_reference
from support.checkpoints.making import make
from support.checkpoints.recipe import Recipe
from support.drafting import OPTIONS, Cheap, Free, answers
from support.laboratory import Laboratory, tabulate_gelu, tokens

from tampu.convert import convert
from tampu.engine.completion import Completion
from tampu.engine.engine import Engine
from tampu.errors import UnsupportedModelError
from tampu.ml.backend import Computed
from tampu.ml.gguf import read_gguf
from tampu.runner.assistant_drafter import AssistantDrafter
from tampu.runner.drafters import GuessKind
from tampu.runner.graph_cache import GraphCounts
from tampu.runner.sequence import Sequence
from tampu.runner.speculation import Speculation
from tampu.runner.step_inputs import StepInputs
from tampu.runner.step_times import StepTimes
from tampu.store.draft import check_draft
from tampu.store.model_info import read_model_info

pytestmark = pytest.mark.parity


@pytest.fixture(autouse=True)
def layers_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models store what assistants read, and assistants read it.

    Transformers 5.23 refuses its own assistants, none of whose layers stores what they share, and
    stores nothing of models whose own layers share nothing.
    """

    def modes(config: transformers.Gemma4TextConfig) -> list[str | None]:
        kinds, own = config.layer_types, config.num_hidden_layers - config.num_kv_shared_layers
        stored = {kind: index for index, kind in enumerate(kinds[:own])}
        return [
            "reuse" if index >= own else "store" if stored[kind] == index else None
            for index, kind in enumerate(kinds)
        ]

    monkeypatch.setattr(transformers.Gemma4TextConfig, "kv_sharing_modes", property(modes))


NAMES = ["gemma4_small", pytest.param("gemma4", marks=pytest.mark.slow)]
WRONG = 300


def assistant_recipe(name: str, **changes: Any) -> Recipe:
    """Return what an assistant of a model is made of: two layers of half the width."""
    text: dict[str, Any] = dict(RECIPES[name].values) | {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "use_double_wide_mlp": False,
        "final_logit_softcapping": None,
    }
    values = {
        "text_config": transformers.Gemma4TextConfig(**text),
        "backbone_hidden_size": RECIPES[name].values["hidden_size"],
    }
    architecture = "Gemma4AssistantForCausalLM"
    return Recipe(
        architecture, transformers.Gemma4AssistantConfig, values | changes, "gemma", seed=5
    )


def make_assistant(
    laboratory: Laboratory,
    name: str,
    folder: Path,
    change: Callable[[dict[str, torch.Tensor]], object] = lambda _: None,
    **changes: Any,
) -> tuple[Path, Any]:
    """Write an assistant's file; return its path and transformers' model."""
    checkpoint = folder / "assistant"
    checkpoint.mkdir(parents=True)
    recipe = assistant_recipe(name, **changes)
    make(recipe, checkpoint)
    for file in laboratory.checkpoint(name).glob("tokenizer*"):
        shutil.copy(file, checkpoint)
    model = recipe.model_class.from_pretrained(checkpoint, attn_implementation="eager")
    tensors = load_file(checkpoint / "model.safetensors")
    change(tensors)
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    convert(checkpoint, folder / "assistant.gguf", "F32")
    return folder / "assistant.gguf", tabulate_gelu(model.float().eval())


def drafter_of(engine: Engine) -> tuple[Speculation, AssistantDrafter]:
    source = engine.model.scheduler.drafts.source
    assert isinstance(source, Speculation)
    assert isinstance(source.model, AssistantDrafter)
    return source, source.model


@dataclass
class Corrected:
    """Lets an assistant guess, and then replaces its guesses by known tokens; a fifth is wrong.

    Attributes:
        drafter: the assistant's.
        texts: each prompt with its answer.
        guesses: what it was asked, by the text so far.
    """

    kind: ClassVar[GuessKind] = AssistantDrafter.kind
    takes_cells: ClassVar[bool] = AssistantDrafter.takes_cells
    drafter: AssistantDrafter
    texts: list[list[int]]
    guesses: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    source: random.Random = field(default_factory=lambda: random.Random(5))

    def __post_init__(self) -> None:
        self.times: StepTimes = Free()
        self.cost = 0.01
        self.room, self.ended = self.drafter.room, self.drafter.ended

    def guess(self, wanted: Mapping[Sequence, int]) -> Mapping[Sequence, list[int]]:
        found = self.drafter.guess(wanted)
        assert {each: len(guess) for each, guess in found.items()} == wanted
        return {sequence: self._corrected(sequence, guess) for sequence, guess in found.items()}

    def _corrected(self, sequence: Sequence, guess: list[int]) -> list[int]:
        known = sequence.tokens[: sequence.length].tolist()
        self.guesses[tuple(known)] = guess
        texts = [each for each in self.texts if each[: len(known)] == known]
        right = texts[0][len(known) : len(known) + len(guess)] if texts else []
        right += [WRONG] * (len(guess) - len(right))
        return [each if self.source.random() < 0.8 else WRONG for each in right]


def begin(engine: Engine, texts: list[list[int]]) -> Corrected:
    """Let the assistant guess in each step."""
    source, drafter = drafter_of(engine)
    source.times = Cheap()
    source.model = corrected = Corrected(drafter, texts)
    return corrected


def expected(
    target: Any, assistant: Any, text: list[int], count: int
) -> tuple[list[int], list[tuple[float, float]]]:
    """Return the guesses of transformers' assistant; and the best logit and the sum of each.

    As `SinglePositionMultiTokenCandidateGenerator` computes them.
    """
    token, positions = torch.tensor([text[-1:]]), torch.tensor([[len(text) - 1]])
    found: list[int] = []
    numbers: list[tuple[float, float]] = []
    with torch.no_grad():
        output = target(
            input_ids=torch.tensor([text[:-1]]),
            output_hidden_states=True,
            return_shared_kv_states=True,
        )
        hidden, shared = output.hidden_states[-1][:, -1:], dict(output.shared_kv_states)
        first = 1 - target.config.sliding_window  # transformers takes one or two tokens more
        keys, values = shared["sliding_attention"]
        shared["sliding_attention"] = (keys[:, :, first:], values[:, :, first:])
        for _ in range(count):
            embedded = target.get_input_embeddings()(token)
            given = assistant(
                inputs_embeds=torch.cat([embedded, hidden], -1),
                position_ids=positions,
                attention_mask=torch.ones(1, len(text), dtype=torch.long),
                shared_kv_states=shared,
                use_cache=False,
            )
            token, hidden = given.logits.argmax(-1), given.last_hidden_state
            found.append(int(token))
            numbers.append((float(given.logits.max()), float(given.logits.sum())))
    return found, numbers


@dataclass
class Recorded:
    """Computes the steps of an assistant for one sequence; keeps their results."""

    graphs: Any
    results: list[np.ndarray[Any, Any]] = field(default_factory=list)
    counts: GraphCounts = field(default_factory=GraphCounts)

    def submit(self, step: StepInputs) -> Future[Computed]:
        result: Future[Computed] = self.graphs.submit(step)
        self.results.append(np.array(result.result().outputs[0]))
        return result


@pytest.mark.parametrize("length", [10, 70])
@pytest.mark.parametrize("name", NAMES)
def test_the_guesses_are_those_of_transformers(
    laboratory: Laboratory, tmp_path: Path, name: str, length: int
) -> None:
    """With less than a window and with more, after wrong drafts too."""
    path, assistant = make_assistant(laboratory, name, tmp_path)
    prompt, checkpoint = tokens(length), laboratory.checkpoint(name)
    target = tabulate_gelu(load_reference(name, checkpoint))
    with laboratory.engine(name) as engine:
        [answer] = answers(engine, [prompt], temperature=0.0)
    with laboratory.engine(name, draft=str(path)) as engine:
        _, drafter = drafter_of(engine)
        recorded = drafter._graphs = Recorded(drafter._graphs)
        corrected = begin(engine, [[*prompt, *answer.tokens]])
        assert answers(engine, [prompt], temperature=0.0)[0].tokens == answer.tokens
    assert len(corrected.guesses) > 5
    assert max(map(len, corrected.guesses.values())) > 1
    for (known, guess), result in zip(corrected.guesses.items(), recorded.results, strict=True):
        wanted, numbers = expected(target, assistant, [*known], len(guess))
        assert guess == wanted
        best, total = np.array(numbers).T
        assert result[:, 1] == pytest.approx(best, rel=1e-3)
        assert result[:, 2] == pytest.approx(total, abs=0.2)  # of 512 logits


@pytest.mark.parametrize("name", NAMES)
def test_greedy_answers_in_one_batch(laboratory: Laboratory, tmp_path: Path, name: str) -> None:
    """With a cancelled request, a shared prefix, and two choices of one prompt."""
    path, _ = make_assistant(laboratory, name, tmp_path)
    prompts = [tokens(length, seed) for seed, length in enumerate((17, 90, 48))]
    prompts += [prompts[1][:60], prompts[2]]
    with laboratory.engine(name, slots=6) as engine:
        wanted = answers(engine, prompts, temperature=0.0)
    texts = [[*prompt, *each.tokens] for prompt, each in zip(prompts, wanted, strict=True)]
    with laboratory.engine(name, slots=6, draft=str(path)) as engine:
        corrected = begin(engine, texts)
        with closing(engine.stream(tokens(30, 9), temperature=0.0, ignore_eos=True)) as cancelled:
            next(cancelled)
            found = answers(engine, prompts, temperature=0.0)
        engine.runner.call(engine.model.scheduler.check)
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    accepted = sum(each.usage.accepted_tokens for each in found)
    assert 0 < accepted < sum(each.usage.drafted_tokens for each in found)
    assert len(corrected.guesses) > 10


@pytest.mark.parametrize("options", OPTIONS.values(), ids=[*OPTIONS])
def test_sampled_answers_with_a_seed(
    laboratory: Laboratory, tmp_path: Path, options: dict[str, object]
) -> None:
    """By a seed with which no token is on the verge of another: GELU is taken from a table."""
    name, prompt = "gemma4_small", tokens(60, 3)
    path, _ = make_assistant(laboratory, name, tmp_path)
    with laboratory.engine(name) as engine:
        [wanted] = answers(engine, [prompt], seed=8, **options)
    with laboratory.engine(name, draft=str(path)) as engine:
        begin(engine, [[*prompt, *wanted.tokens]])
        [found] = answers(engine, [prompt], seed=8, **options)
    assert found.tokens == wanted.tokens
    assert found.usage.accepted_tokens > 0


def test_an_answer_that_shifts_its_context(laboratory: Laboratory, tmp_path: Path) -> None:
    name, prompt = "gemma4_small", tokens(230, 3)
    path, _ = make_assistant(laboratory, name, tmp_path)
    found: list[Completion] = []
    for draft in (None, str(path)):
        with laboratory.engine(name, draft=draft) as engine:
            if draft:
                begin(engine, [[*prompt, *found[0].tokens]])
            found += answers(engine, [prompt], temperature=0.0)
    assert found[0].tokens == found[1].tokens
    assert found[1].usage.dropped_tokens > 0
    assert found[1].usage.accepted_tokens > 0


def is_narrow(tensors: dict[str, torch.Tensor]) -> None:
    tensors["pre_projection.weight"] = tensors["pre_projection.weight"][:, :-1].clone()


def lacks_a_matrix(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.self_attn.q_proj.weight"]


@pytest.mark.parametrize(
    ("change", "changes", "told"),
    [
        (is_narrow, {}, r"assistant\.nextn\.pre_projection\.weight: its shape is"),
        (lambda _: None, {"backbone_hidden_size": 96}, "hidden states of 96 features"),
    ],
)
def test_an_assistant_that_does_not_fit_is_named_and_the_model_runs_without(
    laboratory: Laboratory,
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], None],
    changes: dict[str, Any],
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, prompt = "gemma4_small", tokens(30)
    path, _ = make_assistant(laboratory, name, tmp_path, change, **changes)
    with laboratory.engine(name) as engine:
        wanted = engine.generate(prompt, max_tokens=8, temperature=0.0)
    with laboratory.engine(name, draft=str(path)) as engine:
        assert engine.generate(prompt, max_tokens=8, temperature=0.0).tokens == wanted.tokens
    [warning] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "is not used" in warning
    assert re.search(told, warning)


@pytest.mark.parametrize(
    ("name", "told"),
    [("gemma3_text", "guesses the tokens of 'gemma4', and the model is of 'gemma3'"),
     ("gemma4_small", "hidden states of 96 features, not 128")],
)  # fmt: skip
def test_an_assistant_of_another_model_is_named_before_it_is_loaded(
    laboratory: Laboratory, tmp_path: Path, name: str, told: str
) -> None:
    width = 96 if name == "gemma4_small" else 128
    path, _ = make_assistant(laboratory, "gemma4_small", tmp_path, backbone_hidden_size=width)
    draft = read_gguf(path)
    assert read_model_info(path).capabilities == ("draft",)
    with pytest.raises(UnsupportedModelError, match=told):
        check_draft(draft, read_gguf(laboratory.file(name)))


def test_an_assistant_alone_is_refused_with_what_it_is_for(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    path, _ = make_assistant(laboratory, "gemma4_small", tmp_path)
    with pytest.raises(UnsupportedModelError, match="guesses the tokens of a model of 'gemma4'"):
        Engine.load(path)


def test_an_assistant_of_another_architecture_is_named(
    laboratory: Laboratory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = make_assistant(laboratory, "gemma4_small", tmp_path)
    with laboratory.engine("gemma3_text", draft=str(path)):
        pass
    assert "is not used" in caplog.text
