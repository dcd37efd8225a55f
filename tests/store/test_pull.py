"""Pulling from registries that stall, drop, lie and steal: the right bytes or nothing."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from support.local_http import Answer, Request, serving
from support.registries import (
    RogueRegistry,
    assert_only_missing,
    described,
    done_ranges,
    fetch,
    impatient,
    manifest,
    ranged,
)
from support.stores import add_model, files, names

from tampu.errors import DiskFullError, RegistryError
from tampu.store import Digest, ModelName, Store
from tampu.store.manifests import CONFIG_TYPE, FILE_PATH
from tampu.store.registry import download as download_module
from tampu.store.registry.options import MAX_ATTEMPTS, RemoteOptions
from tampu.store.registry.progress import Progress
from tampu.store.registry.pull import pull

MB = 1 << 20
WEIGHTS = random.Random(0).randbytes(9 * MB + 12_345)
CONFIG = b'{"model_format":"gguf"}'
HEAD = described(CONFIG, CONFIG_TYPE)
MANIFEST = manifest([described(WEIGHTS)], HEAD)


@pytest.fixture
def registry() -> Iterator[RogueRegistry]:
    with RogueRegistry(MANIFEST, (WEIGHTS, CONFIG)) as registry:
        yield registry


def assert_whole(store: Store, registry: RogueRegistry) -> None:
    model = store.model(ModelName.parse(f"{registry.host}/a/m"))
    assert model.model_path.read_bytes() == WEIGHTS
    assert all(store.blobs.verify(blob.digest) for blob in model.manifest.blobs())
    assert not list(store.layout.incoming.iterdir())
    assert not list(store.layout.locks.iterdir())
    assert not list(store.layout.leases.iterdir())


def blob_requests(registry: RogueRegistry) -> list[Any]:
    return [request for request in registry.requests if str(Digest.of(WEIGHTS)) in request.path]


def harmed(
    registry: RogueRegistry, harm: Callable[[Any, Any], Any] | Callable[..., Answer]
) -> None:
    """Have the registry answer for the weights as `harm` says; it gets the usual answer too."""

    def before(request: Request) -> Answer | None:
        is_weights = request.path.endswith(str(Digest.of(WEIGHTS)))
        return harm(request, ranged(request, WEIGHTS)) if is_weights else None

    registry.before = before


# -- what is told ----------------------------------------------------------------------------------


def test_a_pull_reports_progress_in_ollamas_words(store: Store, registry: RogueRegistry) -> None:
    told = fetch(store, registry)
    digest = Digest.of(WEIGHTS)
    assert told[0] == Progress("pulling manifest")
    assert [step.status for step in told[-3:]] == [
        "verifying sha256 digest", "writing manifest", "success",
    ]  # fmt: skip
    steps = [step for step in told if step.digest == str(digest)]
    assert {step.status for step in steps} == {f"pulling {digest.short}"}
    assert {step.total for step in steps} == {len(WEIGHTS)}
    assert [step.completed for step in steps] == sorted(step.completed for step in steps)
    assert steps[-1].completed == len(WEIGHTS)
    assert_whole(store, registry)


def test_the_manifest_is_kept_byte_for_byte(store: Store, registry: RogueRegistry) -> None:
    fetch(store, registry)
    model = store.model(ModelName.parse(f"{registry.host}/a/m"))
    assert model.digest == Digest.of(MANIFEST)


def test_a_fast_connection_downloads_all_with_one_request(
    store: Store, registry: RogueRegistry
) -> None:
    fetch(store, registry)
    assert [request.range for request in blob_requests(registry)] == [(0, len(WEIGHTS))]
    assert_whole(store, registry)


def test_slow_connections_download_chunks_concurrently(
    store: Store, registry: RogueRegistry
) -> None:
    def harm(_: object, answer: Answer) -> Answer:
        answer.bytes_per_second = 8 * MB
        return answer

    harmed(registry, harm)
    fetch(store, registry)
    spans = sorted(request.range for request in blob_requests(registry))
    assert len(spans) > 4
    assert spans[0][0] == 0
    assert max(end for _, end in spans) == len(WEIGHTS)
    assert_whole(store, registry)
    assert registry.sent <= 1.2 * len(WEIGHTS)  # the first sends on until it is told to stop


@pytest.fixture(params=["one at first", "several at first"])
def connections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have so many connections from the beginning."""
    monkeypatch.setattr(download_module, "FIRST", 1 if request.param == "one at first" else 4)


def test_existing_blobs_are_verified_and_not_downloaded(
    store: Store, registry: RogueRegistry
) -> None:
    fetch(store, registry)
    registry.requests.clear()
    told = fetch(store, registry)
    assert [request.path for request in registry.requests] == ["/v2/a/m/manifests/latest"]
    assert Progress(f"pulling {Digest.of(WEIGHTS).short}", str(Digest.of(WEIGHTS)), len(WEIGHTS),
                    len(WEIGHTS)) in told  # fmt: skip


def test_a_pull_replaces_a_damaged_blob(store: Store, registry: RogueRegistry) -> None:
    fetch(store, registry)
    path = store.layout.blob(Digest.of(WEIGHTS))
    path.chmod(0o644)
    path.write_bytes(bytes(len(WEIGHTS)))
    fetch(store, registry)
    assert_whole(store, registry)


def test_blobs_of_the_old_model_are_removed_after_a_pull(
    store: Store, registry: RogueRegistry
) -> None:
    old = random.Random(1).randbytes(1000)
    registry.blobs[str(Digest.of(old))] = old
    registry.content = manifest([described(old)], HEAD)
    fetch(store, registry)
    registry.content = MANIFEST
    fetch(store, registry)
    assert not store.blobs.has(Digest.of(old))
    assert_whole(store, registry)


def test_a_missing_model_is_an_error(store: Store, registry: RogueRegistry) -> None:
    registry.before = lambda _: Answer(404)
    steps = pull(store, ModelName.parse(f"{registry.host}/a/m"), impatient())
    assert next(steps) == Progress("pulling manifest")
    with pytest.raises(RegistryError, match=r"^pull model manifest: file does not exist$"):
        next(steps)


# -- a bad network ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("connections")
def test_dropped_connections_are_resumed(store: Store, registry: RogueRegistry) -> None:
    def harm(_: object, answer: Answer) -> Answer:
        answer.drop_after = 300_000
        return answer

    harmed(registry, harm)
    fetch(store, registry)
    assert_whole(store, registry)
    assert registry.sent <= 1.1 * len(WEIGHTS) + 10_000


@pytest.mark.usefixtures("connections")
def test_a_connection_that_stalls_is_replaced(store: Store, registry: RogueRegistry) -> None:
    stalls = [200_000]

    def harm(_: object, answer: Answer) -> Answer:
        if stalls:
            answer.stall_after = stalls.pop()
        return answer

    harmed(registry, harm)
    fetch(store, registry, read_timeout_s=0.3)
    assert_whole(store, registry)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_busy_registry_is_retried(store: Store, registry: RogueRegistry, status: int) -> None:
    busy = [status] * 5
    registry.before = lambda _: Answer(busy.pop()) if busy else None
    fetch(store, registry, connections=2)
    assert_whole(store, registry)


def test_retries_of_a_busy_registry_are_limited(store: Store, registry: RogueRegistry) -> None:
    harmed(registry, lambda *_: Answer(503, body=b"later"))
    with pytest.raises(RegistryError, match="503: later"):
        fetch(store, registry, connections=1)
    assert len(blob_requests(registry)) == MAX_ATTEMPTS
    registry.before = lambda _: None
    fetch(store, registry)
    assert_whole(store, registry)


def test_a_registry_without_range_requests_is_read_whole(
    store: Store, registry: RogueRegistry
) -> None:
    harmed(registry, lambda *_: Answer(body=WEIGHTS))
    fetch(store, registry)
    assert_whole(store, registry)


def test_a_dropped_connection_without_range_requests_starts_again(
    store: Store, registry: RogueRegistry
) -> None:
    drops = [5 * MB, 100]

    def harm(*_: object) -> Answer:
        return Answer(body=WEIGHTS, drop_after=drops.pop() if drops else None)

    harmed(registry, harm)
    fetch(store, registry, connections=1)
    assert_whole(store, registry)


def test_a_response_without_a_length_is_accepted(store: Store, registry: RogueRegistry) -> None:
    def harm(_: object, answer: Answer) -> Answer:
        assert isinstance(answer.body, bytes)
        answer.body = [answer.body]
        return answer

    harmed(registry, harm)
    fetch(store, registry)
    assert_whole(store, registry)


def test_redirects_to_storage_are_followed(
    store: Store, registry: RogueRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "FIRST", 2)
    with serving(lambda request: ranged(request, WEIGHTS)) as storage:
        harmed(registry, lambda *_: Answer(307, {"Location": f"{storage.url}/signed"}))
        fetch(store, registry, connections=2)
        assert len(storage.requests) > 4
        assert len(blob_requests(registry)) <= 2  # then the address is known
    assert_whole(store, registry)


def test_an_expired_storage_url_is_requested_again(store: Store, registry: RogueRegistry) -> None:
    good = ["1"]

    def answer(request: Request) -> Answer:
        if request.query["signature"] != good[-1]:
            return Answer(403, body=b"expired")
        if len(storage.requests) % 4 == 0:
            good.append(str(len(good) + 1))
        return ranged(request, WEIGHTS)

    with serving(answer) as storage:
        location = f"{storage.url}/x?signature="
        harmed(registry, lambda *_: Answer(307, {"Location": location + good[-1]}))
        fetch(store, registry, connections=1)
    assert_whole(store, registry)


# -- lies ------------------------------------------------------------------------------------------


def wrong_byte(_: object, answer: Answer) -> Answer:
    assert isinstance(answer.body, bytes)
    answer.body = b"\0" + answer.body[1:]
    return answer


LIES = {
    "wrong bytes": wrong_byte,
    "another part": lambda _, a: Answer(206, {"Content-Range": "bytes 7-1048582/*"}, a.body),
    "another size": lambda _, a: Answer(
        206, {"Content-Range": a.headers["Content-Range"].partition("/")[0] + "/7"}, a.body
    ),
    "no part named": lambda _, a: Answer(206, {}, a.body),
    "too much": lambda _, a: Answer(206, a.headers, a.body + b"x"),
    "too little": lambda _, a: Answer(206, a.headers, a.body[:-1]),
    "compressed": lambda _, a: Answer(206, {**a.headers, "Content-Encoding": "gzip"}, a.body),
    "the whole, too long": lambda *_: Answer(body=WEIGHTS + b"x"),
    "the whole, too short": lambda *_: Answer(body=WEIGHTS[:-1]),
    "the whole, wrong": lambda *_: Answer(body=bytes(len(WEIGHTS))),
    "too long without a length": lambda *_: Answer(body=[WEIGHTS, b"x"]),
    "gone": lambda *_: Answer(404, body=b"{}"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_blob_with_wrong_content_is_not_stored(
    store: Store, registry: RogueRegistry, lie: str
) -> None:
    add_model(store, "old")
    before = {path: c for path, c in files(store).items() if ".tampu" not in path}
    harmed(registry, LIES[lie])
    with pytest.raises(RegistryError):
        fetch(store, registry, connections=2)
    assert {path: c for path, c in files(store).items() if ".tampu" not in path} == before
    assert names(store) == ["old:latest"]
    registry.before = lambda _: None
    fetch(store, registry)
    assert_whole(store, registry)


def layer(**changes: Any) -> dict[Any, Any]:
    return described(WEIGHTS) | changes


ROGUES = {
    "empty": b"",
    "no JSON": b"<html>",
    "a list": b"[]",
    "too long": b" " * (5 * MB) + MANIFEST,
    "deep": b"[" * 200_000,
    "no config": manifest([layer()], None),
    "no layers": b'{"schemaVersion":2,"layers":null}',
    "many layers": manifest([layer()] * 5000, HEAD),
    "digest up the tree": manifest([layer(digest="sha256:../../../../etc/passwd")], HEAD),
    "short digest": manifest([layer(digest="sha256:ab")], HEAD),
    "other digest": manifest([layer(digest="sha512:" + "a" * 64)], HEAD),
    "digest in capitals": manifest([layer(digest="sha256:" + "A" * 64)], HEAD),
    "size 0": manifest([layer(size=0)], HEAD),
    "size -1": manifest([layer(size=-1)], HEAD),
    "size 2^63": manifest([layer(size=2**63)], HEAD),
    "two sizes": manifest([layer(), layer(size=5)], HEAD),
    "a list of manifests": b'{"schemaVersion":2,"manifests":[]}',
    "a file of this machine": manifest([layer(annotations={FILE_PATH: "/etc/passwd"})], HEAD),
}


@pytest.mark.parametrize("rogue", ROGUES)
def test_a_rogue_manifest_is_refused_and_the_store_unchanged(
    store: Store, registry: RogueRegistry, rogue: str
) -> None:
    add_model(store, "old")
    before = files(store)
    registry.content = ROGUES[rogue]
    with pytest.raises(RegistryError) as caught:
        fetch(store, registry)
    assert str(caught.value).isprintable()
    assert files(store) == before
    assert len(registry.requests) == 1


def test_a_model_larger_than_the_disk_is_refused(store: Store, registry: RogueRegistry) -> None:
    registry.content = manifest([layer(size=1 << 49)], HEAD)
    with pytest.raises(DiskFullError, match="no space left"):
        fetch(store, registry)
    assert len(registry.requests) == 1


def test_http_and_local_addresses_are_refused_by_default(
    store: Store, registry: RogueRegistry
) -> None:
    for name in (f"http://{registry.host}/a/m", f"{registry.host}/a/m"):
        with pytest.raises(RegistryError, match=r"only https|private network"):
            list(pull(store, ModelName.parse(name), RemoteOptions()))
    assert registry.requests == []


# -- interruptions ---------------------------------------------------------------------------------


def slowed(_: object, answer: Answer) -> Answer:
    answer.bytes_per_second = 4 * MB
    return answer


def test_a_stopped_pull_is_resumed(store: Store, registry: RogueRegistry) -> None:
    harmed(registry, slowed)
    steps = pull(store, ModelName.parse(f"{registry.host}/a/m"), impatient(connections=2))
    with closing(steps):
        while next(steps).completed < 4 * MB:
            pass
    done = done_ranges(store, Digest.of(WEIGHTS))
    assert sum(end - start for start, end in done) > 3 * MB
    earlier = len(blob_requests(registry))
    registry.before = lambda _: None
    fetch(store, registry)
    assert_only_missing(blob_requests(registry)[earlier:], done)
    assert_whole(store, registry)


def test_a_damaged_partial_download_is_downloaded_again(
    store: Store, registry: RogueRegistry
) -> None:
    digest = Digest.of(WEIGHTS)
    store.layout.incoming.mkdir(parents=True)
    store.layout.partial(digest).write_bytes(bytes(len(WEIGHTS)))
    state = '{"size":%d,"done":[[0,4000000]]}' % len(WEIGHTS)  # noqa: UP031
    store.layout.partial_state(digest).write_text(state)
    fetch(store, registry)
    assert_whole(store, registry)


@pytest.mark.parametrize(
    "state", ["", "{", '{"size":1,"done":[[0,1]]}', '{"size":9449529,"done":[[5,99999999]]}', "[]"]
)
def test_an_invalid_download_state_is_ignored(
    store: Store, registry: RogueRegistry, state: str
) -> None:
    digest = Digest.of(WEIGHTS)
    store.layout.incoming.mkdir(parents=True)
    store.layout.partial(digest).write_bytes(bytes(len(WEIGHTS)))
    store.layout.partial_state(digest).write_text(state)
    fetch(store, registry)
    assert_whole(store, registry)


def test_concurrent_pulls_download_once(store: Store, registry: RogueRegistry) -> None:
    harmed(registry, slowed)
    with ThreadPoolExecutor(20) as threads:
        list(threads.map(lambda _: fetch(Store(store.root), registry), range(20)))
    assert registry.sent <= 1.1 * len(WEIGHTS) + 100_000
    assert_whole(store, registry)


@pytest.mark.slow
def test_the_rate_limit_holds(store: Store, registry: RogueRegistry) -> None:
    began = time.monotonic()
    fetch(store, registry, limit_rate=20_000_000)
    assert time.monotonic() - began >= len(WEIGHTS) / 20_000_000 - 0.25
    assert_whole(store, registry)


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Let no file grow beyond `limit` bytes: what a full disk looks like to a program."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 10, 100, 1000, 5 * MB])
def test_a_full_disk_is_reported_and_old_models_stay(
    store: Store, registry: RogueRegistry, limit: int
) -> None:
    add_model(store, "old")
    with file_size_limit(limit), pytest.raises(DiskFullError, match="no space left"):
        fetch(store, registry)
    assert names(store) == ["old:latest"]
    fetch(store, registry)
    assert_whole(store, registry)


WRITES = ("pwrite", "ftruncate", "fsync", "fdatasync", "fchmod", "write")


@pytest.mark.slow
@pytest.mark.parametrize("call", WRITES)
@pytest.mark.parametrize("which", range(6))
def test_any_write_may_fail(
    store: Store, registry: RogueRegistry, monkeypatch: pytest.MonkeyPatch, call: str, which: int
) -> None:
    add_model(store, "old")
    original, count = getattr(os, call), [0]

    def failing(*arguments: Any) -> Any:
        count[0] += 1
        if count[0] == which + 1:
            raise OSError(28, "No space left on device")
        return original(*arguments)

    registry.sent = 0
    with monkeypatch.context() as patch:
        patch.setattr(f"os.{call}", failing)
        failed = False
        try:
            fetch(store, registry)
        except DiskFullError:
            failed = True
    assert failed == (count[0] > which)
    assert "old:latest" in names(store)
    fetch(store, registry)
    assert_whole(store, registry)
