"""The public API over a tiny model: answers whole, piece by piece, in tasks; what is refused."""

import asyncio
import gc
import logging
import queue
import threading

import numpy as np
import pytest
from support.fake_graphs import come_to_rest
from support.tiny_model import BOS, EOS, FIRST_BYTE, VOCABULARY, Tiny, tiny_weights, write_tiny

from tampu.engine import Engine
from tampu.errors import ComputeError, ContextLengthError, RequestError, RunnerDiedError
from tampu.ml.library import gg
from tampu.runner.events import Done, Text
from tampu.runner.request import GenerateOptions

TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}{% endfor %}{{ bos_token }}a:"
GREEDY = {"temperature": 0.0, "ignore_eos": True}
PROMPT = "the cat is on the list"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """An engine for all tests: 64 tokens of context in two slots."""
    path = write_tiny(tmp_path_factory.mktemp("engine") / "tiny.gguf", template=TEMPLATE)
    with Engine.load(path, context=64, slots=2, threads=1, batch=16) as engine:
        engine.generate("a", max_tokens=1)  # its threads are there before the first test begins
        yield engine


@pytest.fixture
def load(tmp_path):
    """Load an engine of the test's own."""
    made = []

    def load(tiny=None, *, pooling=None, template=None, **options):
        path = tmp_path / "own.gguf"
        write_tiny(path, tiny, pooling=pooling, template=template)
        made.append(Engine.load(path, **{"context": 64, "threads": 1, "batch": 16, **options}))
        return made[-1]

    yield load
    for each in made:
        each.close()


def rest(engine):
    """Wait until nothing runs and each cell has the owners that it should."""
    come_to_rest(engine._model.scheduler)


# Answers


@pytest.mark.seed("S2")
def test_a_greedy_answer_is_the_likeliest_token_each_time(engine):
    tokens = engine.tokenize(PROMPT)
    for token in engine.generate(PROMPT, max_tokens=12, **GREEDY).tokens:
        assert token == engine.logits(tokens)[-1].argmax()
        tokens.append(token)


def test_an_answer_has_its_text_tokens_and_cost(engine):
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


def test_text_and_its_tokens_are_the_same_prompt(engine):
    tokens = engine.tokenize(PROMPT)
    assert tokens[0] == BOS
    assert engine.detokenize(tokens) == PROMPT
    expected = engine.generate(PROMPT, max_tokens=5, **GREEDY).tokens
    assert engine.generate(tokens, max_tokens=5, **GREEDY).tokens == expected
    assert engine.generate(np.array(tokens), max_tokens=5, **GREEDY).tokens == expected


@pytest.mark.parametrize("count", [0, 1, 7])
def test_exactly_as_many_tokens_as_asked_for_are_generated(engine, count):
    found = engine.generate(PROMPT, max_tokens=count, **GREEDY)
    assert (len(found.tokens), found.reason) == (count, "length")


def test_the_same_seed_gives_the_same_answer(engine):
    answers = [engine.generate(PROMPT, max_tokens=12, seed=seed).tokens for seed in (7, 7, 8)]
    assert answers[0] == answers[1] != answers[2]


def test_the_models_end_token_ends_an_answer(engine):
    only_end = {"logit_bias": {EOS: 1000.0}, "temperature": 0.0}
    found = engine.generate(PROMPT, **only_end)
    assert (found.text, found.tokens, found.reason) == ("", [], "stop")
    found = engine.generate(PROMPT, max_tokens=3, ignore_eos=True, **only_end)
    assert (found.text, found.tokens, found.reason) == ("", [EOS] * 3, "length")


def test_a_bias_forbids_tokens(engine):
    first = engine.generate(PROMPT, max_tokens=1, **GREEDY).tokens[0]
    forbidden = {first: -float("inf")}
    assert engine.generate(PROMPT, max_tokens=1, logit_bias=forbidden, **GREEDY).tokens != [first]


def test_a_stop_string_ends_an_answer_before_it(engine):
    letters = {FIRST_BYTE + byte: 50.0 for byte in b"xyz"}
    options = {"logit_bias": letters, "seed": 1, "max_tokens": 200, "top_k": 3}
    whole = engine.generate(PROMPT, **options).text
    stop = whole[20:23]
    found = engine.generate(PROMPT, stop=[stop], **options)
    assert found.text == whole[: whole.index(stop)]
    assert found.reason == "stop"


@pytest.mark.parametrize("top", [0, 1, 5])
def test_logprobs_are_those_of_the_logits(engine, top):
    found = engine.generate(PROMPT, max_tokens=3, logprobs=True, top_logprobs=top, **GREEDY)
    logits = engine.logits(engine.tokenize(PROMPT) + found.tokens)[-4:-1].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert [entry.token for entry in found.logprobs] == found.tokens
    for entry, row in zip(found.logprobs, expected, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token], abs=1e-3)
        assert [token for token, _ in entry.top] == np.argsort(-row)[:top].tolist()


def test_what_was_computed_is_not_computed_again(engine):
    prompt = "the same beginning and then"
    engine.generate(prompt, max_tokens=1, **GREEDY)
    found = engine.generate(prompt + " more", max_tokens=1, **GREEDY)
    assert found.usage.cached_tokens >= len(engine.tokenize(prompt)) - 1
    assert found.tokens == [int(engine.logits(prompt + " more")[-1].argmax())]


# Piece by piece


def test_the_pieces_of_a_stream_are_the_answer(engine):
    whole = engine.generate(PROMPT, max_tokens=20, **GREEDY)
    *texts, done = engine.stream(PROMPT, max_tokens=20, **GREEDY)
    assert all(isinstance(text, Text) for text in texts)
    assert isinstance(done, Done)
    assert "".join(text.text for text in texts) == whole.text
    assert [token for text in texts for token in text.tokens] == whole.tokens
    assert (done.reason, done.usage.generated_tokens) == ("length", 20)


def test_closing_a_stream_cancels_the_request(engine):
    stream = engine.stream(PROMPT, **GREEDY)
    next(stream)
    stream.close()
    rest(engine)


def test_a_stream_that_nobody_reads_is_cancelled_when_it_is_closed(engine):
    engine.stream(PROMPT, **GREEDY).close()
    rest(engine)


def test_a_stream_that_nobody_keeps_is_cancelled(engine):
    engine.stream(PROMPT, **GREEDY)
    gc.collect()
    rest(engine)


def test_leaving_the_loop_over_a_stream_cancels_the_request(engine):
    for event in engine.stream(PROMPT, **GREEDY):
        assert isinstance(event, Text)
        break
    gc.collect()
    rest(engine)


def test_a_request_can_be_cancelled_by_its_handle(engine):
    events = queue.SimpleQueue()
    handle = engine.submit(PROMPT, GenerateOptions(**GREEDY), events.put)
    events.get(timeout=10)
    handle.cancel()
    while not isinstance(event := events.get(timeout=10), Done):
        assert isinstance(event, Text)
    assert event.reason == "cancelled"
    handle.cancel()
    rest(engine)


# Conversations


def test_a_conversation_goes_through_the_models_template(engine):
    messages = [{"role": "user", "content": "the cat"}]
    tokens = engine.chat_prompt(messages)
    assert tokens[0] == BOS
    assert tokens.count(BOS) == 2
    assert engine.tokenizer.decode(tokens, special=True) == "<s> user: the cat<s> a:"
    found = engine.chat(messages, max_tokens=5, **GREEDY)
    assert found.tokens == engine.generate(tokens, max_tokens=5, **GREEDY).tokens
    streamed = list(engine.stream_chat(messages, max_tokens=5, **GREEDY))
    assert "".join(event.text for event in streamed[:-1]) == found.text


def test_a_model_without_a_template_cannot_chat(load):
    with pytest.raises(RequestError, match=r"own\.gguf has no chat template: use generate"):
        load().chat([{"role": "user", "content": "hello"}])


# Asynchronous


def test_the_asynchronous_answers_are_the_same(engine):
    messages = [{"role": "user", "content": "the cat"}]
    options = {"max_tokens": 6, **GREEDY}

    async def ask():
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


def test_cancelling_a_task_cancels_its_request(engine):
    async def ask():
        task = asyncio.create_task(engine.agenerate(PROMPT, **GREEDY))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    rest(engine)


def test_an_event_loop_that_ends_before_its_answer_harms_nobody(engine, caplog):
    async def ask():
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
def test_requests_of_many_threads_get_what_each_would_get_alone(engine):
    prompts = ["the cat", "he is in", "", "on a list of the", "an old", "it was the host"]
    expected = [engine.generate(prompt, max_tokens=15, **GREEDY).tokens for prompt in prompts]
    found = {}

    def ask(prompt):
        found[prompt] = engine.generate(prompt, max_tokens=15, **GREEDY).tokens

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[prompt] for prompt in prompts] == expected
    rest(engine)


def test_probes_and_answers_at_once_do_not_disturb_each_other(engine):
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


# The context


@pytest.mark.seed("S80")
def test_an_answer_longer_than_the_context_goes_on(engine):
    found = engine.generate(PROMPT, max_tokens=200, **GREEDY)
    assert len(found.tokens) == 200
    assert found.usage.dropped_tokens > 100
    rest(engine)


def test_without_shifting_a_full_context_ends_the_answer(engine):
    found = engine.generate(PROMPT, shift=False, **GREEDY)
    assert found.reason == "length"
    assert len(engine.tokenize(PROMPT)) + len(found.tokens) == engine.context + 1


def test_a_prompt_that_fills_the_context_is_answered(engine):
    prompt = [BOS, *[290] * 63]
    assert len(engine.generate(prompt, max_tokens=3, **GREEDY).tokens) == 3


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers(engine):
    for ask in (engine.generate, engine.logits):
        with pytest.raises(ContextLengthError, match="the prompt has 65 tokens, the context 64"):
            ask([BOS] * 65)


def test_a_prompt_longer_than_the_context_is_cut_if_it_may_be(engine):
    prompt = [BOS, *[290] * 50, *[280] * 30]
    found = engine.generate(prompt, truncate=True, keep=2, max_tokens=2, **GREEDY)
    assert found.usage.prompt_tokens == 64
    assert found.usage.dropped_tokens >= 81 - 64
    cut = [BOS, 290, *prompt[-62:]]
    assert found.tokens[0] == engine.logits(cut)[-1].argmax()


@pytest.mark.seed("S39", "S40")
def test_after_loading_nothing_is_allocated_any_more(load, monkeypatch):
    engine = load(slots=2)
    backend = engine._model.graphs._backend
    reserved = backend.graph_bytes
    asked = []
    real = gg.ggml_backend_buft_alloc_buffer
    monkeypatch.setattr(
        gg,
        "ggml_backend_buft_alloc_buffer",
        lambda kind, size: (asked.append(size), real(kind, size))[1],
    )
    for prompt in ([BOS] * 64, PROMPT, [BOS, 300]):
        engine.generate(prompt, max_tokens=70, **GREEDY)
    threads = [
        threading.Thread(target=engine.generate, args=(text,), kwargs={"max_tokens": 40, **GREEDY})
        for text in (PROMPT, "he is", "on the list of it")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.logits([BOS] * 64)
    engine.embed(PROMPT)
    assert backend.graph_bytes == reserved
    assert asked == []


# Logits and embeddings


@pytest.mark.parametrize("chunk", [1, 3, 16, 1000])
def test_logits_do_not_depend_on_the_chunks(engine, chunk):
    whole = engine.logits(PROMPT)
    assert whole.shape == (len(engine.tokenize(PROMPT)), VOCABULARY)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(engine.logits(PROMPT, chunk=chunk), whole, atol=0.05)


@pytest.mark.parametrize("chunk", [0, -1])
def test_a_chunk_has_at_least_a_token(engine, chunk):
    with pytest.raises(RequestError, match=f"chunk must be 1 or more, not {chunk}"):
        engine.logits(PROMPT, chunk=chunk)


def test_pictures_are_refused_by_a_text_model(engine):
    with pytest.raises(RequestError, match=r"tiny\.gguf takes no images"):
        engine.logits(PROMPT, images=["cat.png"])


def test_embeddings_have_length_one_and_tell_texts_apart(engine):
    found = engine.embed([PROMPT, "he is", PROMPT])
    assert found.shape == (3, 32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(found[0], found[2], atol=1e-6)
    assert found[0] @ found[1] < 0.99
    assert np.array_equal(engine.embed(PROMPT), engine.embed([PROMPT]))


def test_no_texts_have_no_embeddings(engine):
    assert engine.embed([]).shape == (0, 32)


def test_pooling_is_what_the_file_says(load):
    found = {}
    for pooling in (None, 1, 2, 3):
        engine = load(pooling=pooling)
        found[pooling] = engine.embed(PROMPT)[0]
        hidden = engine._probe(PROMPT, 16, wants_logits=False)
        pooled = {2: hidden[0], 3: hidden[-1]}.get(pooling, hidden.mean(0))
        np.testing.assert_allclose(found[pooling], pooled / np.linalg.norm(pooled), atol=1e-5)
        engine.close()
    assert np.array_equal(found[None], found[1])
    assert found[2] @ found[3] < 0.99


# What is refused


@pytest.mark.parametrize("prompt", [[], np.array([], np.int32)])
def test_an_empty_prompt_is_refused(engine, prompt):
    for ask in (engine.generate, engine.stream, engine.logits):
        with pytest.raises(RequestError, match="the prompt is empty"):
            ask(prompt)


@pytest.mark.parametrize("token", [-1, VOCABULARY, 10**12])
def test_a_token_outside_the_vocabulary_is_refused(engine, token):
    for ask in (engine.generate, engine.logits):
        with pytest.raises(RequestError, match=f"token {token} is not in the vocabulary of 320"):
            ask([BOS, token])


def test_an_unknown_option_is_refused_with_those_that_are_known(engine):
    with pytest.raises(RequestError, match="temprature") as caught:
        engine.generate(PROMPT, temprature=0.5)
    assert "known: max_tokens, stop, keep" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_tokens": -1}, "max_tokens must be 0 or more, not -1"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"keep": -2}, "keep must be -1"),
        ({"top_logprobs": 21}, "top_logprobs must be 0 to 20, not 21"),
        ({"stop": [""]}, "stop strings must not be empty"),
        ({"stop": "end"}, "stop"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 2.0}, "top_p"),
        ({"logit_bias": {VOCABULARY: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_options_out_of_range_are_refused_by_name(engine, options, reason):
    for ask in (engine.generate, engine.stream):
        with pytest.raises(RequestError, match=reason):
            ask(PROMPT, **options)


@pytest.mark.parametrize("value", [1, 0.5, True])
def test_numbers_are_taken_where_numbers_are_wanted(engine, value):
    assert engine.generate(PROMPT, max_tokens=1, min_p=0, temperature=float(value)).tokens


# The end


def test_closing_ends_the_requests_under_way(load):
    engine = load()
    stream = engine.stream(PROMPT, **GREEDY)
    next(stream)
    waiting = engine.stream("he is", **GREEDY)
    engine.close()
    for each in (stream, waiting):
        with pytest.raises(RunnerDiedError, match="the runner has ended: it was closed"):
            list(each)


def test_a_closed_engine_refuses_everything(load):
    engine = load()
    engine.close()
    engine.close()
    for ask in (engine.generate, engine.stream, engine.logits, engine.embed):
        with pytest.raises(RunnerDiedError, match="it was closed"):
            ask(PROMPT)
    assert engine.tokenize("the") == [BOS, 259, 286, 264]


def test_a_model_whose_logits_are_no_numbers_fails_with_a_clear_error(tmp_path):
    weights = tiny_weights(Tiny())
    weights["output.weight"][:] = np.nan
    path = write_tiny(tmp_path / "nan.gguf", weights=weights)
    with Engine.load(path, context=32, threads=1, batch=16) as engine:
        with pytest.raises(ComputeError, match="nan"):
            engine.generate(PROMPT)
        assert np.isnan(engine.logits(PROMPT)).all()
        rest(engine)
