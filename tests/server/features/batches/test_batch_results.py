"""Results of a batch's rows are recorded together, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tampu.errors import StoreError
from tampu.server.features.batches import input as batch_input
from tampu.server.features.batches import results as batch_results
from tampu.server.features.batches.input import LineGroup, check_input, grouped
from tampu.server.features.batches.results import ResultQueue
from tampu.server.features.batches.store import BatchUsage, Result, Row


def result(number: int) -> Result:
    return Result(Row(number, str(number), 0, 1), b"", BatchUsage(), is_error=False)


class Records:
    """A database that takes as long as it is held."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, results: Sequence[Result]) -> None:
        self.groups.append([each.row.number for each in results])
        await self.may_end.wait()


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_results_that_come_during_a_transaction_share_the_next_one() -> None:
    async def test() -> list[list[int]]:
        records = Records()
        records.may_end.clear()
        async with ResultQueue(records, 0) as results, asyncio.TaskGroup() as group:
            await results.put(result(0), group)
            await settled()
            for number in (1, 2, 3):
                await results.put(result(number), group)
            await settled()
            assert records.groups == [[0]]
            records.may_end.set()
        return records.groups

    assert asyncio.run(test()) == [[0], [1, 2, 3]]


def test_results_that_come_during_the_pause_are_recorded_at_a_cancelled_end() -> None:
    records = Records()

    async def work() -> None:
        async with ResultQueue(records, pause_s=1e6) as results, asyncio.TaskGroup() as group:
            await results.put(result(0), group)
            await settled()
            await results.put(result(1), group)
            await results.put(result(2), group)
            await asyncio.Event().wait()

    async def test() -> None:
        task = asyncio.create_task(work())
        await settled()
        await settled()
        assert records.groups == [[0]]
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    asyncio.run(test())
    assert records.groups == [[0], [1, 2]]


async def test_rows_wait_for_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_results, "_MAX_WAITING", 2)

    records = Records()
    records.may_end.clear()
    async with ResultQueue(records, 0) as results, asyncio.TaskGroup() as group:
        await results.put(result(0), group)
        await settled()
        rows = [group.create_task(results.put(result(n), group)) for n in (1, 2, 3)]
        await settled()
        assert [row.done() for row in rows] == [True, True, False]
        records.may_end.set()
    assert sorted(n for group in records.groups for n in group) == [0, 1, 2, 3]


def test_an_error_of_the_database_ends_the_rows() -> None:
    async def refuse(_: Sequence[Result]) -> None:
        raise StoreError("the disk is full")

    async def test() -> None:
        async with ResultQueue(refuse, 0) as results, asyncio.TaskGroup() as group:
            await results.put(result(0), group)
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as found:
        asyncio.run(test())
    assert found.group_contains(StoreError, match="the disk is full")


def test_lines_are_read_in_groups_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_input, "_GROUP_BYTES", 10)
    lengths = [4, 6, 1, 30, 2, 8, 1]
    rows = [Row(number, "", 0, length) for number, length in enumerate(lengths)]
    found = [[row.length for row in group] for group in grouped(rows)]
    assert found == [[4, 6], [1], [30], [2, 8], [1]]
    assert [*grouped([])] == []


def test_the_lines_of_a_group_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    texts = [
        f'{{"custom_id": "{n}", "method": "POST", "url": "/x", "body": {{"n": {n}}}}}\n'
        for n in range(3)
    ]
    path.write_text("".join(texts))
    rows, errors = check_input(path, "/x")
    assert not errors

    async def test() -> list[bytes]:
        lines = LineGroup(path, rows)
        first = await lines.take(rows[0])
        path.unlink()
        others = await asyncio.gather(*(lines.take(row) for row in rows[:0:-1]))
        return [bytes(line.body) for line in (first, *others)]

    assert asyncio.run(test()) == [b'{"n": 0}', b'{"n": 2}', b'{"n": 1}']
