"""Blocks of rows on disk: never rows of other tokens, whatever was written, deleted or damaged."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.kvcache.block_file import CacheKey, PrefixTokens
from tampu.kvcache.block_folder import BlockFolder, KeptBlock, kept_files, spans

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
    return [key if key >= 0 else tokens.images[-1 - key] for key in keys]


def rows_of(tokens: PrefixTokens, start: int, end: int) -> npt.NDArray[np.uint8]:
    """Return rows that follow from all tokens before and at their position."""
    digests = [
        hashlib.sha256(repr(history(tokens, at + 1)).encode()).digest()[:ROW]
        for at in range(start, end)
    ]
    return np.frombuffer(b"".join(digests), np.uint8)


def keep(folder: BlockFolder, tokens: PrefixTokens, unit: int = 4) -> list[KeptBlock]:
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


def check(folder: BlockFolder, tokens: PrefixTokens) -> int:
    """Assert that what is found for tokens are their rows; return for how many."""
    at = 0
    for block in folder.find_beginning(tokens):
        assert block.start == at
        read = folder.read(tokens, block)
        if read is None:
            break
        count = block.used - block.start
        assert read[1][: count * ROW].tobytes() == rows_of(tokens, at, block.used).tobytes()
        at = block.used
    return at


@given(st.lists(tokens_of, max_size=6), st.lists(tokens_of, max_size=4), st.integers(1, 8))
def test_rows_that_are_found_are_those_of_the_tokens(
    kept: Sequence[PrefixTokens], wanted: Sequence[PrefixTokens], unit: int
) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = BlockFolder(Path(place), 10**9, KEY)
        for tokens in kept:
            keep(folder, tokens, unit)
        for tokens in kept:
            assert check(folder, tokens) == len(tokens)
        again = BlockFolder(Path(place), 10**9, KEY)
        for tokens in wanted:
            assert check(again, tokens) >= common(tokens, kept)


def test_a_part_of_a_block_is_found_beside_a_shorter_whole_one(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path, 10**9, KEY)
    long, short, wanted = (
        PrefixTokens(np.array(keys, np.int32), IMAGES[0]) for keys in ([0, 0, 1], [0], [0, 0])
    )
    keep(folder, long)
    folder.write(short, [], (0, 1), np.ones((1, 1), np.bool_), [rows_of(short, 0, 1)])
    assert [block.end for block in folder.find(wanted)] == [1]
    assert check(folder, wanted) == 2


def common(tokens: PrefixTokens, others: Sequence[PrefixTokens]) -> int:
    """Return how many tokens, before any image, begin one of the others, too."""
    best = 0
    for other in others:
        pairs = zip(tokens.keys.tolist(), other.keys.tolist(), strict=False)
        alike = [mine == theirs and mine >= 0 for mine, theirs in pairs]
        best = max(best, [*alike, False].index(False))
    return best


@given(st.lists(tokens_of, min_size=1, max_size=4), st.integers(0, 10**6), st.integers(1, 255))
def test_a_damaged_file_is_dropped_and_no_other_rows_are_found(
    kept: Sequence[PrefixTokens], place: int, change: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        for tokens in kept:
            keep(BlockFolder(Path(root), 10**9, KEY), tokens)
        files = sorted(path for path, _ in kept_files(Path(root)))
        victim = files[place % len(files)]
        content = bytearray(victim.read_bytes())
        content[place % len(content)] ^= change
        victim.write_bytes(content)
        folder = BlockFolder(Path(root), 10**9, KEY)
        for tokens in kept:
            check(folder, tokens)
        assert not victim.exists()


@pytest.mark.parametrize("size", [0, 10, 60])
def test_a_file_that_ends_early_is_dropped(tmp_path: Path, size: int) -> None:
    tokens = PrefixTokens(np.arange(8, dtype=np.int32), {})
    first, second = keep(BlockFolder(tmp_path, 10**9, KEY), tokens)
    os.truncate(second.path, size)
    folder = BlockFolder(tmp_path, 10**9, KEY)
    assert check(folder, tokens) == 4
    assert first.path.exists()
    assert not second.path.exists()
    keep(folder, tokens)
    assert check(folder, tokens) == 8


@given(st.lists(tokens_of, min_size=1, max_size=8), st.integers(300, 3000))
def test_the_bound_holds_and_what_was_used_last_stays(
    kept: Sequence[PrefixTokens], limit: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = BlockFolder(Path(root), limit, KEY)
        for tokens in kept:
            written = keep(folder, tokens)
            sizes = [status.st_size for _, status in kept_files(Path(root))]
            assert sum(sizes) <= limit
            assert check(folder, tokens) >= (written[-1].end if written else 0)


def test_the_least_recently_used_goes_first_and_the_end_of_a_sequence_before_its_beginning(
    tmp_path: Path,
) -> None:
    folder = BlockFolder(tmp_path, 10**9, KEY)
    first, second = (
        keep(folder, PrefixTokens(np.arange(at, at + 8, dtype=np.int32), {})) for at in (0, 100)
    )
    folder.use(first)
    order = [second[1], second[0], first[1], first[0]]
    sizes = [each.path.stat().st_size for each in order]
    for count in range(4):
        tight = BlockFolder(tmp_path, sum(sizes[count:]), KEY)
        assert tight.make_room(0)
        assert [each.path.exists() for each in order] == [at >= count for at in range(4)]


def test_another_models_blocks_are_not_found(tmp_path: Path) -> None:
    tokens = PrefixTokens(np.arange(8, dtype=np.int32), {})
    keep(BlockFolder(tmp_path, 10**9, KEY), tokens)
    other = CacheKey({**KEY.facts, "cache type": "q8_0"})
    assert BlockFolder(tmp_path, 10**9, other).find_beginning(tokens) == []
    assert KEY.differences(other.facts) == ["cache type"]


def test_blocks_that_another_process_wrote_or_deleted_are_noticed(tmp_path: Path) -> None:
    tokens = PrefixTokens(np.arange(8, dtype=np.int32), {})
    ours, theirs = (BlockFolder(tmp_path, 10**9, KEY) for _ in range(2))
    assert ours.find(tokens) == []
    written = keep(theirs, tokens)
    assert ours.find(tokens) == written
    written[1].path.unlink()
    assert check(ours, tokens) == 4
