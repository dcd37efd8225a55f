"""Blocks of rows on disk: never rows of other tokens, whatever was written, deleted or damaged."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.blocks import IMAGES, KEY, ROW, check, common, into, keep, rows_of, tokens_of

from tampu.kvcache.block_file import CacheKey, PrefixTokens
from tampu.kvcache.block_folder import BlockFolder, kept_files
from tampu.kvcache.block_index import BlockIndex, StoredBlock


def on_disk(root: Path, limit: int = 10**9) -> BlockIndex:
    """Return the blocks in a folder."""
    return BlockIndex(BlockFolder(root, limit, KEY))


def path_of(root: Path, block: StoredBlock) -> Path:
    """Return the file of a block."""
    return BlockFolder(root, 0, KEY).folder / block.name


@given(st.lists(tokens_of, max_size=6), st.lists(tokens_of, max_size=4), st.integers(1, 8))
def test_rows_that_are_found_are_those_of_the_tokens(
    kept: Sequence[PrefixTokens], wanted: Sequence[PrefixTokens], unit: int
) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = on_disk(Path(place))
        for tokens in kept:
            keep(folder, tokens, unit)
        for tokens in kept:
            assert check(folder, tokens) == len(tokens)
        again = on_disk(Path(place))
        for tokens in wanted:
            assert check(again, tokens) >= common(tokens, kept)


def test_a_part_of_a_block_is_found_beside_a_shorter_whole_one(tmp_path: Path) -> None:
    folder = on_disk(tmp_path)
    long, short, wanted = (
        PrefixTokens(np.array(keys, np.int32), IMAGES[0]) for keys in ([0, 0, 1], [0], [0, 0])
    )
    keep(folder, long)
    folder.write(short, [], (0, 1), np.ones((1, 1), np.bool_), [rows_of(short, 0, 1)])
    assert [block.end for block in folder.find(wanted)] == [1]
    assert check(folder, wanted) == 2


@given(st.lists(tokens_of, min_size=1, max_size=4), st.integers(0, 10**6), st.integers(1, 255))
def test_a_damaged_file_is_dropped_and_no_other_rows_are_found(
    kept: Sequence[PrefixTokens], place: int, change: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        for tokens in kept:
            keep(on_disk(Path(root)), tokens)
        files = sorted(path for path, _ in kept_files(Path(root)))
        victim = files[place % len(files)]
        content = bytearray(victim.read_bytes())
        content[place % len(content)] ^= change
        victim.write_bytes(content)
        folder = on_disk(Path(root))
        for tokens in kept:
            check(folder, tokens)
        assert not victim.exists()


def test_memory_that_damaged_rows_were_read_into_is_zero(tmp_path: Path) -> None:
    tokens = PrefixTokens(np.arange(8, dtype=np.int32), {})
    (block,) = keep(on_disk(tmp_path), tokens, 8)
    path = path_of(tmp_path, block)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    memory = np.ones(8 * ROW, np.uint8)
    assert on_disk(tmp_path).read(tokens, block, into([memory.data])) is None
    assert not memory.any()


@pytest.mark.parametrize("size", [0, 10, 60])
def test_a_file_that_ends_early_is_dropped(tmp_path: Path, size: int) -> None:
    tokens = PrefixTokens(np.arange(8, dtype=np.int32), {})
    first, second = keep(on_disk(tmp_path), tokens)
    os.truncate(path_of(tmp_path, second), size)
    folder = on_disk(tmp_path)
    assert check(folder, tokens) == 4
    assert path_of(tmp_path, first).exists()
    assert not path_of(tmp_path, second).exists()
    keep(folder, tokens)
    assert check(folder, tokens) == 8


@given(st.lists(tokens_of, min_size=1, max_size=8), st.integers(300, 3000))
def test_the_bound_holds_and_what_was_used_last_stays(
    kept: Sequence[PrefixTokens], limit: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = on_disk(Path(root), limit)
        for tokens in kept:
            written = keep(folder, tokens)
            sizes = [status.st_size for _, status in kept_files(Path(root))]
            assert sum(sizes) <= limit
            assert check(folder, tokens) >= (written[-1].end if written else 0)


def test_the_least_recently_used_goes_first_and_the_end_of_a_sequence_before_its_beginning(
    tmp_path: Path,
) -> None:
    folder = on_disk(tmp_path)
    first, second = (
        keep(folder, PrefixTokens(np.arange(at, at + 8, dtype=np.int32), {})) for at in (0, 100)
    )
    folder.use(first)
    order = [second[1], second[0], first[1], first[0]]
    sizes = [path_of(tmp_path, each).stat().st_size for each in order]
    for count in range(4):
        tight = BlockFolder(tmp_path, sum(sizes[count:]), KEY)
        assert tight.make_room(0)
        assert [path_of(tmp_path, each).exists() for each in order] == [
            at >= count for at in range(4)
        ]


def test_a_block_larger_than_the_limit_evicts_nothing(tmp_path: Path) -> None:
    kept = keep(on_disk(tmp_path), PrefixTokens(np.arange(8, dtype=np.int32), {}))
    assert kept
    assert not BlockFolder(tmp_path, 10**6, KEY).make_room(10**6 + 1)
    assert all(path_of(tmp_path, each).exists() for each in kept)


def test_another_models_blocks_are_not_found(tmp_path: Path) -> None:
    tokens = PrefixTokens(np.arange(8, dtype=np.int32), {})
    keep(on_disk(tmp_path), tokens)
    other = CacheKey({**KEY.facts, "cache type": "q8_0"})
    assert BlockIndex(BlockFolder(tmp_path, 10**9, other)).find_beginning(tokens) == []
    assert KEY.differences(other.facts) == ["cache type"]


def test_blocks_that_another_process_wrote_or_deleted_are_noticed(tmp_path: Path) -> None:
    tokens = PrefixTokens(np.arange(8, dtype=np.int32), {})
    ours, theirs = (on_disk(tmp_path) for _ in range(2))
    assert ours.find(tokens) == []
    written = keep(theirs, tokens)
    assert ours.find(tokens) == written
    path_of(tmp_path, written[1]).unlink()
    assert check(ours, tokens) == 4
