"""Locks and leases, between threads and between processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from support.waiting import PATIENCE_S

from tampu.store import Digest, Lease
from tampu.store.layout import Layout
from tampu.store.locks import PolledLock, leased_digests, locked

A, B = Digest.of(b"a"), Digest.of(b"b")
HOLD = """
import sys, time
from pathlib import Path
from tampu.store import Digest, Lease
from tampu.store.layout import Layout
lease = Lease(Layout(Path(sys.argv[1])))
lease.add([Digest.of(b"a")])
print("held", flush=True)
time.sleep(10**6)
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def test_shared_holders_do_not_wait_for_each_other(layout: Layout) -> None:
    with locked(layout.lock, shared=True), locked(layout.lock, shared=True):
        pass


def test_exclusive_holders_wait_for_each_other(layout: Layout) -> None:
    order = []
    is_held = threading.Event()

    def other() -> None:
        with locked(layout.lock):
            is_held.set()
            order.append("other")

    with locked(layout.lock):
        thread = threading.Thread(target=other)
        thread.start()
        with layout.lock.open("rb") as again, pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not is_held.is_set()
        order.append("first")
    thread.join(PATIENCE_S)
    assert order == ["first", "other"]


def test_a_polled_lock_has_one_holder_and_leaves_no_file(layout: Layout) -> None:
    path = layout.blob_lock(A)
    with closing(PolledLock(path)) as first, closing(PolledLock(path)) as second:
        assert first.acquire()
        assert not second.acquire()
        first.close()
        assert second.acquire()
    assert not path.exists()


def test_polled_locks_of_many_threads_never_overlap(layout: Layout) -> None:
    path = layout.blob_lock(A)
    inside, most = [], []

    def work(_: int) -> None:
        for _ in range(50):
            with closing(PolledLock(path)) as turn:
                while not turn.acquire():
                    time.sleep(0)
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert (max(most), len(most)) == (1, 300)
    assert not path.exists()


def test_a_lease_keeps_blobs_until_it_ends(layout: Layout) -> None:
    with Lease(layout) as lease:
        lease.add([A])
        lease.add([B])
        assert leased_digests(layout) == {A, B}
    assert leased_digests(layout) == set()
    lease.close()


def test_the_lease_of_a_dead_process_ends(layout: Layout) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(layout.root)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "held\n"
        assert leased_digests(layout) == {A}
        os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
    assert leased_digests(layout) == set()
    assert list(layout.leases.iterdir()) == []


def test_a_truncated_line_does_not_affect_others(layout: Layout) -> None:
    with Lease(layout) as lease:
        lease.add([A])
        (path,) = layout.leases.iterdir()
        path.write_text(path.read_text() + "sha256:0123")
        assert leased_digests(layout) == {A}
