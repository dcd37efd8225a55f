"""Registries that lie, stall, redirect and cannot be trusted, case by case; and many at once."""

from __future__ import annotations

import gzip
import itertools
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import Name
from cryptography.x509.oid import NameOID
from support.cost import cost, yardstick
from support.local_http import Answer, Request, serving
from support.registries import RogueRegistry, described, fetch, manifest, ranged
from support.stores import add_model, files, names
from support.waiting import wait_until

from tampu.errors import ModelNotFoundError, RegistryError
from tampu.store import Digest, ModelName, Store
from tampu.store.manifests import CONFIG_TYPE
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.pull import pull
from tampu.store.registry.session import Session
from tampu.store.registry.transport import Transport

pytestmark = pytest.mark.slow

MB = 1 << 20
WEIGHTS = random.Random(5).randbytes(5 * MB + 99)
CONFIG = b'{"model_format":"gguf"}'
HEAD = described(CONFIG, CONFIG_TYPE)
MANIFEST = manifest([described(WEIGHTS)], HEAD)


@pytest.fixture
def registry() -> Iterator[RogueRegistry]:
    with RogueRegistry(MANIFEST, (WEIGHTS, CONFIG)) as registry:
        yield registry


def assert_whole(store: Store, registry: RogueRegistry, weights: bytes = WEIGHTS) -> None:
    model = store.model(ModelName.parse(f"{registry.host}/a/m"))
    assert model.model_path.read_bytes() == weights
    assert all(store.blobs.verify(blob.digest) for blob in model.manifest.blobs())
    assert not list(store.layout.incoming.iterdir())


def assert_refused(store: Store, registry: RogueRegistry, **changes: Any) -> str:
    """A pull ends with a line that says why, and the store is as it was."""
    add_model(store, "old")
    before = {path: c for path, c in files(store).items() if "incoming" not in path}
    with pytest.raises(RegistryError) as caught:
        fetch(store, registry, **changes)
    told = str(caught.value)
    assert told.isprintable()
    assert str(store.root) not in told
    after = {path: c for path, c in files(store).items() if "incoming" not in path}
    assert {p: c for p, c in after.items() if str(Digest.of(CONFIG).file_name) not in p} == before
    assert names(store) == ["old:latest"]
    return told


def for_weights(
    registry: RogueRegistry, answer: Callable[[Any], Answer] | Callable[[Any], Any]
) -> None:
    """Have the registry answer so when it is asked for the weights."""
    registry.before = lambda request: (
        answer(request) if str(Digest.of(WEIGHTS)) in request.path else None
    )


# -- manifests -------------------------------------------------------------------------------------


def test_a_compressed_manifest_is_not_unpacked(store: Store, registry: RogueRegistry) -> None:
    bomb = gzip.compress(bytes(64 * MB))
    registry.before = lambda _: Answer(headers={"Content-Encoding": "gzip"}, body=bomb)
    assert "compressed" in assert_refused(store, registry)


@pytest.mark.parametrize("difference", [-1, 1, MB])
def test_the_right_bytes_of_a_wrong_size_are_refused(
    store: Store, registry: RogueRegistry, difference: int
) -> None:
    size = {"size": len(WEIGHTS) + difference}
    registry.content = manifest([described(WEIGHTS) | size], HEAD)
    assert_refused(store, registry)
    registry.content = MANIFEST
    fetch(store, registry)
    assert_whole(store, registry)


def test_a_hundred_thousand_layers_are_refused(store: Store, registry: RogueRegistry) -> None:
    registry.content = manifest([described(b"x")] * 100_000, HEAD)
    assert cost(lambda: assert_refused(store, registry), times=1) < 30 * yardstick()


def test_duplicate_layers_are_downloaded_once(store: Store, registry: RogueRegistry) -> None:
    registry.content = manifest([described(WEIGHTS), described(WEIGHTS), HEAD], HEAD)
    fetch(store, registry)
    assert_whole(store, registry)
    assert registry.sent < len(WEIGHTS) + MB


def test_layers_of_unknown_kinds_are_kept(store: Store, registry: RogueRegistry) -> None:
    registry.content = manifest([described(WEIGHTS), described(CONFIG, "x/unheard-of")], HEAD)
    fetch(store, registry)
    assert_whole(store, registry)


# -- redirects -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "is_followed"), [(5, True), (6, False), (20, False)])
def test_at_most_five_redirects_are_followed(
    store: Store, registry: RogueRegistry, count: int, is_followed: bool
) -> None:
    def answer(request: Request) -> Answer:
        step = int(request.query.get("step", 0))
        if step < count:
            return Answer(307, {"Location": f"?step={step + 1}"})
        return ranged(request, WEIGHTS)

    for_weights(registry, answer)
    if is_followed:
        fetch(store, registry)
        assert_whole(store, registry)
    else:
        assert "redirects more than 5 times" in assert_refused(store, registry, connections=1)


@pytest.mark.parametrize(
    "location",
    ["https://127.0.0.1:1/x", "https://169.254.169.254/x", "https://[::1]/x", "https://10.1.2.3/x",
     "https://0x7f000001/x", "https://localhost/x"],
)  # fmt: skip
def test_a_redirect_into_a_private_network_is_refused(
    monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    with closing(Transport(RemoteOptions())) as transport:
        session = Session(transport, "https://registry.example", token="t0ken")
        send = transport.send

        class Moved:
            url = "https://registry.example/x"
            status = 307

            def __init__(self) -> None:
                self.headers = {"Location": location}

            def close(self) -> None:
                pass

        def first(method: Any, url: Any, *rest: Any) -> Any:
            return Moved() if "registry.example" in url else send(method, url, *rest)

        monkeypatch.setattr(transport, "send", first)
        with pytest.raises(RegistryError, match="private network"):
            session.send("GET", "/x")


# -- tokens ----------------------------------------------------------------------------------------


class Guarded(RogueRegistry):
    """Gives out tokens that are good for a few requests."""

    def __init__(self, lasting: int) -> None:
        super().__init__(MANIFEST, (WEIGHTS, CONFIG))
        self.before = self.guard
        self.lasting = lasting
        self.tokens = itertools.count()
        self.left: dict[Any, Any] = {}
        self.lock = threading.Lock()

    def guard(self, request: Request) -> Answer | None:
        with self.lock:
            if request.path == "/token":
                token = f"t{next(self.tokens)}"
                self.left[token] = self.lasting
                return Answer(body=b'{"token":"%s"}' % token.encode())
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if self.left.get(token, 0) > 0:
                self.left[token] -= 1
                return None
        challenge = f'Bearer realm="{self.url}/token",service="s",scope="repository:a/m:pull"'
        return Answer(401, {"WWW-Authenticate": challenge})


@pytest.mark.parametrize("lasting", [1, 2, 1000])
def test_tokens_that_expire_during_a_pull_are_renewed(store: Store, lasting: int) -> None:
    with Guarded(lasting) as registry:
        fetch(store, registry, connections=1)
        assert_whole(store, registry)
        assert registry.sent <= 1.1 * len(WEIGHTS) + 50_000


# -- TLS -------------------------------------------------------------------------------------------


def certificate(
    folder: Path,
    name: str,
    issuer: Any = None,
    *,
    host: str = "localhost",
    days: tuple[int, int] = (-1, 1),
) -> tuple[Name, ec.EllipticCurvePrivateKey]:
    """Write a certificate with its key; return what the next one can be issued by."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    by, by_key = issuer or (subject, key)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(by_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = made.public_bytes(serialization.Encoding.PEM)
    (folder / f"{name}.pem").write_bytes(public + private)
    (folder / f"{name}.crt").write_bytes(public)
    return subject, key


CERTIFICATES: dict[str, tuple[Any, bool]] = {
    "good": ({}, True),
    "expired": ({"days": (-9, -1)}, False),
    "of tomorrow": ({"days": (1, 9)}, False),
    "of another host": ({"host": "other.example"}, False),
    "self-signed": (None, False),
}


@pytest.mark.parametrize("case", CERTIFICATES)
def test_only_a_valid_certificate_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    changes, is_good = CERTIFICATES[case]
    issuer = certificate(tmp_path, "authority")
    certificate(tmp_path, "server", *(() if changes is None else (issuer,)), **(changes or {}))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.crt"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")

    def accept(listener: Any) -> None:
        connection, _ = listener.accept()
        with (
            connection,
            suppress(OSError),
            context.wrap_socket(connection, server_side=True) as tls,
        ):
            tls.recv(1000)
            tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        options = RemoteOptions(default_registry="localhost", read_timeout_s=5)
        with closing(Transport(options)) as transport:
            url = f"https://localhost:{listener.getsockname()[1]}/v2/"
            if is_good:
                assert transport.send("GET", url).read_all(10) == b"ok"
            else:
                with pytest.raises(RegistryError, match="certificate of localhost"):
                    transport.send("GET", url)
        thread.join(5)


# -- busy and broken networks ----------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_respected(store: Store, registry: RogueRegistry, status: int) -> None:
    asked = []

    def answer(request: Request) -> Answer:
        asked.append(time.monotonic())
        if len(asked) == 1:
            return Answer(status, {"Retry-After": "1"})
        return ranged(request, WEIGHTS)

    for_weights(registry, answer)
    fetch(store, registry, connections=1)
    assert_whole(store, registry)
    assert asked[1] - asked[0] >= 1


def test_an_unreachable_address_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with IPv6 that leads nowhere: the name has two addresses, and the second answers."""
    with serving(lambda _: Answer(body=b"ok")) as server:
        port = int(server.host.rpartition(":")[2])
        with socket.socket(socket.AF_INET6) as dead:
            dead.bind(("::1", 0))  # nobody listens there
            found = [
                (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
            ]
            real = socket.getaddrinfo

            def resolve(host: str, *rest: Any, **more: Any) -> list[Any]:
                return found if host == "two.example" else real(host, *rest, **more)

            monkeypatch.setattr("tampu.store.registry.transport.socket.getaddrinfo", resolve)
            options = RemoteOptions(is_insecure=True, connect_timeout_s=2)
            with closing(Transport(options)) as transport:
                url = f"http://two.example:{port}/"
                assert transport.send("GET", url).read_all(10) == b"ok"


FAULTS: dict[str, Callable[..., object]] = {
    "drops": lambda chance, answer: setattr(answer, "drop_after", chance.randrange(50_000, MB)),
    "stalls": lambda chance, answer: setattr(answer, "stall_after", chance.randrange(500_000)),
    "busy": lambda _, answer: (setattr(answer, "status", 503), setattr(answer, "body", b"")),
    "slow": lambda _, answer: setattr(answer, "bytes_per_second", 20 * MB),
    "none": lambda *_: None,
}


@pytest.mark.parametrize("seed", range(5))
def test_a_bad_network_costs_at_most_ten_percent_more_bytes(
    store: Store, registry: RogueRegistry, seed: int
) -> None:
    chance = random.Random(seed)
    weights = random.Random(seed + 100).randbytes(6 * MB)
    registry.blobs[str(Digest.of(weights))] = weights
    registry.content = manifest([described(weights)], HEAD)

    def harmed(request: Request) -> Answer | None:
        if str(Digest.of(weights)) not in request.path:
            return None
        answer = ranged(request, weights)
        kind = chance.choice(["none", "none", "drops", "drops", "slow", "busy", "stalls"])
        FAULTS[kind](chance, answer)
        return answer

    registry.before = harmed
    for _ in range(20):
        with suppress(RegistryError):
            fetch(store, registry, read_timeout_s=1.0)
            break
    assert_whole(store, registry, weights)
    assert registry.sent <= 1.1 * len(weights) + 100_000


# -- many at once ----------------------------------------------------------------------------------


def slowed(answer: Answer) -> Answer:
    answer.bytes_per_second = 8 * MB
    return answer


def test_other_models_can_be_managed_during_a_pull(store: Store, registry: RogueRegistry) -> None:
    for_weights(registry, lambda request: slowed(ranged(request, WEIGHTS)))
    add_model(store, "other", license=b"x")
    name = ModelName.parse(f"{registry.host}/a/m")
    options = RemoteOptions(is_insecure=True, read_timeout_s=10)
    steps = pull(store, name, options)
    turns = 0
    for step in steps:
        turns += 1
        other = ModelName.parse("other")
        assert store.model(other).licenses == ["x"]
        assert [model.name.short for model in store.listing().models if model.name == other]
        store.copy(other, ModelName.parse("copy"))
        store.delete(ModelName.parse("copy"))
        store.collect_garbage(0)
        if step.status != "success":
            with pytest.raises(ModelNotFoundError):
                store.delete(name)
    assert turns > 5
    assert_whole(store, registry)


def test_a_model_republished_during_a_pull_is_the_old_or_the_new(
    store: Store, registry: RogueRegistry
) -> None:
    """The tag is pulled by several while the registry gives it another meaning."""
    newer = random.Random(9).randbytes(len(WEIGHTS))
    registry.blobs[str(Digest.of(newer))] = newer
    contents = itertools.cycle([MANIFEST, manifest([described(newer)], HEAD)])

    def publish(request: Request) -> Answer | None:
        if "/manifests/" in request.path:
            return Answer(body=next(contents))
        blob = registry.blobs.get(request.path.rpartition("/")[2])
        return slowed(ranged(request, blob)) if blob else None

    registry.before = publish

    def work(_: int) -> None:
        for _ in range(2):
            fetch(Store(store.root), registry, read_timeout_s=20)

    with ThreadPoolExecutor(4) as threads:
        pulls = [threads.submit(work, number) for number in range(4)]

        def is_over() -> bool:
            store.collect_garbage(0)
            return all(pull.done() for pull in pulls)

        wait_until(is_over, "all have pulled it twice", 200)
    for done in pulls:
        done.result()
    model = store.model(ModelName.parse(f"{registry.host}/a/m"))
    assert model.model_path.read_bytes() in (WEIGHTS, newer)
    assert all(store.blobs.verify(blob.digest) for blob in model.manifest.blobs())
    store.collect_garbage(0)
    assert len(list(store.layout.blobs.iterdir())) == 2
