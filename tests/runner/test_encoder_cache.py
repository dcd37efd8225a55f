"""Images: encoded once, kept whole, cached."""

import random
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support.fake_graphs import FakeEngine, FakeGraphs, alone, hashed
from support.waiting import wait_until

from tampu.errors import ComputeError
from tampu.ml.backend import Computed
from tampu.nn import MediaItem
from tampu.runner import encoder_cache
from tampu.runner.context_shift import shift_range
from tampu.runner.encoder_cache import CHUNK_ROWS, EncoderCache, EncoderChunk


def history_of(prompt: list[Any]) -> list[int]:
    """What the cache holds of a prompt: tokens, and the rows of images."""
    held = []
    for item in prompt:
        if isinstance(item, int):
            held.append(item)
        else:
            content = int(item.item.arrays["content"][0])
            held += [30, *(100 * content + row for row in range(item.item.rows)), 31]
    return held


def expected(prompt: list[Any], count: int) -> list[int]:
    """What a request would generate by itself."""
    return alone(history_of(prompt), count)


def positions(engine: FakeEngine) -> list[Any]:
    return [[position for position, _ in step] for step in engine.graphs.steps]


@pytest.mark.seed("S61", "S64", "S81")
def test_an_answer_depends_on_the_image() -> None:
    with FakeEngine(hashed) as engine:
        for content in (1, 2):
            prompt = [2, 3, engine.image(content, 4), 5]
            assert engine.ask(prompt, max_tokens=5).answer()[1] == expected(prompt, 5)
        engine.wait_until_idle()


@pytest.mark.seed("S19", "S21", "S22")
def test_an_image_is_encoded_once_and_only_when_needed() -> None:
    with FakeEngine(hashed, batch=4) as engine:
        prompt = [2, 3, 4, engine.image(7, 10, groups=()), 5]
        assert engine.ask(prompt, max_tokens=5).answer()[1] == expected(prompt, 5)
        assert engine.graphs.encoded == [7]
        assert positions(engine)[0] == [0, 1, 2, 3]  # what comes before it does not wait for it
        other = [9, engine.image(7, 10, groups=()), 5]
        assert engine.ask(other, max_tokens=5).answer()[1] == expected(other, 5)
        assert engine.graphs.encoded == [7]


@pytest.mark.seed("S16", "S17", "S20")
@pytest.mark.parametrize("batch", [1, 3, 5, 64])
def test_an_image_larger_than_a_batch_takes_several(batch: int) -> None:
    with FakeEngine(hashed, batch=batch) as engine:
        prompt = [2, engine.image(3, 12, groups=()), 5]
        assert engine.ask(prompt, max_tokens=4).answer()[1] == expected(prompt, 4)
        assert max(map(len, engine.graphs.steps)) <= batch


@pytest.mark.seed("S33", "S34", "S37", "S56")
@pytest.mark.parametrize("batch", [2, 3, 4, 5, 7, 8])
def test_the_inputs_of_a_group_are_in_one_batch(batch: int) -> None:
    with FakeEngine(hashed, batch=batch) as engine:
        prompt = [2, 3, engine.image(3, 4), 5, 6, engine.image(4, 5), 7]
        assert engine.ask(prompt, max_tokens=4).answer()[1] == expected(prompt, 4)
        groups = [{3, 4, 5, 6}, {11, 12, 13, 14, 15}]
        for step in positions(engine):
            for group in groups:
                assert group <= set(step) or group.isdisjoint(step)
        engine.wait_until_idle()


@pytest.mark.seed("S34", "S56")
def test_a_group_larger_than_a_batch_is_computed_whole_without_starving_others() -> None:
    with FakeEngine(hashed, slots=3, batch=4, context=64) as engine:
        running = engine.ask([2], max_tokens=50)
        wait_until(lambda: running.sequence.generated >= 3, "three tokens are there")
        prompt = [9, engine.image(3, 12), 5]
        big, long = engine.ask(prompt, max_tokens=3), engine.ask([4] * 30, max_tokens=3)
        assert big.answer()[1] == expected(prompt, 3)
        assert long.answer()[1] == expected([4] * 30, 3)
        assert running.answer()[1] == expected([2], 50)
        engine.wait_until_idle()


@pytest.mark.seed("S31", "S32", "S38")
def test_twenty_images_in_a_prompt_are_encoded_one_by_one() -> None:
    with FakeEngine(hashed, context=128) as engine:
        prompt: list[Any] = [2]
        for content in range(20):
            prompt += [engine.image(content, 2), 5]
        assert engine.ask(prompt, max_tokens=2).answer()[1] == expected(prompt, 2)
        assert engine.graphs.encoded == list(range(20))


@pytest.mark.seed("S53", "S54")
def test_prompts_with_different_images_share_only_the_prefix_before_them() -> None:
    with FakeEngine(hashed) as engine:
        one, two = ([2, 3, engine.image(content, 4), 5] for content in (1, 2))
        engine.ask(one, max_tokens=2).answer()
        second = engine.ask(two, max_tokens=2)
        assert second.answer()[1] == expected(two, 2)
        assert second.sequence.cached == 3  # with the token that begins every image
        third = engine.ask([*one, 6, 6], max_tokens=2)
        assert third.answer()[1] == expected([*one, 6, 6], 2)
        assert third.sequence.cached == len(history_of(one))


def test_a_cached_image_is_not_encoded_again() -> None:
    with FakeEngine(hashed, kept_bytes=0) as engine:
        prompt = [2, engine.image(1, 4), 5]
        engine.ask(prompt, max_tokens=2).answer()
        engine.ask(
            [9, engine.image(2, 4)], max_tokens=1
        ).answer()  # takes the place of its embedding
        again = [*prompt, 7]
        assert engine.ask(again, max_tokens=2).answer()[1] == expected(again, 2)
        assert engine.graphs.encoded == [1, 2]
        elsewhere = [8, *prompt]
        assert engine.ask(elsewhere, max_tokens=2).answer()[1] == expected(elsewhere, 2)
        assert engine.graphs.encoded == [1, 2, 1]


@pytest.mark.seed("S62", "S78")
def test_other_requests_continue_between_images() -> None:
    with FakeEngine(hashed, slots=3, context=64) as engine:
        asked = []
        for content in range(3):
            prompt: list[Any] = [2 + content]
            for each in range(4):
                prompt += [engine.image(10 * content + each, 3), 5]
            asked.append((prompt, engine.ask(prompt, max_tokens=10)))
        for prompt, one in asked:
            assert one.answer()[1] == expected(prompt, 10)
        engine.wait_until_idle()


@pytest.mark.seed("S62", "S78")
def test_other_requests_continue_between_chunks_of_an_encoder() -> None:
    with FakeEngine(hashed, slots=2, context=64) as engine:
        engine.graphs.chunks = 5
        prompt = [3, engine.image(7, 4), 5]
        running, seeing = engine.runner.call(  # both arrive between the same two steps
            lambda: (engine.ask([2], max_tokens=60), engine.ask(prompt, max_tokens=3))
        )
        assert seeing.answer()[1] == expected(prompt, 3)
        assert running.answer()[1] == expected([2], 60)
        encoding = "".join(each[0] for each in engine.graphs.order).strip("b")
        assert encoding == "cbcbcbcbi"
        assert engine.graphs.encoded == [7]
        assert engine.scheduler.encoder_cache.partial(7) is None
        engine.wait_until_idle()


def test_different_images_get_different_numbers_from_many_threads() -> None:
    store = EncoderCache(1)
    shown: list[Any] = [np.full((1, 1, 3), index, np.float32) for index in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(store.number, [*shown, *shown]))
    assert numbers[:2000] == numbers[2000:]
    assert len(set(numbers)) == 2000


def test_the_number_of_the_least_recent_image_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_cache, "_MAX_NUMBERED", 3)
    store = EncoderCache(1)
    shown: list[Any] = [np.full((1, 1, 3), index, np.float32) for index in range(5)]
    assert [store.number(image) for image in shown] == [0, 1, 2, 3, 4]
    assert [store.number(shown[index]) for index in (2, 4, 0)] == [2, 4, 5]


def test_the_rows_of_several_images_are_concatenated_once() -> None:
    store = EncoderCache(10**6)
    for number in range(3):
        store.keep(number, np.full((2, 3), number, np.float32))
    both = store.concatenated((2, 0))
    assert both[:, 0].tolist() == [2, 2, 0, 0]
    assert store.concatenated((2, 0)) is both
    assert not both.flags.writeable
    assert store.concatenated((1,)) is store[1]


def test_partial_embeddings_of_a_few_images_are_kept() -> None:
    store = EncoderCache(0)
    rows = np.ones((2, 3), np.float32)
    for number in range(6):
        store.keep_partial(number, rows)
    store.keep_partial(5, rows)
    assert [store.partial(number) is not None for number in range(6)] == [False] * 4 + [True] * 2
    assert store.partial(5).chunks == 2
    store.keep(5, rows)
    assert store.partial(5) is None


def test_an_image_that_cannot_be_encoded_ends_only_its_own_request() -> None:
    class Failing(FakeGraphs):
        def encode(self, item: MediaItem) -> Future[Computed]:
            if item.arrays["content"][0] == 9:
                raise ComputeError("no memory for the encoder")
            return super().encode(item)

    with FakeEngine(hashed, slots=2, graphs=Failing) as engine:
        good = [3, engine.image(1, 3)]
        bad, one = engine.ask([2, engine.image(9, 3)]), engine.ask(good, max_tokens=8)
        assert bad.answer()[2] == "no memory for the encoder"
        assert one.answer()[1] == expected(good, 8)
        engine.wait_until_idle()


@pytest.mark.seed("S80")
@pytest.mark.parametrize(
    ("groups", "keep", "capacity", "expected"),
    [
        ([], 5, 2048, (5, 1026)),
        ([(1024, 512)], 5, 2048, (5, 1536)),
        ([(10, 512)], 5, 2048, (5, 1026)),
        ([(0, 10), (10, 10), (20, 10)], 0, 32, (0, 20)),
    ],
)
def test_a_shift_drops_whole_images(
    groups: list[tuple[int, int]], keep: int, capacity: int, expected: tuple[int, int]
) -> None:
    with FakeEngine(hashed, context=capacity, batch=4096) as engine:
        engine.runner.close()
        engine.runner.submit = cast("Any", lambda _sequence: None)
        at = 0
        prompt: list[Any] = []
        for start, length in groups:
            prompt += [2] * (start - at)
            prompt.append(engine.image(1, length - 2, groups=((0, length),)))
            at = start + length
        prompt += [2] * (capacity - at)
        sequence = engine.ask(prompt).sequence
        engine.kv_manager.append(sequence.cell_table, capacity)
        assert shift_range(sequence, keep) == expected


@pytest.mark.seed("S80")
def test_a_full_context_with_images_continues() -> None:
    with FakeEngine(hashed, context=24) as engine:
        prompt = [2, 3, engine.image(1, 4), 5, engine.image(2, 4), 6]
        asked = engine.ask(prompt, max_tokens=60, keep=2)
        assert len(asked.answer()[1]) == 60
        assert asked.sequence.dropped > 0
        engine.wait_until_idle()


@pytest.mark.seed("S56")
@pytest.mark.parametrize("seed", range(6))
def test_prompts_with_images_give_the_same_answers_as_alone(seed: int) -> None:
    source = random.Random(seed)
    batch, slots = source.choice([3, 6, 16]), source.choice([1, 2, 4])
    with FakeEngine(hashed, slots=slots, context=64, batch=batch, kept_bytes=200) as engine:
        asked = []
        for _ in range(10):
            prompt: list[Any] = [source.randrange(2, 6)]
            for _ in range(source.randrange(3)):
                content, rows = source.randrange(4), source.randrange(1, 9)
                groups = source.choice([None, ()])
                number = 100 * content + rows
                prompt.append(engine.image(content, rows, groups=groups, number=number))
                prompt += [source.randrange(2, 6) for _ in range(source.randrange(4))]
            asked.append((prompt, engine.ask(prompt, max_tokens=source.randrange(1, 6))))
            if source.random() < 0.2:
                engine.runner.cancel(source.choice(asked)[1].sequence)
        for prompt, one in asked:
            _, tokens, reason = one.answer()
            assert reason in {"length", "cancelled"}
            assert tokens == expected(prompt, len(tokens))
        engine.wait_until_idle()


def test_small_images_too_are_evicted() -> None:
    store = EncoderCache(2**28)
    for number in range(1000):
        store.keep(number, np.zeros((16, 128), np.float32))
    assert [number for number in range(1000) if number in store] == [*range(744, 1000)]


@pytest.mark.parametrize(
    "rows",
    [
        [CHUNK_ROWS // 4] * 13,
        [CHUNK_ROWS * 2] * 3,
        [CHUNK_ROWS // 2] * 3 + [CHUNK_ROWS // 8] * 20,  # it merges its rows on the way
        [CHUNK_ROWS + 1] * 2 + [CHUNK_ROWS // 3] * 7 + [1],
    ],
)
def test_each_chunk_of_an_encoder_continues_where_the_one_before_ended(rows: list[int]) -> None:
    """Also where later layers have fewer rows."""
    begins, number, is_last = 0, 0, False
    while not is_last:
        pauses, chunk = chunk_of(rows, number)
        begun = [at for at, seen in enumerate(pauses) if seen is chunk.given]
        assert begun == ([begins] if number else [])
        is_last = chunk.result is None
        ended = [at for at, seen in enumerate(pauses) if seen is chunk.result]
        ends = len(rows) if is_last else ended[0]
        layers = rows[begins:ends]
        assert layers
        assert len(layers) == 1 or sum(layers) <= CHUNK_ROWS
        begins, number = ends, number + 1
    assert begins == len(rows)


def chunk_of(rows: list[int], number: int) -> tuple[list[Any], EncoderChunk]:
    """A chunk of an encoder whose layers have these rows, and what each pause returned."""
    context = cast("Any", SimpleNamespace(input=lambda _, shape, __: SimpleNamespace(shape=shape)))
    chunk = EncoderChunk(context, number)
    return [context.pauses(SimpleNamespace(shape=(each, 8))) for each in rows], chunk
