"""The public API over a tiny model: answers whole, piece by piece, in tasks, many at once."""

import asyncio
import gc
import logging
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.engines import GREEDY, PROMPT, SMALL, rest, tiny_engine
from support.tiny_model import BOS, EOS, FIRST_BYTE, write_tiny
from support.waiting import until

from tampu.engine.completion import ChatEvent
from tampu.engine.engine import Engine
from tampu.errors import RequestError
from tampu.runner.events import Done, TextDelta
from tampu.runner.generate_options import GenerateOptions


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with tiny_engine(tmp_path_factory.mktemp("engine")) as engine:
        yield engine


# Answers


@pytest.mark.seed("S2")
def test_greedy_sampling_takes_the_likeliest_tokens(engine: Engine) -> None:
    tokens = engine.tokenize(PROMPT)
    for token in engine.generate(PROMPT, max_tokens=12, **GREEDY).tokens:
        assert token == engine.logits(tokens)[-1].argmax()
        tokens.append(token)


def test_a_completion_has_text_tokens_and_usage(engine: Engine) -> None:
    found = engine.generate(PROMPT, max_tokens=9, **GREEDY)
    assert len(found.tokens) == 9
    assert found.reason == "length"
    assert found.logprobs == []
    decoder = engine.tokenizer.decoder()
    assert found.text == "".join(map(decoder.feed, found.tokens)) + decoder.flush()
    usage = found.usage
    assert usage.prompt_tokens == len(engine.tokenize(PROMPT))
    assert usage.generated_tokens == 9
    assert 0 < usage.total_ns < 10**11


def test_a_text_and_its_tokens_give_the_same_completion(engine: Engine) -> None:
    tokens = engine.tokenize(PROMPT)
    assert tokens[0] == BOS
    assert engine.detokenize(tokens) == PROMPT
    expected = engine.generate(PROMPT, max_tokens=5, **GREEDY).tokens
    assert engine.generate(tokens, max_tokens=5, **GREEDY).tokens == expected
    array = cast("list[int]", np.array(tokens))
    assert engine.generate(array, max_tokens=5, **GREEDY).tokens == expected


@pytest.mark.parametrize("count", [0, 1, 7])
def test_exactly_max_tokens_tokens_are_generated(engine: Engine, count: int) -> None:
    found = engine.generate(PROMPT, max_tokens=count, **GREEDY)
    assert (len(found.tokens), found.reason) == (count, "length")


def test_the_same_seed_gives_the_same_answer(engine: Engine) -> None:
    answers = [engine.generate(PROMPT, max_tokens=12, seed=seed).tokens for seed in (7, 7, 8)]
    assert answers[0] == answers[1] != answers[2]


def test_the_models_end_token_ends_an_answer(engine: Engine) -> None:
    only_end = {"logit_bias": {EOS: 1000.0}, "temperature": 0.0}
    found = engine.generate(PROMPT, **only_end)
    assert (found.text, found.tokens, found.reason) == ("", [], "stop")
    found = engine.generate(PROMPT, max_tokens=3, ignore_eos=True, **only_end)
    assert (found.text, found.tokens, found.reason) == ("", [EOS] * 3, "length")


def test_a_bias_forbids_tokens(engine: Engine) -> None:
    first = engine.generate(PROMPT, max_tokens=1, **GREEDY).tokens[0]
    forbidden = {first: -float("inf")}
    assert engine.generate(PROMPT, max_tokens=1, logit_bias=forbidden, **GREEDY).tokens != [first]


def test_a_stop_string_ends_an_answer_before_it(engine: Engine) -> None:
    letters = {FIRST_BYTE + byte: 50.0 for byte in b"xyz"}
    options = {"logit_bias": letters, "seed": 1, "max_tokens": 200, "top_k": 3}
    whole = engine.generate(PROMPT, **options).text
    stop = whole[20:23]
    found = engine.generate(PROMPT, stop=[stop], **options)
    assert found.text == whole[: whole.index(stop)]
    assert found.reason == "stop"


@pytest.mark.parametrize("top", [0, 1, 5])
def test_logprobs_are_those_of_the_logits(engine: Engine, top: int) -> None:
    found = engine.generate(PROMPT, max_tokens=3, logprobs=True, top_logprobs=top, **GREEDY)
    logits = engine.logits(engine.tokenize(PROMPT) + found.tokens)[-4:-1].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert [entry.token for entry in found.logprobs] == found.tokens
    for entry, row in zip(found.logprobs, expected, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token], abs=1e-3)
        assert [token for token, _ in entry.top] == np.argsort(-row)[:top].tolist()


def test_a_cached_prefix_is_not_computed_again(engine: Engine) -> None:
    prompt = "the same beginning and then"
    engine.generate(prompt, max_tokens=1, **GREEDY)
    found = engine.generate(prompt + " more", max_tokens=1, **GREEDY)
    assert found.usage.cached_tokens >= len(engine.tokenize(prompt)) - 1
    assert found.tokens == [int(engine.logits(prompt + " more")[-1].argmax())]


# Piece by piece


def test_the_deltas_of_a_stream_are_the_whole_output(engine: Engine) -> None:
    whole = engine.generate(PROMPT, max_tokens=20, **GREEDY)
    *texts, done = engine.stream(PROMPT, max_tokens=20, **GREEDY)
    assert all(isinstance(text, TextDelta) for text in texts)
    assert isinstance(done, Done)
    assert "".join(text.text for text in texts) == whole.text
    assert [token for text in texts for token in text.tokens] == whole.tokens
    assert (done.reason, done.usage.generated_tokens) == ("length", 20)


def test_a_stream_reports_the_progress_of_its_prompt(engine: Engine) -> None:
    stream = engine.stream(PROMPT, max_tokens=3, **GREEDY)
    read, total = stream.progress
    assert 0 <= read <= total == len(engine.tokenize(PROMPT))
    next(stream)
    assert stream.progress == (total, total)
    stream.close()
    rest(engine)


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
def test_closing_or_dropping_a_stream_cancels_the_request(
    engine: Engine, is_read: bool, is_closed: bool
) -> None:
    stream = engine.stream(PROMPT, **GREEDY)
    if is_read:
        assert isinstance(next(stream), TextDelta)
    if is_closed:
        stream.close()
    del stream
    gc.collect()
    rest(engine)


def test_a_request_can_be_cancelled_by_its_handle(engine: Engine) -> None:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    handle = engine.submit(PROMPT, GenerateOptions(**GREEDY), events.put)
    events.get(timeout=60)
    handle.cancel()
    while not isinstance(event := events.get(timeout=60), Done):
        assert isinstance(event, TextDelta)
    assert event.reason == "cancelled"
    handle.cancel()
    rest(engine)


# Conversations


def test_a_conversation_goes_through_the_models_template(engine: Engine) -> None:
    messages = [{"role": "user", "content": "the cat"}]
    tokens = cast("list[int]", engine.chat_prompt(messages))
    assert tokens[0] == BOS
    assert tokens.count(BOS) == 2
    assert engine.tokenizer.decode(tokens, special=True) == "<s> user: the cat<s> a:"
    found = engine.chat(messages, max_tokens=5, **GREEDY)
    assert found.tokens == engine.generate(tokens, max_tokens=5, **GREEDY).tokens
    streamed = list(engine.stream_chat(messages, max_tokens=5, **GREEDY))
    assert "".join(event.text for event in streamed[:-1]) == found.text


def test_a_model_without_a_template_cannot_chat(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "plain.gguf")
    with (
        Engine.load(path, **SMALL) as engine,
        pytest.raises(RequestError, match="the model has no chat template: send a prompt"),
    ):
        engine.chat([{"role": "user", "content": "hello"}])


# Asynchronous


def test_the_asynchronous_answers_are_the_same(engine: Engine) -> None:
    messages = [{"role": "user", "content": "the cat"}]
    options: dict[str, Any] = {"max_tokens": 6, **GREEDY}

    async def ask() -> tuple[list[Any], list[Any], Any, Any]:
        pieces = [event async for event in engine.astream(PROMPT, **options)]
        chat = [event async for event in engine.astream_chat(messages, **options)]
        whole, talk = await asyncio.gather(
            engine.agenerate(PROMPT, **options), engine.achat(messages, **options)
        )
        return pieces, chat, whole, talk

    pieces, chat, whole, talk = asyncio.run(ask())
    assert whole.tokens == engine.generate(PROMPT, **options).tokens
    assert talk.tokens == engine.chat(messages, **options).tokens
    assert "".join(event.text for event in pieces[:-1]) == whole.text
    assert "".join(event.text for event in chat[:-1]) == talk.text


def test_cancelling_a_task_cancels_its_request(engine: Engine) -> None:
    async def ask() -> None:
        task = asyncio.create_task(engine.agenerate(PROMPT, **GREEDY))
        await until(lambda: engine.runner._scheduler.running, "the request is under way")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    rest(engine)


def test_closing_an_asynchronous_stream_cancels_its_request(engine: Engine) -> None:
    messages = [{"role": "user", "content": "the cat"}]

    async def ask() -> None:
        for stream in (engine.astream(PROMPT, **GREEDY), engine.astream_chat(messages, **GREEDY)):
            await anext(stream)
            [sequence] = engine.runner._scheduler.running
            await stream.aclose()
            assert sequence.is_cancelled
            await asyncio.to_thread(rest, engine)

    asyncio.run(ask())


def test_closing_the_event_loop_cancels_only_its_own_request(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> AsyncIterator[ChatEvent]:
        stream = engine.astream(PROMPT, **GREEDY)
        await anext(stream)
        return stream  # is closed with the loop

    with caplog.at_level(logging.ERROR):
        for _ in range(10):
            asyncio.run(ask())
        rest(engine)
    assert caplog.records == []
    assert len(engine.generate(PROMPT, max_tokens=2, **GREEDY).tokens) == 2


# Many at once


@pytest.mark.seed("S78")
def test_requests_of_many_threads_give_the_same_as_alone(engine: Engine) -> None:
    prompts = ["the cat", "he is in", "", "on a list of the", "an old", "it was the host"]

    def answer(prompt: str) -> list[int]:
        return engine.generate(prompt, max_tokens=15, **GREEDY).tokens

    expected = [answer(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as threads:
        assert list(threads.map(answer, prompts)) == expected
    rest(engine)


def test_logits_and_completions_at_the_same_time_are_correct(engine: Engine) -> None:
    alone = engine.generate(PROMPT, max_tokens=30, **GREEDY).tokens
    logits = engine.logits("he is in the list")
    found = []
    thread = threading.Thread(
        target=lambda: found.append(engine.generate(PROMPT, max_tokens=30, **GREEDY).tokens)
    )
    thread.start()
    for _ in range(5):
        np.testing.assert_allclose(engine.logits("he is in the list"), logits, atol=0.05)
    thread.join()
    assert found == [alone]
