"""Debian's docker-registry on this machine, a proxy before it that does harm, and a rogue one."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from support.local_http import Answer, LocalServer, Request

from tampu.store import Digest, ModelName, Store
from tampu.store.manifests import CONFIG_TYPE, MANIFEST_TYPE, Media
from tampu.store.registry.download import PartialState
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.progress import Progress
from tampu.store.registry.pull import pull

MISSING = (
    "docker-registry is not on this machine: `make store-test` gets it (tools/setup/registry.sh); "
    "on Debian by hand: apt-get install docker-registry"
)


def registry_program() -> str:
    """Where the registry's program is."""
    own = Path(sys.prefix) / "docker-registry" / "usr" / "bin" / "docker-registry"
    found = shutil.which("docker-registry") or (str(own) if own.is_file() else None)
    assert found, MISSING
    return found


class DockerRegistry:
    """The reference registry, with its data in a folder.

    `passwords` are the lines of an htpasswd file: then nobody else gets in. With a `certificate`,
    for localhost, it speaks TLS.
    """

    def __init__(self, folder: Path, passwords: str = "", certificate: Path | None = None) -> None:
        program = registry_program()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.host = f"127.0.0.1:{listener.getsockname()[1]}"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config.yml"
        tls = f", tls: {{certificate: {certificate}, key: {certificate}}}" if certificate else ""
        config.write_text(
            "version: 0.1\n"
            "log: {level: error, accesslog: {disabled: true}}\n"
            f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
            f"http: {{addr: '{self.host}'{tls}}}\n"
        )
        if passwords:
            (folder / "htpasswd").write_text(passwords)
            with config.open("a") as file:
                file.write(f"auth: {{htpasswd: {{realm: models, path: {folder / 'htpasswd'}}}}}\n")
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [program, "serve", str(config)],
            stdout=self._log,
            stderr=self._log,
            env={"OTEL_TRACES_EXPORTER": "none", "HOME": str(folder)},
        )
        self._await(folder / "log")

    def _await(self, log: Path) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            assert self._process.poll() is None, log.read_text()
            try:
                self.request("GET", "/v2/")
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("docker-registry does not answer")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._log.close()

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[Any | str, Any] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request; return status, headers and body."""
        connection = http.client.HTTPConnection(self.host, timeout=300)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def put_blob(self, repository: str, content: bytes) -> dict[Any, Any]:
        """Upload a blob and return what a manifest says of it."""
        _, headers, _ = self.request("POST", f"/v2/{repository}/blobs/uploads/")
        location = headers["Location"].removeprefix(f"http://{self.host}")
        path = f"{location}&digest={Digest.of(content)}"
        kind = {"Content-Type": "application/octet-stream"}
        assert self.request("PUT", path, content, kind)[0] == 201
        return {"digest": str(Digest.of(content)), "size": len(content)}

    def put_model(
        self, repository: str, tag: str, *contents: bytes, config: Any = b'{"model_format":"gguf"}'
    ) -> bytes:
        """Upload a model with these layers and return its manifest's bytes."""
        layers = [
            {"mediaType": Media.MODEL.value, **self.put_blob(repository, content)}
            for content in contents
        ]
        head = {"mediaType": CONFIG_TYPE, **self.put_blob(repository, config)}
        content = manifest(layers, head)
        path = f"/v2/{repository}/manifests/{tag}"
        status, _, body = self.request("PUT", path, content, {"Content-Type": MANIFEST_TYPE})
        assert status == 201, body
        return content


def manifest(layers: list[Any], config: dict[Any | str, Any] | None) -> bytes:
    """The bytes of a manifest, with the spaces that other programs put in."""
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config,
        "layers": layers,
    }
    return json.dumps(document, indent=1).encode()


class FaultyProxy(LocalServer):
    """Passes requests on to a registry, and does to the answers what `harm` does."""

    def __init__(
        self, upstream: str, harm: Callable[[Request, Answer], Answer] | None = None
    ) -> None:
        super().__init__(self.forward)
        self._upstream = upstream
        self.harm = harm or (lambda _, answer: answer)

    def forward(self, request: Request) -> Answer:
        connection = http.client.HTTPConnection(self._upstream, timeout=300)
        try:
            query = "&".join(f"{name}={value}" for name, value in request.query.items())
            path = request.path + (f"?{query}" if query else "")
            kept = {n: v for n, v in request.headers.items() if n not in ("host", "connection")}
            connection.request(request.method, path, request.body or None, kept)
            found = connection.getresponse()
            body = found.read()
            headers = {
                name: value.replace(self._upstream, self.host)
                for name, value in found.getheaders()
                if name.lower() not in ("connection", "date", "content-length")
            }
            length = None if request.method != "HEAD" else int(found.headers["Content-Length"] or 0)
            return self.harm(request, Answer(found.status, headers, body, length))
        finally:
            connection.close()


def done_ranges(store: Store, digest: Digest) -> list[tuple[int, int]]:
    """The half-open ranges of a blob that an interrupted pull has left on the disk."""
    state = store.layout.partial_state(digest).read_bytes()
    return msgspec.json.decode(state, type=PartialState).done


def assert_only_missing(requests: list[Request], done: list[tuple[int, int]]) -> None:
    """No request for a blob asks for bytes that are on the disk."""
    spans = [request.range for request in requests]
    assert spans
    for span in spans:
        assert span is not None
        assert all(span[1] <= start or span[0] >= end for start, end in done), (span, done)


def is_blob(request: Request) -> bool:
    """Whether a request is for the bytes of a blob."""
    return request.method == "GET" and "/blobs/sha256:" in request.path


class RogueRegistry(LocalServer):
    """A registry that answers what it is told: blobs by their digest, one manifest for all tags."""

    def __init__(self, content: bytes = b"", blobs: tuple[bytes, ...] = ()) -> None:
        super().__init__(self.serve)
        self.content = content
        self.blobs = {str(Digest.of(blob)): blob for blob in blobs}
        self.before: Callable[[Request], Answer | None] = lambda _: None

    def serve(self, request: Request) -> Answer:
        """Answer as `before` says, else as a registry does."""
        special = self.before(request)
        if special is not None:
            return special
        if "/manifests/" in request.path:
            return Answer(body=self.content)
        blob = self.blobs.get(request.path.rpartition("/")[2])
        if blob is None:
            return Answer(404, body=b'{"errors":[{"message":"blob unknown"}]}')
        return ranged(request, blob)


def ranged(request: Request, content: bytes) -> Answer:
    """Answer with the part of the content that is asked for."""
    if request.range is None:
        return Answer(body=content)
    start, end = request.range
    headers = {"Content-Range": f"bytes {start}-{min(end, len(content)) - 1}/{len(content)}"}
    return Answer(206, headers, content[start:end])


def described(content: bytes, kind: str = Media.MODEL.value) -> dict[str, object]:
    """What a manifest says of a blob."""
    return {"mediaType": kind, "digest": str(Digest.of(content)), "size": len(content)}


def impatient(**changes: Any) -> RemoteOptions:
    """Options that try again at once and do not wait long."""
    quick: dict[str, Any] = {
        "is_insecure": True, "retry_delays_s": (0.0, 0.01), "read_timeout_s": 2.0
    }  # fmt: skip
    return RemoteOptions(**quick | changes)


def fetch(store: Store, registry: LocalServer, name: str = "a/m", **changes: Any) -> list[Progress]:
    """Pull a model and return all that was told."""
    return list(pull(store, ModelName.parse(f"{registry.host}/{name}"), impatient(**changes)))
