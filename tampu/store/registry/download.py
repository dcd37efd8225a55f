"""Downloads one blob: over several connections, resumable after a crash, hashed meanwhile.

Threads write chunks into a file of the blob's size, close to each other and in order. One more
thread hashes the bytes behind them, from the page cache, so that the hash is ready with the last
byte. A state file records which ranges are on the disk.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tampu.errors import DigestMismatchError, TampuError
from tampu.ml.atomic_file import atomic_file, make_folder, translate_os_errors, write_all
from tampu.store.blobs import Blobs
from tampu.store.layout import Layout
from tampu.store.manifests import BAD_JSON
from tampu.store.names import Digest
from tampu.store.registry.chunks import Chunk, ChunkScheduler
from tampu.store.registry.options import MAX_ATTEMPTS, RemoteOptions
from tampu.store.registry.remote import BlobSource
from tampu.store.registry.transport import NetworkError, RateLimiter, Response

PROGRESS_S = 0.06
SAVE_EVERY_BYTES = 64 << 20
SAVE_EVERY_S = 5.0
_USEFUL = 64 << 10  # an attempt that received so many bytes does not count as failed
_HASHED = 256 << 10  # at a time: fits a core's cache
_MAX_CHUNK_BYTES = 32 << 20
_MIN_CHUNK_BYTES = 1 << 20
LEAVING_S = 1.0
FIRST = 1
RAMP_S = 0.2
FAST_PER_SECOND = 50 << 20  # more connections do not help one that is this fast


Task = Callable[[ChunkScheduler, "SharedFile"], None]


class PartialState(msgspec.Struct, frozen=True):
    """The ranges of a blob that are on the disk."""

    size: int
    done: list[tuple[int, int]]


class Download:
    """The download of one blob. The caller holds the blob's lock and a lease on it."""

    def __init__(
        self,
        layout: Layout,
        digest: Digest,
        size: int,
        source: BlobSource,
        options: RemoteOptions,
        limiter: RateLimiter,
    ) -> None:
        self._layout = layout
        self._digest = digest
        self._size = size
        self._source = source
        self._options = options
        self._limiter = limiter
        self._path = layout.partial(digest)
        self._state_path = layout.partial_state(digest)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._responses: set[Response] = set()
        self._error: BaseException | None = None
        self._hash: Digest | None = None

    def run(self) -> Iterator[int]:
        """Download the blob, regularly yielding the number of bytes done.

        Closing the iterator stops it; the next download resumes.

        Raises:
            RegistryError: if the registry fails or refuses.
            DigestMismatchError: if the content does not match the digest; it is discarded.
            StoreError: if it cannot be written; what was written is kept.
        """
        with translate_os_errors(f"the blob {self._digest.short}"):
            make_folder(self._layout.incoming)
            done = self._begin()
            file = SharedFile(self._path, self._size)
        try:
            yield from self._transfer(ChunkScheduler(self._size, done, self._chunk_size()), file)
        finally:
            file.release()
        if self._hash != self._digest:
            self.forget()
            raise DigestMismatchError(f"the downloaded bytes do not match {self._digest}")
        Blobs(self._layout).adopt(self._path, self._digest)
        self._state_path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove the partial download."""
        self._state_path.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)

    def can_resume(self) -> bool:
        """Whether there is a partial download to resume."""
        return bool(self._read_state())

    # -- the state -------------------------------------------------------------------------------

    def _begin(self) -> list[tuple[int, int]]:
        """Return the ranges already on the disk; an invalid state counts as none."""
        done = self._read_state()
        if not done:
            self.forget()
        return done

    def _read_state(self) -> list[tuple[int, int]]:
        try:
            if self._path.stat().st_size != self._size:
                return []
            state = msgspec.json.decode(self._state_path.read_bytes(), type=PartialState)
        except (OSError, *BAD_JSON):
            return []
        is_sound = all(0 <= start <= end <= self._size for start, end in state.done)
        return state.done if is_sound and state.size == self._size else []

    def _save(self, scheduler: ChunkScheduler, file: SharedFile) -> None:
        done = scheduler.done()
        with translate_os_errors("the state of a download"):
            os.fdatasync(file.descriptor)
            content = msgspec.json.encode(PartialState(self._size, done))
            partial = self._layout.temporary()
            # A state that a power cut has damaged counts as none, so it need not be durable.
            with atomic_file(
                self._state_path, partial=partial, mode=0o600, is_durable=False
            ) as state:
                state.write(content)

    # -- the transfer ----------------------------------------------------------------------------

    def _transfer(self, scheduler: ChunkScheduler, file: SharedFile) -> Iterator[int]:
        most = -(-self._size // self._chunk_size())
        ramp = Ramp(min(self._options.connections, most))
        tasks = (self._hash_in_order, self._save_periodically)
        threads = [self._start_thread(task, scheduler, file) for task in tasks]
        try:
            for completed in self._watch(scheduler):
                while len(threads) - len(tasks) < ramp.count(time.monotonic(), completed):
                    threads.append(self._start_thread(self._download_chunks, scheduler, file))
                yield completed
        finally:
            self._stop.set()
            self._interrupt()
            scheduler.notify()
            for thread in threads:  # one that is connecting may take longer to notice
                thread.join(LEAVING_S)
            if self._hash is None and scheduler.completed:
                with suppress(TampuError):  # the error that stopped it matters more
                    self._save(scheduler, file)
        if self._error is not None:
            raise self._error

    def _watch(self, scheduler: ChunkScheduler) -> Iterator[int]:
        while self._hash is None and self._error is None:
            yield scheduler.completed
            self._stop.wait(PROGRESS_S)

    def _save_periodically(self, scheduler: ChunkScheduler, file: SharedFile) -> None:
        """Save the state regularly; this also keeps the disk busy from the start."""
        saved, saved_s = scheduler.completed, time.monotonic()
        while not self._stop.wait(PROGRESS_S):
            completed, now = scheduler.completed, time.monotonic()
            is_due = completed - saved >= SAVE_EVERY_BYTES or now - saved_s >= SAVE_EVERY_S
            if is_due and saved < completed < self._size:
                self._save(scheduler, file)
                saved, saved_s = completed, now

    def _start_thread(
        self, task: Task, scheduler: ChunkScheduler, file: SharedFile
    ) -> threading.Thread:
        thread = threading.Thread(
            target=self._run_thread, args=(task, scheduler, file), daemon=True
        )
        file.share()
        thread.start()
        return thread

    def _run_thread(self, task: Task, scheduler: ChunkScheduler, file: SharedFile) -> None:
        """Run a thread's task; its error ends the download."""
        try:
            task(scheduler, file)
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._fail(error)
        finally:
            file.release()

    def _download_chunks(self, scheduler: ChunkScheduler, file: SharedFile) -> None:
        """Download chunks until none are left."""
        failures = 0
        while not self._stop.is_set() and not scheduler.is_done:
            chunk = scheduler.take()
            if chunk is None:
                scheduler.wait(PROGRESS_S)
                continue
            try:
                self._download_chunk(scheduler, chunk, file)
                failures = 0
            except NetworkError as error:
                is_useful = chunk.position - chunk.start >= _USEFUL
                failures = 0 if is_useful else failures + 1
                if failures >= MAX_ATTEMPTS:
                    raise
                self._stop.wait(self._options.retry_delay_s(failures, error.after_s))
            finally:
                scheduler.release(chunk)

    def _download_chunk(self, scheduler: ChunkScheduler, chunk: Chunk, file: SharedFile) -> None:
        limiter = self._limiter
        with self._open_response(chunk.position, chunk.end) as response:
            while chunk.position < chunk.end and not self._stop.is_set():
                content = response.read(limiter.chunk)
                if not content:
                    raise NetworkError("the connection ended before the blob did")
                position, wanted = scheduler.claim(chunk, len(content))
                with translate_os_errors(f"the blob {self._digest.short}"):
                    write_all(file.descriptor, memoryview(content)[:wanted], position)
                scheduler.filled(position, wanted)
                limiter.take(len(content))

    def _hash_in_order(self, scheduler: ChunkScheduler, file: SharedFile) -> None:
        """Hash the written bytes in order."""
        hasher = hashlib.sha256()
        buffer = memoryview(bytearray(_HASHED))
        position = 0
        while position < self._size and not self._stop.is_set():
            ready = min(scheduler.frontier - position, _HASHED)
            if ready == 0:
                scheduler.wait(PROGRESS_S)
                continue
            with translate_os_errors(f"the blob {self._digest.short}"):
                count = os.preadv(file.descriptor, [buffer[:ready]], position)
            hasher.update(buffer[:count])
            position += count
        if position == self._size:
            self._hash = Digest(hasher.hexdigest())
            self._stop.set()

    # -- inside ----------------------------------------------------------------------------------

    def _chunk_size(self) -> int:
        """Return a size that gives each connection several chunks, close together."""
        fair = self._size // (self._options.connections * 4)
        return max(_MIN_CHUNK_BYTES, min(_MAX_CHUNK_BYTES, fair))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None and not self._stop.is_set():
                self._error = error
        self._stop.set()

    @contextmanager
    def _open_response(self, start: int, end: int) -> Iterator[Response]:
        """Yield a response that the end of the download interrupts."""
        with self._source.open(start, end) as response:
            with self._lock:
                self._responses.add(response)
                if self._stop.is_set():
                    response.interrupt()
            try:
                yield response
            finally:
                with self._lock:
                    self._responses.discard(response)

    def _interrupt(self) -> None:
        with self._lock:
            for response in self._responses:
                response.interrupt()


class Ramp:
    """The number of connections of a download: few at first, more while each is slow."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._count = min(FIRST, maximum)
        self._since: tuple[float, int] | None = None

    def count(self, now: float, completed: int) -> int:
        """Return the number of connections to use now, given the bytes done."""
        if self._since is None:
            self._since = (now, completed)
        elapsed_s = now - self._since[0]
        if elapsed_s >= RAMP_S:
            rate = (completed - self._since[1]) / elapsed_s
            if rate < FAST_PER_SECOND * self._count:
                self._count = min(2 * self._count, self._maximum)
            self._since = (now, completed)
        return self._count


class SharedFile:
    """A file shared by several threads; the last one to release it closes it."""

    def __init__(self, path: Path, size: int) -> None:
        """Open or create a file and set its size."""
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._users = 1
        self._lock = threading.Lock()
        try:
            os.ftruncate(self.descriptor, size)
        except OSError:
            os.close(self.descriptor)
            raise

    def share(self) -> None:
        """Add a user."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """Remove a user."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                os.close(self.descriptor)
