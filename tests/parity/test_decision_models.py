"""Laya and Julia answer as PyTorch computes them and as llama.cpp does, from a checkpoint on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from openai import OpenAI
from safetensors.torch import save_file
from support.checkpoints.weights import draw_weights
from support.laboratory import relative_error
from support.llama_cpp import answers
from support.serving import start_server
from support.tiny_tokenizers import SIZE, write_byte_level_of_encoders
from tokenizers import Tokenizer
from torch import nn

from tampu.convert import convert
from tampu.engine.engine import Engine
from tampu.engine.questions import Choice, Level, Option, Predicate, Question, Score
from tampu.errors import ContextLengthError, ModelFileError, RequestError, UnsupportedModelError
from tampu.store.create import CreateSpec, create
from tampu.store.library import Library
from tampu.store.modelfile import parse_modelfile
from tampu.store.names import ModelName

pytestmark = pytest.mark.parity

STATE = "The parser reads every argument, then it returns a tree of nodes. [MASK] [SEP] <|x|>"
QUESTIONS: list[Question] = [
    Choice("Which part fails?", (Option("parser"), Option("tree", "the nodes"), Option("args"))),
    Score("How severe is it?", (Level("low"), Level("some"), Level("high"), Level("very high"))),
    Predicate("It returns a tree."),
    Predicate("It fails.", "an error is named", "nothing fails"),
]
SYSTEMONE = {
    "a": {
        "type": "choice",
        "instructions": "Which part fails?",
        "criteria": {"parser": None, "tree": "the nodes", "args": None},
    },
    "b": {
        "type": "score",
        "instructions": "How severe is it?",
        "criteria": ["low", "some", "high", "very high"],
    },
    "c": {"type": "noul", "instructions": "It returns a tree."},
    "d": {
        "type": "noul",
        "instructions": "It fails.",
        "criteria": {"true": "an error is named", "false": "nothing fails"},
    },
}
PROMPTS: dict[str, list[tuple[str, list[str]]]] = {
    "laya": [
        ("choice question: Which part fails?", ["parser", "tree: the nodes", "args"]),
        (
            "score question: How severe is it?",
            ["level 0: low", "level 1: some", "level 2: high", "level 3: very high"],
        ),
        (
            "noul question: It returns a tree.",
            ["false: no, the statement does not hold", "true: yes, the statement holds"],
        ),
        ("noul question: It fails.", ["false: nothing fails", "true: an error is named"]),
    ],
    "julia": [
        ("choice question: Which part fails?", ["parser", "the nodes", "args"]),
        ("score question: How severe is it?", ["low", "some", "high", "very high"]),
        ("noul question: It returns a tree.", ["false", "true"]),
        ("noul question: It fails.", ["nothing fails", "an error is named"]),
    ],
}
TYPES = [0, 1, 2, 2]
SETTINGS: dict[str, Any] = {
    "head_layers": 2,
    "head_max_len": 192,
    "max_len": 512,
    "act_costs": {"ask": 0.1},
    "temperature": [0.9, 1.2, 0.8],
    "temperature_by_options": {"choice:3-5": 1.7, "noul:2": 0.6},
}
TEMPERATURES = [1.7, 1.2, 0.6, 0.6]


class DecisionModel(nn.Module):
    """As published: an encoder, layers of a head, and a scorer of the marked options."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.ModernBertConfig(
            vocab_size=SIZE, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
            num_attention_heads=2, max_position_embeddings=512, local_attention=16,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        )  # fmt: skip
        config._attn_implementation = "eager"
        self.encoder = transformers.ModernBertModel(config)
        layer = nn.TransformerEncoderLayer(128, 2, 512, batch_first=True, norm_first=True)
        self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.type_emb = nn.Embedding(3, 128)
        self.scorer = nn.Sequential(
            nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1)
        )
        self.act_head = nn.Sequential(nn.Linear(132, 256), nn.GELU(), nn.Linear(256, 2))
        self.register_buffer("temperature", torch.ones(3))

    def scores(self, tokens: Sequence[int], markers: Sequence[int], kind: int) -> torch.Tensor:
        """Return the score of each marked option, (options,)."""
        hidden = self.encoder(torch.tensor([tokens])).last_hidden_state
        hidden = self.head(hidden + self.type_emb(torch.tensor([kind]))[:, None])
        scores: torch.Tensor = self.scorer(hidden[0, list(markers)])[:, 0]
        return scores


@pytest.fixture(scope="module")
def reference() -> DecisionModel:
    model = DecisionModel().float().eval()
    draw_weights(model.encoder, 7)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.startswith("encoder."):
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(noise * 0.12 + (name.endswith("weight") and weight.dim() == 1))
    return model


def write_checkpoint(model: DecisionModel, folder: Path, kind: str, **changes: Any) -> Path:
    (folder / "encoder").mkdir(parents=True)
    (folder / "tokenizer").mkdir()
    model.encoder.config.save_pretrained(folder / "encoder")
    write_byte_level_of_encoders(folder / "tokenizer")
    settings = SETTINGS | changes
    if kind == "julia":
        settings["architecture"] = "JuliaDecisionModel"
    name = "julia_config.json" if kind == "julia" else "rl_agent_config.json"
    (folder / name).write_text(json.dumps(settings))
    save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors"
    )
    return folder


@pytest.fixture(scope="module", params=["laya", "julia"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def file(reference: DecisionModel, kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(kind)
    path = folder / "model.gguf"
    convert(write_checkpoint(reference, folder / "checkpoint", kind), path, "F32")
    return path


def expected(model: DecisionModel, folder: Path, kind: str) -> list[list[float]]:
    """Return the probabilities of the questions' options in the order of the prompt."""
    tokenizer = Tokenizer.from_file(str(folder / "checkpoint" / "tokenizer" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # what a state says is text

    def plain(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    found = []
    prompts = zip(PROMPTS[kind], TYPES, TEMPERATURES, strict=True)
    for (question, options), number, temperature in prompts:
        tokens, markers = [1, *plain(question), 2], []
        for option in options:
            markers.append(len(tokens))
            tokens += [4, *plain(" " + option)]
        tokens += [2, *plain(STATE), 2]
        with torch.no_grad():
            scores = model.scores(tokens, markers, number) / temperature
        found.append(scores.softmax(0).tolist())
    return found


def test_they_answer_as_pytorch(reference: DecisionModel, file: Path, kind: str) -> None:
    wanted = expected(reference, file.parent, kind)
    wanted[2], wanted[3] = wanted[2][::-1], wanted[3][::-1]  # yes comes first in an answer
    with Engine.load(file, context=256, threads=1, cache_type="f32", slots=2) as engine:
        assert engine.info.capabilities == ("decision",)
        ours = engine.decide(STATE, QUESTIONS).answers
        alone = [engine.decide(STATE, [question]).answers[0] for question in QUESTIONS]
    assert max(max(want) - min(want) for want in wanted) > 0.1  # they are told apart
    for index, want in enumerate(wanted):
        assert relative_error(np.log(ours[index].probabilities), np.log(want)) < 1e-5
        assert relative_error(np.log(alone[index].probabilities), np.log(want)) < 1e-5


def test_they_answer_as_llama_cpp(file: Path) -> None:
    state = "The parser reads every argument, then it returns a tree of nodes."
    theirs = answers(file, state, SYSTEMONE)
    with Engine.load(file, context=256, threads=1, slots=2) as engine:
        ours = engine.decide(state, QUESTIONS).answers
    for name, found in zip("ab", ours, strict=False):
        wanted = [*theirs[name]["probabilities"].values()]
        np.testing.assert_allclose(found.probabilities, wanted, atol=5e-3)
    assert abs(theirs["c"]["noul"] - ours[2].probabilities[0]) < 5e-3
    assert abs(theirs["d"]["noul"] - ours[3].probabilities[0]) < 5e-3


def test_long_questions_and_many_options_are_cut_as_in_llama_cpp(file: Path) -> None:
    many = {f"option {index}": "which is described at length " * 12 for index in range(9)}
    asked = {
        "a": {"type": "choice", "instructions": "Which one? " * 60, "criteria": many},
        "b": {"type": "noul", "instructions": "It is " * 150},
    }
    theirs = answers(file, "A tree.", asked)
    questions: list[Question] = [
        Choice("Which one? " * 60, tuple(Option(*each) for each in many.items())),
        Predicate("It is " * 150),
    ]
    with Engine.load(file, context=256, threads=1, slots=2) as engine:
        ours = engine.decide("A tree.", questions).answers
    wanted = [*theirs["a"]["probabilities"].values()]
    np.testing.assert_allclose(ours[0].probabilities, wanted, atol=5e-3)
    assert abs(theirs["b"]["noul"] - ours[1].probabilities[0]) < 5e-3


def test_quantized_files_answer_nearly_the_same(
    reference: DecisionModel, file: Path, kind: str
) -> None:
    path = file.with_name("small.gguf")
    convert(file.parent / "checkpoint", path, "Q8_0")
    wanted = expected(reference, file.parent, kind)
    with Engine.load(path, context=256, threads=1, slots=2) as engine:
        ours = engine.decide(STATE, QUESTIONS[:2]).answers
    for found, want in zip(ours, wanted, strict=False):
        np.testing.assert_allclose(found.probabilities, want, atol=0.03)


def test_what_they_cannot_do_is_refused_by_name(file: Path) -> None:
    with Engine.load(file, context=128, threads=1, slots=2) as engine:
        with pytest.raises(RequestError, match=r"does not generate text: it answers questions"):
            engine.generate("Hello", max_tokens=1)
        with pytest.raises(RequestError, match=r"has no embeddings: it answers questions"):
            engine.embed(["Hello"])
        with pytest.raises(ContextLengthError, match=r"questions\[0\] with the input is too long"):
            engine.decide("a b c d e " * 40, QUESTIONS[:1])
        image = {"role": "user", "content": "What?", "images": [b"x"]}
        with pytest.raises(RequestError, match="it reads no images"):
            engine.decide([image], QUESTIONS[:1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decision.block_count": 6}, r"block_count.*6 of 6 layers"),
        ({"decision.max_head_tokens": 0}, r"max_head_tokens.*0 is not positive"),
        ({"decision.temperature.noul": 0.0}, r"temperature\.noul.*0\.0 is not positive"),
    ],
)
def test_a_file_with_wrong_keys_is_refused(
    file: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "wrong.gguf"
    keys = {f"modern-bert.{key}": value for key, value in changes.items()}
    with pytest.raises(ModelFileError, match=message):
        load_with(keys, file.parent / "checkpoint", path)


def load_with(keys: dict[str, Any], checkpoint: Path, path: Path) -> None:
    """Convert a checkpoint with other keys, and load the file."""
    convert(checkpoint, path, "F32", metadata=keys)
    Engine.load(path, context=128, threads=1).close()


def test_a_template_of_another_form_is_refused(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrong.gguf"
    keys = {"tokenizer.chat_template.systemone": "[CLS]{{ instructions }}[SEP]{{ state }}[SEP]"}
    convert(file.parent / "checkpoint", path, "F32", metadata=keys)
    with Engine.load(path, context=128, threads=1) as engine, pytest.raises(ModelFileError):
        engine.decide(STATE, QUESTIONS[:1])


def test_a_head_with_other_heads_is_not_converted(
    reference: DecisionModel, kind: str, tmp_path: Path
) -> None:
    folder = write_checkpoint(reference, tmp_path / "checkpoint", kind)
    path = folder / "encoder" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_attention_heads": 4}))
    with pytest.raises(UnsupportedModelError, match="has 2 attention heads, and the encoder 4"):
        convert(folder, tmp_path / "out.gguf", "F32")


@pytest.mark.parametrize("kind", ["laya"], indirect=True)
def test_the_server_answers_in_both_forms(file: Path, tmp_path: Path) -> None:
    library = Library(tmp_path / "models")
    spec = CreateSpec(modelfile=parse_modelfile(f"FROM {file}"), folder=tmp_path)
    create(library, ModelName.parse("laya"), spec)
    with Engine.load(file, context=512, threads=1) as engine:
        predicate, choice = engine.decide(STATE, [QUESTIONS[2], QUESTIONS[0]]).answers
        [nested] = engine.decide('{"text": "é", "n": [1, 2]}', QUESTIONS[:1]).answers
    server = start_server(tmp_path / "models", tmp_path, TAMPU_THREADS="1")
    try:
        with OpenAI(base_url=f"{server.url}/v1", api_key="-") as client:
            found = client.decisions.create(
                model="laya",
                input=STATE,
                questions=[{"type": "predicate", "instructions": "It returns a tree."}],
            )
            [answer] = found.answers
            assert answer.type == "predicate"
            assert answer.probability == pytest.approx(predicate.probabilities[0], abs=1e-3)
        body = {"model": "laya", "state": STATE, "questions": {"a": SYSTEMONE["a"]}}
        with httpx.Client(base_url=server.url) as http:
            answers_ = http.post("/v1/systemone", json=body).json()["answers"]
            wanted = pytest.approx(choice.probabilities, abs=1e-3)
            assert [*answers_["a"]["probabilities"].values()] == wanted
            body["state"] = {"text": "é", "n": [1, 2]}
            answers_ = http.post("/v1/systemone", json=body).json()["answers"]
            wanted = pytest.approx(nested.probabilities, abs=1e-3)
            assert [*answers_["a"]["probabilities"].values()] == wanted
            refused = http.post("/v1/systemone", json=body | {"images": ["iVBORw0KGgo="]})
            assert (refused.status_code, "reads no images" in refused.text) == (400, True)
            said = {"model": "laya", "messages": [{"role": "user", "content": "Hi"}]}
            assert http.post("/v1/chat/completions", json=said).status_code == 400
    finally:
        server.end()
