"""Models in llama.cpp: their answers are as the native engine's, whatever is asked of them."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import jsonschema
import numpy as np
import pytest
from support.endless import make_endless_model
from support.fork_server import FORK_SERVER
from support.scripted import write_scripted

from tampu.backends.llamacpp import LlamaModel, load_llamacpp
from tampu.backends.llamacpp.retokenize import Retokenizer
from tampu.engine.engine import Engine
from tampu.engine.load_options import LoadOptions
from tampu.engine.prompts import TextPrompt, TokensPrompt
from tampu.engine.requests import Embed
from tampu.errors import ModelFileError, RequestError
from tampu.runner.events import Done, Event, Failed, TextDelta
from tampu.runner.generate_options import generate_options
from tampu.sampling.grammar import Grammar

pytestmark = pytest.mark.server

PROMPT = [1, 20, 21, 2, 40]
OPTIONS: dict[str, Any] = {"context": 512, "threads": 1, "cache_type": "f32"}
NOT_THERE = {"type": "string", "format": "uri"}  # in the llguidance of llama.cpp
CHARACTERS = 'aé€😀"'


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("endless")
    return make_endless_model(folder, folder / "endless.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LlamaModel]:
    with load_llamacpp(path, LoadOptions(**OPTIONS, slots=2), FORK_SERVER) as model:
        ask(model, format=NOT_THERE)  # its threads are there before the first test begins
        yield model


def ask(model: LlamaModel, prompt: Sequence[Any] = PROMPT, **options: Any) -> list[Event]:
    """Return the events of a request."""
    received: queue.SimpleQueue[Event] = queue.SimpleQueue()
    model.submit(prompt, generate_options({"seed": 1, "max_tokens": 60} | options), received.put)
    events: list[Event] = []
    while not events or isinstance(events[-1], TextDelta):
        events.append(received.get(timeout=60))
    return events


def said(events: Sequence[Event]) -> str:
    assert isinstance(events[-1], Done), events[-1]
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def tokens_of(events: Sequence[Event]) -> list[int]:
    return [token for event in events if isinstance(event, TextDelta) for token in event.tokens]


def scores_of(events: Sequence[Event]) -> list[float]:
    return [s.logprob for event in events if isinstance(event, TextDelta) for s in event.logprobs]


# -- forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"choices": ["yes", "no"]}, "yes|no"),
        ({"regex": "[a-c]{2,5}"}, "[a-c]{2,5}"),
        ({"gbnf": 'root ::= "x" root "z" | "y"'}, "x*yz*"),
        ({"lark": 'start: "a" <[7]> one\none: "(" one ")" | "b"'}, r'a"\(*b\)*'),
        ({"lark": "start: /[0-9]{3}/"}, "[0-9]{3}"),
        ({"const": f"{CHARACTERS} ? ' ,"}, re.escape(json.dumps(f"{CHARACTERS} ? ' ,",
                                                                  ensure_ascii=False))),
    ],
)  # fmt: skip
@pytest.mark.parametrize("more", [{}, {"ignore_eos": True, "temperature": 0.0}])
def test_the_output_follows_its_grammar(
    model: LlamaModel, wanted: dict[str, Any], pattern: str, more: dict[str, Any]
) -> None:
    events = ask(model, format=wanted, **more)
    assert re.fullmatch(pattern, said(events))
    assert events[-1].reason == "stop"


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "boolean"},
        {"enum": ["a", 5, None]},
        {"type": "string", "maxLength": 5},
        {"type": "number", "minimum": -3, "exclusiveMaximum": 12.5},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
        {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"$ref": "#/$defs/c"}},
            "required": ["a", "b"],
            "additionalProperties": False,
            "$defs": {"c": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^x{3}$"}]}},
        },
    ],
)  # fmt: skip
def test_random_weights_follow_a_schema(
    model: LlamaModel, schema: dict[str, Any], seed: int
) -> None:
    text = said(ask(model, format=schema, temperature=1.5, seed=seed, max_tokens=300))
    jsonschema.validate(json.loads(text), schema)


def test_an_unsupported_grammar_fails_and_the_next_request_succeeds(model: LlamaModel) -> None:
    failed = ask(model, format=NOT_THERE)[-1]
    assert isinstance(failed, Failed)
    assert (failed.kind, "cannot follow the grammar" in failed.message) == ("GrammarError", True)
    assert said(ask(model, format={"choices": ["yes"]})) == "yes"


def test_structured_output_is_refused_for_misspelled_tokens(tmp_path: Path) -> None:
    path = write_scripted(tmp_path / "spaces.gguf", ["Hello", " world"])
    with load_llamacpp(path, LoadOptions(**OPTIONS), FORK_SERVER) as model:
        assert said(ask(model, temperature=0.0)) == "Hello world"
        with pytest.raises(RequestError, match="does not support structured output"):
            ask(model, format="json")


def test_a_grammar_without_any_text_is_refused(model: LlamaModel) -> None:
    dead = {"lark": 'start: A "b"\nA: /[a]/ & ~/[a]/'}
    with pytest.raises(RequestError, match="allows no text at all"):
        ask(model, format=dead)


def test_a_grammar_stop_strings_and_logprobs_combine(model: LlamaModel) -> None:
    options: dict[str, Any] = {"format": {"regex": "a{3}b{9}"}, "stop": ("bb",), "logprobs": True}
    events = ask(model, **options, top_logprobs=2)
    assert said(events) == "aaa"
    assert events[-1].stop == "bb"
    assert all(score <= 0 for score in scores_of(events))


# -- tokens ------------------------------------------------------------------------------------


def test_characters_of_several_tokens_are_complete(model: LlamaModel) -> None:
    events = ask(model, format={"choices": [CHARACTERS * 3]})
    assert said(events) == CHARACTERS * 3
    assert model.tokenizer.decode(tokens_of(events)) == CHARACTERS * 3


def test_missing_tokens_are_recovered_from_their_bytes() -> None:
    class Bytes:
        def all_token_bytes(self) -> list[bytes]:
            return [b"", *(bytes([byte]) for byte in range(1, 256)), b"\xf0\x9f", b"ab"]

        def token_bytes(self, token: int) -> bytes:
            return self.all_token_bytes()[token]

    tokenizer: Any = Bytes()
    untold = Retokenizer(tokenizer)
    assert untold.before(0x80, "😀", 2) == [256, 0x98]
    assert untold.before(0x80, "😀", 3) == [0xF0, 0x9F, 0x98]
    assert untold.before(0x63, "�c", 1) == [0xFF]
    assert untold.before(0x80, "😀", 7) == []


@pytest.mark.parametrize("most", [0, 1, 7])
def test_no_more_than_max_tokens_are_returned(model: LlamaModel, most: int) -> None:
    events = ask(model, max_tokens=most, ignore_eos=True)
    assert (events[-1].reason, events[-1].usage.generated_tokens) == ("length", most)
    assert len(tokens_of(events)) <= most


@pytest.mark.parametrize(("budget", "most"), [(0, 12), (3, 12), (3, 3), (3, 5), (50, 12)])
def test_reasoning_ends_at_its_budget_as_in_the_native_engine(
    model: LlamaModel, path: Path, budget: int, most: int
) -> None:
    prompt = [1, 20, 21, 2, 35]  # its answer has no bytes, which tokens share
    options: dict[str, Any] = {
        "think_budget": budget, "reasoning_tags": {"begin": "<t>", "end": "</t>", "is_open": True},
        "temperature": 0.0, "max_tokens": most, "ignore_eos": True,
    }  # fmt: skip
    with Engine.load(path, **OPTIONS) as engine:
        native = engine.generate(prompt, **options)
    events = ask(model, prompt, **options)
    assert tokens_of(events) == native.tokens
    assert (said(events), events[-1].reason) == (native.text, "length")
    assert events[-1].usage.generated_tokens == native.usage.generated_tokens == most
    assert events[-1].usage.prompt_tokens == len(prompt)


def test_a_grammar_with_a_think_budget_is_refused(model: LlamaModel) -> None:
    tags = {"begin": "<t>", "end": "</t>"}
    with pytest.raises(RequestError, match="either structured output or think_budget"):
        ask(model, think_budget=1, reasoning_tags=tags, format="json")


def test_prompt_logprobs_are_those_of_the_native_engine(model: LlamaModel, path: Path) -> None:
    options: dict[str, Any] = {
        "prompt_logprobs": True,
        "logprobs": True,
        "top_logprobs": 2,
        "max_tokens": 1,
    }
    with Engine.load(path, **OPTIONS) as engine:
        native = engine.generate(PROMPT, **options).prompt_logprobs
    [*_, done] = ask(model, **options)
    assert [s.token for s in done.prompt_logprobs] == PROMPT[1:]
    for ours, theirs in zip(done.prompt_logprobs, native, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert dict(ours.top) == pytest.approx(dict(theirs.top), abs=1e-3)


def test_many_requests_wait_for_one_another(model: LlamaModel) -> None:
    received: queue.SimpleQueue[Event] = queue.SimpleQueue()
    options = generate_options({"max_tokens": 30, "ignore_eos": True})
    for _ in range(12):
        model.submit(PROMPT, options, received.put)
    assert model.ask(Embed((TokensPrompt(tuple(PROMPT)),))).tokens == len(PROMPT)
    events: list[Event] = []
    while sum(isinstance(event, Done) for event in events) < 12:
        events.append(received.get(timeout=30))
        assert not isinstance(events[-1], Failed)


def test_cancelled_requests_end_and_free_their_slots(model: LlamaModel) -> None:
    received: queue.SimpleQueue[Event] = queue.SimpleQueue()
    options = generate_options({"ignore_eos": True})  # without end
    requests = [model.submit(PROMPT, options, received.put) for _ in range(2)]
    waiting = model.submit(PROMPT, options, received.put)
    for request in (waiting, *requests):
        request.cancel()
    reasons: list[str] = []
    while len(reasons) < 3:
        event = received.get(timeout=30)
        reasons += [] if isinstance(event, TextDelta) else [event.reason]
    assert reasons == ["cancelled"] * 3
    assert said(ask(model, format={"choices": ["yes"]})) == "yes"
    assert not model.hang_reason(1)


# -- parts of models ---------------------------------------------------------------------------


def test_an_adapter_gives_the_same_as_in_the_native_engine(path: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter.gguf", "llama")
    with Engine.load(path, adapters=[(adapter, 1.0)], **OPTIONS) as engine:
        native = engine.generate(PROMPT, temperature=0.0, max_tokens=8, ignore_eos=True).tokens
    options = LoadOptions(**OPTIONS, adapters=((str(adapter), 1.0),))
    with load_llamacpp(path, options, FORK_SERVER) as model:
        events = ask(model, temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=True)
    with load_llamacpp(path, LoadOptions(**OPTIONS), FORK_SERVER) as model:
        plain = ask(model, temperature=0.0, max_tokens=8, ignore_eos=True)
    assert tokens_of(events) == native
    assert tokens_of(plain) != native


def test_an_adapter_of_another_model_is_refused(path: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter.gguf", "qwen2")
    options = LoadOptions(adapters=((str(adapter), 1.0),))
    with pytest.raises(ModelFileError, match="is an adapter for qwen2"), \
         load_llamacpp(path, options, FORK_SERVER):  # fmt: skip
        pass


def write_adapter(path: Path, architecture: str) -> Path:
    """Write an adapter that changes the queries and what follows attention."""
    random = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for name, inputs, outputs in (("blk.0.ffn_gate", 128, 256), ("blk.1.ffn_down", 256, 128)):
        for end, shape in (("a", (4, inputs)), ("b", (outputs, 4))):
            values = random.normal(size=shape).astype(np.float32)
            writer.add_tensor(f"{name}.weight.lora_{end}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_output_that_repeats_one_token_ends_at_the_limit(tmp_path: Path) -> None:
    looper = write_scripted(tmp_path / "m.gguf", ["Well", " la"], repeats=1)
    with load_llamacpp(looper, LoadOptions(**OPTIONS), FORK_SERVER) as model:
        events = ask(model, temperature=0.0, max_tokens=100, max_repeated_tokens=30)
        assert said(events) == "Well" + " la" * 31
        assert (events[-1].reason, events[-1].usage.generated_tokens) == ("length", 32)
        assert events[-1].limit == "repetition"
        events = ask(model, temperature=0.0, max_tokens=100)
        assert (len(tokens_of(events)), events[-1].limit) == (100, "tokens")


def test_output_of_a_grammar_that_repeats_one_token_ends_at_the_limit(tmp_path: Path) -> None:
    looper = write_scripted(tmp_path / "m.gguf", ["Well", " la"], repeats=1, adds_space=False)
    with load_llamacpp(looper, LoadOptions(**OPTIONS), FORK_SERVER) as model:
        form = Grammar.regex("Well( la)*")
        events = ask(model, temperature=0.0, max_repeated_tokens=30, grammar=form)
        assert (said(events), events[-1].reason) == ("Well" + " la" * 31, "length")


def test_lines_end_output(tmp_path: Path) -> None:
    coder = write_scripted(tmp_path / "m.gguf", ["Well", " la"], adds_space=False)
    form = Grammar.regex("a:\n  b\nc")
    with load_llamacpp(coder, LoadOptions(**OPTIONS), FORK_SERVER) as model:
        events = ask(model, temperature=0.0, grammar=form)
        assert (said(events), events[-1].reason) == ("a:\n  b\nc", "stop")
        events = ask(model, temperature=0.0, grammar=form, min_indent=1)
        assert (said(events), events[-1].reason) == ("a:\n  b\n", "length")
        events = ask(model, temperature=0.0, grammar=form, max_predict_ms=0)
        assert (said(events), events[-1].reason) == ("a:\n", "length")


@pytest.mark.parametrize(
    "options",
    [{"top_n_sigma": 1.0}, {"xtc_probability": 1.0, "xtc_threshold": 0.05}, {"infill": True}],
)
def test_top_n_sigma_xtc_and_infill_reach_llama_cpp(
    model: LlamaModel, options: dict[str, Any]
) -> None:
    warm: dict[str, Any] = {
        "temperature": 1.0,
        "seed": 1,
        "top_k": 0,
        "top_p": 1.0,
        "max_tokens": 20,
    }
    assert said(ask(model, **warm, **options)) != said(ask(model, **warm))


def test_the_end_token_is_told_apart_from_the_text(model: LlamaModel) -> None:
    end = min(model.tokenizer.eos)
    events = ask(model, logit_bias={end: 900.0}, logprobs=True, max_tokens=4)
    assert (said(events), tokens_of(events), events[-1].reason) == ("", [], "stop")
    assert events[-1].end.tokens == (end,)
    assert [entry.token for entry in events[-1].end.logprobs] == [end]
    assert ask(model, logit_bias={end: -900.0}, max_tokens=2)[-1].end is None


@pytest.mark.parametrize(
    "options", [{"dry_penalty_last_n": -1}, {"dry_sequence_breakers": ()}], ids=["all", "none"]
)
def test_dry_reaches_llama_cpp(model: LlamaModel, options: dict[str, Any]) -> None:
    three: dict[str, Any] = {
        "temperature": 0.5,
        "seed": 1,
        "logit_bias": dict.fromkeys((10, 11, 12), 20.0),
    }
    dry: dict[str, Any] = {"dry_multiplier": 50.0, "dry_allowed_length": 0, **options}
    plain = said(ask(model, **three, max_tokens=20))
    assert said(ask(model, **three, **dry, max_tokens=20)) != plain


LEAVING = """
import sys
from pathlib import Path
from tampu.backends.llamacpp import load_llamacpp
from tampu.engine.load_options import LoadOptions
from tampu.sandbox.client import ForkServerClient

for _ in range(5):
    with load_llamacpp(Path(sys.argv[1]), LoadOptions(context=64, threads=1), ForkServerClient()):
        pass
"""


def test_a_model_that_nothing_is_asked_of_is_closed(path: Path) -> None:
    command = [sys.executable, "-c", LEAVING, str(path)]
    subprocess.run(command, check=True, timeout=280)  # a hang guard


def test_embeddings_of_images_and_sounds_need_our_own_engine(model: LlamaModel) -> None:
    asked = Embed((TokensPrompt((1,)), TextPrompt("<__media__>", (b"x",))))
    with pytest.raises(RequestError, match="images and sounds need tampu's own engine"):
        model.ask(asked)
