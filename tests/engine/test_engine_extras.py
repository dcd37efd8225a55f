"""Structured output, prompt logprobs, traces and images of the engine."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.engines import GREEDY, PROMPT, SMALL, tiny_engine
from support.tiny_model import Tiny, tiny_weights, write_tiny

from tampu.engine.engine import Engine
from tampu.engine.input_processor import TRACE
from tampu.errors import ComputeError, GrammarError, RequestError


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with tiny_engine(tmp_path_factory.mktemp("extras")) as engine:
        engine.generate("a", format={"choices": ["b"]})  # its threads are there from here on
        yield engine


# Structured output


@pytest.mark.parametrize("choices", [["yes", "no"], ["cat"]])
def test_an_answer_is_one_of_the_choices(engine: Engine, choices: list[str]) -> None:
    found = engine.generate(PROMPT, format={"choices": choices}, seed=1)
    assert found.text in choices
    assert found.reason == "stop"


def test_an_answer_follows_a_schema(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}},
              "required": ["n"], "additionalProperties": False}  # fmt: skip
    for seed in range(3):
        text = engine.generate(PROMPT, format=schema, seed=seed, max_tokens=200).text
        assert isinstance(json.loads(text)["n"], int)


def test_requests_with_and_without_a_format_run_together(engine: Engine) -> None:
    expected = engine.generate(PROMPT, max_tokens=8, **GREEDY).text
    formed = engine.stream(PROMPT, format={"choices": ["yes"]}, seed=1)
    free = engine.generate(PROMPT, max_tokens=8, **GREEDY).text
    assert free == expected
    assert "".join(getattr(event, "text", "") for event in formed) == "yes"


def test_an_invalid_format_is_refused(engine: Engine) -> None:
    with pytest.raises(GrammarError):
        engine.generate(PROMPT, format={"type": "nothing that there is"})


# The prompt's own log-probabilities


def test_prompt_logprobs_are_those_of_the_logits(engine: Engine) -> None:
    tokens = engine.tokenize(PROMPT)
    found = engine.generate(tokens, max_tokens=2, prompt_logprobs=True, top_logprobs=2, **GREEDY)
    logits = engine.logits(tokens).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert [entry.token for entry in found.prompt_logprobs] == tokens[1:]
    for row, entry in zip(logprobs, found.prompt_logprobs, strict=False):
        assert entry.logprob == pytest.approx(row[entry.token], abs=1e-4)
        assert entry.top[0][0] == row.argmax()
    assert found.tokens == engine.generate(tokens, max_tokens=2, **GREEDY).tokens
    assert found.usage.cached_tokens == 0


def test_prompt_logprobs_are_returned_only_if_requested(engine: Engine) -> None:
    assert engine.generate(PROMPT, max_tokens=1).prompt_logprobs == ()


# Traces


def test_a_trace_has_an_event_for_each_step_of_the_loop(engine: Engine, tmp_path: Path) -> None:
    with engine.trace(tmp_path / "trace.json"):
        engine.generate(PROMPT, max_tokens=4, draft_tokens=0, **GREEDY)
    events = json.loads((tmp_path / "trace.json").read_text())
    assert {"plan", "prepare", "wait", "sample", "deliver", "batch"} <= {
        event.get("name") for event in events
    }
    batches = [event for event in events if event.get("name") == "batch"]
    assert all(event["dur"] > 0 for event in batches)
    read, *answers = batches
    assert {part["phase"] for part in read["args"]["parts"]} == {"prefill"}
    assert [part["tokens"] for event in answers for part in event["args"]["parts"]] == [1, 1, 1]


def test_a_trace_that_cannot_be_written_is_refused(engine: Engine, tmp_path: Path) -> None:
    trace = engine.trace(tmp_path / "no" / "trace.json")
    with pytest.raises(RequestError, match="the trace cannot be written"), trace:
        pass
    assert engine.runner.stats.trace is None


# What is written down for those who look for a fault


@pytest.mark.seed("S12")
def test_at_trace_level_tokens_are_logged_by_number_and_text(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(TRACE, "tampu"):
        found = engine.generate("the cat", max_tokens=3, **GREEDY)
    prompt, *answers = [
        r.getMessage() for r in caplog.records if r.name == "tampu.engine.input_processor"
    ]
    tokens = engine.tokenize("the cat")
    spelled = [f"{token}:{engine.tokenizer.token_text(token)!r}" for token in tokens]
    assert prompt == "prompt: " + " ".join(spelled)
    logged = " ".join(answer.removeprefix("answer: ") for answer in answers)
    assert [int(each.partition(":")[0]) for each in logged.split(" ") if each[:1].isdigit()] == (
        found.tokens
    )


def test_detect_nan_names_the_first_layer_with_nan(tmp_path: Path) -> None:
    weights = tiny_weights(Tiny())
    weights["blk.1.ffn_down.weight"][:] = np.nan
    path = write_tiny(tmp_path / "bad.gguf", weights=weights)
    with Engine.load(path, **SMALL) as bad:
        with pytest.raises(ComputeError, match="nan") as plain:
            bad.generate(PROMPT)
        assert "first NaN" not in str(plain.value)
        bad.detect_nan()
        with pytest.raises(
            ComputeError, match=r"infinity in mul_mat, at or after blk\.1\.ffn_down"
        ):
            bad.generate(PROMPT)


def test_what_a_format_asks_for_and_is_not_enforced_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = {"type": "array", "items": {"const": 2**60 + 1}, "contains": {}, "maxItems": 1}
    with Engine.load(write_tiny(tmp_path / "tiny.gguf"), **SMALL) as engine:
        text = engine.generate(PROMPT, format=schema, max_tokens=99).text
    assert json.loads(text) in ([], [2**60 + 1])
    [record] = caplog.records
    told = "format: schema: /contains: ignored, it cannot be enforced"
    assert (record.name, record.getMessage()) == ("tampu", told)


def test_nan_in_embeddings_and_logits_is_an_error(tmp_path: Path) -> None:
    weights = tiny_weights(Tiny())
    weights["token_embd.weight"][9] = np.nan
    path = write_tiny(tmp_path / "bad.gguf", weights=weights, pooling=1)
    with Engine.load(path, **SMALL) as bad:
        options: list[dict[str, Any]] = [{}, {"normalize": False}, {"late_chunking": True}]
        for each in options:
            with pytest.raises(ComputeError, match=r"NaN or infinite embeddings for input\[1\]"):
                bad.embed([[5, 6], [5, 9], [6]], **each)
        for ask in (bad.logits, bad.generate):
            with pytest.raises(ComputeError, match="nan"):
                ask([5, 9])
        assert np.isfinite(bad.embed([[5, 6]])).all()
        assert np.isfinite(bad.logits([5, 6])).all()


def test_an_empty_text_in_a_list_of_embeddings_leaves_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Engine.load(write_tiny(tmp_path / "tiny.gguf", pooling=1), **SMALL) as engine:
        with pytest.raises(RequestError, match="empty"):
            engine.embed([*[[5, 6, 7]] * 4, []])
        engine.embed([[5]])  # the cancelled ones have ended
    assert not caplog.records


def test_detect_nan_changes_no_result(tmp_path: Path) -> None:
    with Engine.load(write_tiny(tmp_path / "tiny.gguf"), **SMALL) as watched:
        expected = watched.generate(PROMPT, max_tokens=5, **GREEDY).tokens
        watched.detect_nan()
        assert watched.generate(PROMPT, max_tokens=5, **GREEDY).tokens == expected


# Pictures


def test_a_text_model_refuses_images(engine: Engine) -> None:
    with pytest.raises(RequestError, match="takes no images: it has no vision encoder"):
        engine.prepare_image(b"")
    with pytest.raises(RequestError, match=r"^messages\[0\].images\[0\]: .* takes no images"):
        engine.chat([{"role": "user", "content": "a", "images": [b"x"]}])


@pytest.fixture(scope="module")
def seeing() -> Iterator[Engine]:
    with Engine.load("demo", context=256, slots=2, threads=1) as engine:
        engine.generate("a", max_tokens=1)  # its threads are there from here on
        yield engine


def picture(
    color: tuple[int, int, int], *, at: tuple[int, int] = (5, 25), side: int = 64
) -> npt.NDArray[Any]:
    pixels = np.full((side, side, 3), 255, np.uint8)
    pixels[at[0] : at[0] + 20, at[0] : at[0] + 20] = color
    return pixels


def ask(
    engine: Any, image: npt.NDArray[Any], question: str = "What color is the shape?", **options: Any
) -> Any:
    messages = [{"role": "user", "content": question, "images": [image]}]
    return engine.chat(messages, max_tokens=20, temperature=0.0, **options)


@pytest.mark.seed("S33", "S53", "S61", "S62", "S64")
def test_an_answer_describes_the_image(seeing: Engine) -> None:
    red, blue = picture((220, 20, 20)), picture((30, 60, 220))
    assert "red" in ask(seeing, red).text.lower()
    assert "blue" in ask(seeing, blue).text.lower()


@pytest.mark.seed("S19")
def test_an_image_is_encoded_once(seeing: Engine) -> None:
    image = picture((20, 160, 40), at=(30, 50))
    first = ask(seeing, image)
    steps = seeing.runner.stats.steps
    again = ask(seeing, image)
    assert again.text == first.text
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
    assert seeing.runner.stats.steps - steps == (
        again.usage.generated_tokens - again.usage.accepted_tokens
    )
    steps = seeing.runner.stats.steps
    ask(seeing, image, "What shape do you see?")
    other = seeing.runner.stats.steps - steps
    assert other <= again.usage.generated_tokens + 8


@pytest.mark.seed("S54")
def test_prompts_with_different_images_share_no_rows_of_them(seeing: Engine) -> None:
    one, two = picture((220, 20, 20), at=(8, 8)), picture((30, 60, 220), at=(8, 8))
    ask(seeing, one)
    found = ask(seeing, two)
    assert "blue" in found.text.lower()
    assert found.usage.cached_tokens < 16


@pytest.mark.seed("S62", "S78")
def test_two_images_at_the_same_time_do_not_mix(seeing: Engine) -> None:
    red, blue = picture((220, 20, 20)), picture((30, 60, 220))
    streams = [
        seeing.stream_chat(
            [{"role": "user", "content": "What color is the shape?", "images": [image]}],
            max_tokens=20, temperature=0.0,
        )
        for image in (red, blue)
    ]  # fmt: skip
    texts = ["".join(getattr(event, "text", "") for event in stream) for stream in streams]
    assert "red" in texts[0].lower()
    assert "blue" in texts[1].lower()


@pytest.mark.seed("S66")
def test_a_prompt_with_images_has_one_bos_token(seeing: Engine) -> None:
    messages = [{"role": "user", "content": "a", "images": [picture((0, 0, 0))] * 2}]
    items = seeing.chat_prompt(messages)
    bos = seeing.tokenizer.bos
    assert [item for item in items if item == bos] == [bos]
    assert len([item for item in items if not isinstance(item, int)]) == 2
