"""What a model's process keeps of the memory that it has freed."""

import subprocess
import sys

import pytest

THREADS = """
import ctypes, threading
from tampu.worker.main import confine
confine()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
have_allocated = threading.Barrier(8)
def allocate():
    library.malloc(ctypes.c_size_t(10_000))
    have_allocated.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
library.malloc_info(0, ctypes.c_void_p.in_dll(library, "stdout"))
library.fflush(None)
"""


@pytest.mark.server
def test_threads_share_two_arenas_of_freed_memory() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True
    )
    assert 1 <= ended.stdout.count("<heap nr=") <= 2
