"""Blocks of rows in memory: never rows of other tokens, and never more than the limit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.blocks import KEY, check, common, keep, tokens_of

from tampu.kvcache.block_file import PrefixTokens
from tampu.kvcache.block_index import BlockIndex
from tampu.kvcache.block_memory import BlockMemory


@given(st.lists(tokens_of, max_size=6), st.lists(tokens_of, max_size=4), st.integers(1, 8))
def test_rows_in_memory_are_those_of_the_tokens(
    kept: Sequence[PrefixTokens], wanted: Sequence[PrefixTokens], unit: int
) -> None:
    blocks = BlockIndex(BlockMemory(10**9, KEY))
    for tokens in kept:
        keep(blocks, tokens, unit)
    for tokens in kept:
        assert check(blocks, tokens) == len(tokens)
    for tokens in wanted:
        assert check(blocks, tokens) >= common(tokens, kept)


@given(st.lists(tokens_of, min_size=1, max_size=8), st.integers(300, 3000))
def test_the_bound_of_memory_holds_and_what_was_used_last_stays(
    kept: Sequence[PrefixTokens], limit: int
) -> None:
    memory = BlockMemory(limit, KEY)
    blocks = BlockIndex(memory)
    for tokens in kept:
        written = keep(blocks, tokens)
        assert memory.size_bytes <= limit
        assert check(blocks, tokens) >= (written[-1].end if written else 0)


def test_in_memory_the_end_of_a_sequence_goes_before_its_beginning() -> None:
    memory = BlockMemory(10**9, KEY)
    blocks = BlockIndex(memory)
    first, second = (
        keep(blocks, PrefixTokens(np.arange(at, at + 8, dtype=np.int32), {})) for at in (0, 100)
    )
    memory.use([each.name for each in first])
    order = [each.name for each in (second[1], second[0], first[1], first[0])]
    sizes = [len(memory.open(name).read()) for name in order]
    for count in range(4):
        memory.limit_bytes = sum(sizes[count:])
        assert memory.make_room(0)
        assert [is_in(memory, name) for name in order] == [at >= count for at in range(4)]
        assert memory.size_bytes == sum(sizes[count:])


def is_in(memory: BlockMemory, name: str) -> bool:
    """Return whether a block is in memory."""
    try:
        return bool(memory.open(name).read())
    except FileNotFoundError:
        return False


def test_a_block_that_was_deleted_from_memory_is_not_found() -> None:
    memory = BlockMemory(10**9, KEY)
    blocks, tokens = BlockIndex(memory), PrefixTokens(np.arange(8, dtype=np.int32), {})
    written = keep(blocks, tokens)
    assert check(blocks, tokens) == 8
    memory.delete(written[1].name)
    assert check(blocks, tokens) == 4
