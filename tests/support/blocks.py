"""Blocks of rows that follow from their tokens, to keep and to look for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from tampu.kvcache.block_file import CacheKey, PrefixTokens, Present
from tampu.kvcache.block_index import BlockIndex, StoredBlock, spans

ROW = 8
KEY = CacheKey({"model": "a", "cache type": "f16"})
# The same number stands for other images in other processes.
IMAGES = [{0: b"x" * 32, 1: b"y" * 32}, {0: b"y" * 32, 1: b"x" * 32}]

tokens_of = st.builds(
    lambda keys, which: PrefixTokens(np.array(keys, np.int32), IMAGES[which]),
    st.lists(st.sampled_from([-2, -1, 0, 1, 2]), min_size=1, max_size=24),
    st.integers(0, 1),
)


def history(tokens: PrefixTokens, end: int) -> list[Any]:
    """Return the first tokens, images by their contents."""
    keys = tokens.keys[:end].tolist()
    return [key if key >= 0 else tokens.media[-1 - key] for key in keys]


def rows_of(tokens: PrefixTokens, start: int, end: int) -> npt.NDArray[np.uint8]:
    """Return rows that follow from all tokens before and at their position."""
    digests = [
        hashlib.sha256(repr(history(tokens, at + 1)).encode()).digest()[:ROW]
        for at in range(start, end)
    ]
    return np.frombuffer(b"".join(digests), np.uint8)


def keep(folder: BlockIndex, tokens: PrefixTokens, unit: int = 4) -> list[StoredBlock]:
    """Write the blocks of tokens that are not there yet; return all."""
    chain = folder.find(tokens)
    folder.use(chain)
    at = chain[-1].end if chain else 0
    for span in spans(at, len(tokens), (), unit):
        present = np.ones((1, span[1] - span[0]), np.bool_)
        block = folder.write(tokens, chain, span, present, [rows_of(tokens, *span)])
        if block is None:
            break
        chain.append(block)
    folder.use(chain)
    return chain


def into(memory: Sequence[memoryview] | None) -> Callable[[Present], Sequence[memoryview] | None]:
    """Return what has `BlockIndex.read` read into this memory."""
    return lambda _: memory


def check(folder: BlockIndex, tokens: PrefixTokens) -> int:
    """Assert that what is found for tokens are their rows; return for how many."""
    at = 0
    for block in folder.find_beginning(tokens):
        assert block.start == at
        memory = np.ones((block.end - block.start) * ROW, np.uint8)
        halves = [memory.data[:ROW], memory.data[ROW:]]
        read = folder.read(tokens, block, into(halves))
        if read is None:
            assert memory.min() == memory.max()  # all as before, or zero
            break
        assert read[1] is None
        own = memory[: (block.used - block.start) * ROW]
        assert own.tobytes() == rows_of(tokens, at, block.used).tobytes()
        returned = folder.read(tokens, block, into(None))
        assert returned is not None
        assert returned[1] is not None
        assert returned[1].tobytes() == memory.tobytes()
        at = block.used
    return at


def common(tokens: PrefixTokens, others: Sequence[PrefixTokens]) -> int:
    """Return how many tokens, images by their contents, begin one of the others, too."""
    best = 0
    mine = history(tokens, len(tokens))
    for other in others:
        pairs = zip(mine, history(other, len(other)), strict=False)
        best = max(best, [*(ours == theirs for ours, theirs in pairs), False].index(False))
    return best
