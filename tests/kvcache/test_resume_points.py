"""In groups with a window, the rows from which others go on outlive those that are only passed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from support.kv_groups import group_of

from tampu.kvcache import CacheSize, CellTable, KVCacheManager, KVCacheSpec

WINDOW = KVCacheSpec(window=300)
BATCH = 128
MANY = 3000


def keys(seed: int, count: int) -> npt.NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 1 << 30, count).astype(np.int32)


def manager_of(slots: int = 1) -> KVCacheManager:
    size = CacheSize(slots=slots, context=MANY, batch=BATCH)
    specs = (KVCacheSpec(), WINDOW)
    return KVCacheManager([group_of(spec, size.cells(spec)) for spec in specs])


def read(manager: KVCacheManager, prompt: npt.NDArray[Any]) -> tuple[CellTable, int]:
    """Compute a prompt in batches, as the scheduler does; return how much of it was cached."""
    table = manager.allocate(MANY)
    cached = manager.match_prefix(table, prompt[:-1])
    while table.length < len(prompt):
        count = min(BATCH, len(prompt) - table.length)
        assert manager.append(table, count, prompt, is_prompt=True)
        manager.insert(table, prompt[: table.length])
    return table, cached


def answer(manager: KVCacheManager, table: CellTable, tokens: int) -> None:
    for _ in range(tokens):
        assert manager.append(table, 1)


def test_a_long_answer_leaves_what_its_prompt_needs_to_be_asked_again() -> None:
    manager = manager_of()
    prompt, reply = keys(1, 500), keys(2, 1500)
    table, _ = read(manager, prompt)
    answer(manager, table, len(reply))
    manager.free(table, np.concatenate([prompt, reply]))
    again, cached = read(manager, prompt)
    assert cached == len(prompt) - 1
    manager.check([again])


def test_a_prompt_may_differ_a_few_tokens_before_its_end() -> None:
    """As where what opens the reasoning is left out of the history."""
    manager = manager_of()
    prompt, reply = keys(1, 500), keys(2, 1500)
    table, _ = read(manager, prompt)
    answer(manager, table, len(reply))
    manager.free(table, np.concatenate([prompt, reply]))
    _, cached = read(manager, np.concatenate([prompt[:-4], keys(3, 100)]))
    assert cached == len(prompt) - 4


def test_a_message_is_changed_after_a_long_one_was_answered() -> None:
    manager = manager_of()
    first, message = keys(1, 900), keys(2, 800)
    table, _ = read(manager, first)
    manager.free(table, first)
    table, cached = read(manager, np.concatenate([first, message]))
    assert cached == len(first)
    manager.free(table, np.concatenate([first, message]))
    _, cached = read(manager, np.concatenate([first, keys(3, 50)]))
    assert cached == len(first)


def test_what_many_begin_with_stays_while_each_goes_on() -> None:
    manager = manager_of(slots=2)
    system = keys(1, 700)
    for seed in range(2, 8):
        prompt = np.concatenate([system, keys(seed, 90)])
        table, cached = read(manager, prompt)
        assert cached == (0 if seed == 2 else len(system))
        answer(manager, table, 400)
        manager.free(table, prompt)


def test_rows_near_the_end_stay_besides() -> None:
    manager = manager_of()
    first, message = keys(1, 900), keys(2, 800)
    table, _ = read(manager, first)
    manager.free(table, first)
    whole = np.concatenate([first, message])
    table, _ = read(manager, whole)
    manager.free(table, whole)
    _, cached = read(manager, np.concatenate([whole[:-50], keys(3, 50)]))
    assert cached == len(whole) - 50


def test_an_earlier_turn_is_changed_after_the_last_one_was() -> None:
    manager = manager_of()
    first, message = keys(1, 1300), keys(2, 500)
    whole = np.concatenate([first, message])
    for prompt, found in ((first, 0), (whole, 1300), (whole[:-50], 1750), (first, 1300)):
        prompt = np.concatenate([prompt, keys(found, 50)])
        table, cached = read(manager, prompt)
        assert cached == found
        manager.free(table, prompt)
