"""Images on their way: embedded once, kept whole, found again."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.fake_graphs import Desk, FakeGraphs
from support.waiting import wait_until

from tampu.errors import ComputeError
from tampu.runner import images
from tampu.runner.context_shift import shift_range
from tampu.runner.images import ImageStore


def hashed(history):
    """A token that depends on everything before it, images included."""
    value = 7
    for token in history:
        value = (value * 31 + token) % 1009
    return 2 + value % 20


def history_of(prompt):
    """What the cache holds of a prompt: tokens, and the rows of images."""
    held = []
    for item in prompt:
        if isinstance(item, int):
            held.append(item)
        else:
            content = int(item.image.arrays["content"][0])
            held += [30, *(100 * content + row for row in range(item.image.rows)), 31]
    return held


def alone(prompt, count):
    history = history_of(prompt)
    start = len(history)
    for _ in range(count):
        history.append(hashed(history))
    return history[start:]


def positions(desk):
    return [[position for position, _ in step] for step in desk.graphs.steps]


@pytest.mark.seed("S61", "S64", "S81")
def test_an_answer_depends_on_the_image():
    with Desk(hashed) as desk:
        for content in (1, 2):
            prompt = [2, 3, desk.picture(content, 4), 5]
            assert desk.ask(prompt, max_tokens=5).answer()[1] == alone(prompt, 5)
        desk.rest()


@pytest.mark.seed("S19", "S21", "S22")
def test_an_image_is_embedded_when_it_is_needed_and_once():
    with Desk(hashed, batch=4) as desk:
        prompt = [2, 3, 4, desk.picture(7, 10, groups=()), 5]
        assert desk.ask(prompt, max_tokens=5).answer()[1] == alone(prompt, 5)
        assert desk.graphs.encoded == [7]
        assert positions(desk)[0] == [0, 1, 2, 3]  # what comes before it does not wait for it
        other = [9, desk.picture(7, 10, groups=()), 5]
        assert desk.ask(other, max_tokens=5).answer()[1] == alone(other, 5)
        assert desk.graphs.encoded == [7]


@pytest.mark.seed("S16", "S17", "S20")
@pytest.mark.parametrize("batch", [1, 3, 5, 64])
def test_an_image_larger_than_the_batch_goes_through_several(batch):
    with Desk(hashed, batch=batch) as desk:
        prompt = [2, desk.picture(3, 12, groups=()), 5]
        assert desk.ask(prompt, max_tokens=4).answer()[1] == alone(prompt, 4)
        assert max(map(len, desk.graphs.steps)) <= batch


@pytest.mark.seed("S33", "S34", "S37", "S56")
@pytest.mark.parametrize("batch", [2, 3, 4, 5, 7, 8])
def test_the_inputs_of_a_group_are_in_one_batch(batch):
    with Desk(hashed, batch=batch) as desk:
        prompt = [2, 3, desk.picture(3, 4), 5, 6, desk.picture(4, 5), 7]
        assert desk.ask(prompt, max_tokens=4).answer()[1] == alone(prompt, 4)
        groups = [{3, 4, 5, 6}, {11, 12, 13, 14, 15}]
        for step in positions(desk):
            for group in groups:
                assert group <= set(step) or group.isdisjoint(step)
        desk.rest()


@pytest.mark.seed("S34", "S56")
def test_a_group_larger_than_a_batch_goes_in_whole_and_nobody_starves():
    with Desk(hashed, slots=3, batch=4, context=64) as desk:
        running = desk.ask([2], max_tokens=50)
        wait_until(lambda: running.sequence.generated >= 3, "three tokens are there")
        prompt = [9, desk.picture(3, 12), 5]
        big, long = desk.ask(prompt, max_tokens=3), desk.ask([4] * 30, max_tokens=3)
        assert big.answer()[1] == alone(prompt, 3)
        assert long.answer()[1] == alone([4] * 30, 3)
        assert running.answer()[1] == alone([2], 50)
        desk.rest()


@pytest.mark.seed("S31", "S32", "S38")
def test_twenty_images_in_a_prompt_are_embedded_one_by_one():
    with Desk(hashed, context=128) as desk:
        prompt = [2]
        for content in range(20):
            prompt += [desk.picture(content, 2), 5]
        assert desk.ask(prompt, max_tokens=2).answer()[1] == alone(prompt, 2)
        assert desk.graphs.encoded == list(range(20))


@pytest.mark.seed("S53", "S54")
def test_prompts_with_different_images_share_only_what_is_before():
    with Desk(hashed) as desk:
        one, two = ([2, 3, desk.picture(content, 4), 5] for content in (1, 2))
        desk.ask(one, max_tokens=2).answer()
        second = desk.ask(two, max_tokens=2)
        assert second.answer()[1] == alone(two, 2)
        assert second.sequence.cached == 3  # with the token that begins every image
        third = desk.ask([*one, 6, 6], max_tokens=2)
        assert third.answer()[1] == alone([*one, 6, 6], 2)
        assert third.sequence.cached == len(history_of(one))


def test_an_image_that_is_in_the_cache_is_not_embedded_again():
    with Desk(hashed, kept_bytes=0) as desk:
        prompt = [2, desk.picture(1, 4), 5]
        desk.ask(prompt, max_tokens=2).answer()
        desk.ask([9, desk.picture(2, 4)], max_tokens=1).answer()  # takes the place of its embedding
        again = [*prompt, 7]
        assert desk.ask(again, max_tokens=2).answer()[1] == alone(again, 2)
        assert desk.graphs.encoded == [1, 2]
        elsewhere = [8, *prompt]
        assert desk.ask(elsewhere, max_tokens=2).answer()[1] == alone(elsewhere, 2)
        assert desk.graphs.encoded == [1, 2, 1]


@pytest.mark.seed("S62", "S78")
def test_others_go_on_between_images():
    with Desk(hashed, slots=3, context=64) as desk:
        asked = []
        for content in range(3):
            prompt = [2 + content]
            for each in range(4):
                prompt += [desk.picture(10 * content + each, 3), 5]
            asked.append((prompt, desk.ask(prompt, max_tokens=10)))
        for prompt, one in asked:
            assert one.answer()[1] == alone(prompt, 10)
        desk.rest()


@pytest.mark.seed("S62", "S78")
def test_others_go_on_between_the_pieces_of_an_image():
    with Desk(hashed, slots=2, context=64) as desk:
        desk.graphs.chunks = 5
        running = desk.ask([2], max_tokens=60)
        wait_until(lambda: running.sequence.generated >= 3, "three tokens are there")
        prompt = [3, desk.picture(7, 4), 5]
        assert desk.ask(prompt, max_tokens=3).answer()[1] == alone(prompt, 3)
        assert running.answer()[1] == alone([2], 60)
        encoding = "".join(each[0] for each in desk.graphs.order).strip("b")
        assert encoding == "cbcbcbcbi"
        assert desk.graphs.encoded == [7]
        assert desk.scheduler.images.partial(7) is None
        desk.rest()


def test_no_two_pictures_get_the_same_number_whoever_asks_at_once():
    store = ImageStore(1)
    pictures = [np.full((1, 1, 3), index, np.float32) for index in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(store.number, [*pictures, *pictures]))
    assert numbers[:2000] == numbers[2000:]
    assert len(set(numbers)) == 2000


def test_of_very_many_pictures_the_oldest_is_forgotten_and_its_number_with_it(monkeypatch):
    monkeypatch.setattr(images, "_MAX_NUMBERED", 3)
    store = ImageStore(1)
    pictures = [np.full((1, 1, 3), index, np.float32) for index in range(5)]
    assert [store.number(picture) for picture in pictures] == [0, 1, 2, 3, 4]
    assert [store.number(pictures[index]) for index in (2, 4, 0)] == [2, 4, 5]


def test_several_images_are_put_together_once():
    store = ImageStore(10**6)
    for number in range(3):
        store.keep(number, np.full((2, 3), number, np.float32))
    both = store.concatenated((2, 0))
    assert both[:, 0].tolist() == [2, 2, 0, 0]
    assert store.concatenated((2, 0)) is both
    assert not both.flags.writeable
    assert store.concatenated((1,)) is store[1]


def test_pieces_of_a_few_images_are_kept_and_the_others_begin_anew():
    store = ImageStore(0)
    rows = np.ones((2, 3), np.float32)
    for number in range(6):
        store.keep_partial(number, rows)
    store.keep_partial(5, rows)
    assert [store.partial(number) is not None for number in range(6)] == [False] * 4 + [True] * 2
    assert store.partial(5).chunks == 2
    store.keep(5, rows)
    assert store.partial(5) is None


def test_an_image_that_cannot_be_embedded_ends_its_own_request():
    class Failing(FakeGraphs):
        def encode(self, image):
            if image.arrays["content"][0] == 9:
                raise ComputeError("no memory for the encoder")
            return super().encode(image)

    with Desk(hashed, slots=2, graphs=Failing) as desk:
        good = [3, desk.picture(1, 3)]
        bad, one = desk.ask([2, desk.picture(9, 3)]), desk.ask(good, max_tokens=8)
        assert bad.answer()[2] == "no memory for the encoder"
        assert one.answer()[1] == alone(good, 8)
        desk.rest()


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
def test_a_shift_drops_images_whole(groups, keep, capacity, expected):
    with Desk(hashed, context=capacity, batch=4096) as desk:
        desk.runner.close()
        desk.runner.submit = lambda _sequence: None
        prompt, at = [], 0
        for start, length in groups:
            prompt += [2] * (start - at)
            prompt.append(desk.picture(1, length - 2, groups=((0, length),)))
            at = start + length
        prompt += [2] * (capacity - at)
        sequence = desk.ask(prompt).sequence
        desk.kv_manager.append(sequence.cell_table, capacity)
        assert shift_range(sequence, keep) == expected


@pytest.mark.seed("S80")
def test_a_full_context_with_images_goes_on():
    with Desk(hashed, context=24) as desk:
        prompt = [2, 3, desk.picture(1, 4), 5, desk.picture(2, 4), 6]
        asked = desk.ask(prompt, max_tokens=60, keep=2)
        assert len(asked.answer()[1]) == 60
        assert asked.sequence.dropped > 0
        desk.rest()


@pytest.mark.seed("S56")
@pytest.mark.parametrize("seed", range(6))
def test_images_in_any_order_and_size_give_what_each_prompt_gives_alone(seed):
    source = random.Random(seed)
    batch, slots = source.choice([3, 6, 16]), source.choice([1, 2, 4])
    with Desk(hashed, slots=slots, context=64, batch=batch, kept_bytes=200) as desk:
        asked = []
        for _ in range(10):
            prompt = [source.randrange(2, 6)]
            for _ in range(source.randrange(3)):
                content, rows = source.randrange(4), source.randrange(1, 9)
                groups = source.choice([None, ()])
                number = 100 * content + rows
                prompt.append(desk.picture(content, rows, groups=groups, number=number))
                prompt += [source.randrange(2, 6) for _ in range(source.randrange(4))]
            asked.append((prompt, desk.ask(prompt, max_tokens=source.randrange(1, 6))))
            if source.random() < 0.2:
                desk.runner.cancel(source.choice(asked)[1].sequence)
        for prompt, one in asked:
            _, tokens, reason = one.answer()
            assert reason in {"length", "cancelled"}
            assert tokens == alone(prompt, len(tokens))
        desk.rest()
