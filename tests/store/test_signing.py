"""Ollama's registry is told who asks, by a signature that it can verify."""

from __future__ import annotations

import base64
import hashlib
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.dsa import DSAPublicKey
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)
from support.local_http import Answer, Request, serving
from support.registries import described, manifest

from tampu.errors import RegistryError
from tampu.store import ModelName, Store
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.pull import pull
from tampu.store.registry.signing import sign


def write_key(path: Path, key: RSAPrivateKey | None = None) -> RSAPrivateKey | Ed25519PrivateKey:
    made = key or Ed25519PrivateKey.generate()
    encoded = made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    path.write_bytes(encoded)
    return made


def verify(
    proof: str, url: str
) -> EllipticCurvePublicKey | RSAPublicKey | DSAPublicKey | Ed25519PublicKey:
    """Verify as the registry does, and return the public key."""
    public, _, signature = proof.partition(":")
    digest = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
    key = load_ssh_public_key(b"ssh-ed25519 " + public.encode())
    assert isinstance(key, Ed25519PublicKey)
    key.verify(base64.b64decode(signature), f"GET,{url},{digest}".encode())
    return key


def test_the_signature_covers_the_url(tmp_path: Path) -> None:
    key = write_key(tmp_path / "id")
    url = "https://ollama.com/token?service=x&ts=1"
    public = verify(sign(tmp_path / "id", url), url)
    raw = (Encoding.Raw, PublicFormat.Raw)
    assert public.public_bytes(*raw) == key.public_key().public_bytes(*raw)


def test_the_signature_is_sent_with_a_token_request(tmp_path: Path) -> None:
    write_key(tmp_path / "id")
    weights, config = b"weights", b"{}"
    content = manifest([described(weights)], described(config))
    blobs = {described(blob)["digest"]: blob for blob in (weights, config)}

    def answer(request: Request) -> Answer:
        if request.path == "/token":
            query = "&".join(f"{name}={value}" for name, value in request.query.items())
            verify(request.headers["authorization"], f"{server.url}/token?{query}")
            return Answer(body=b'{"token":"t"}')
        if request.headers.get("authorization") != "Bearer t":
            return Answer(
                401, {"WWW-Authenticate": f'Bearer realm="{server.url}/token",service="s"'}
            )
        return Answer(body=blobs.get(request.path.rpartition("/")[2], content))

    with serving(answer) as server:
        store = Store(tmp_path / "store")
        options = RemoteOptions(is_insecure=True, key=tmp_path / "id")
        with closing(pull(store, ModelName.parse(f"{server.host}/a/m"), options)) as steps:
            assert list(steps)[-1].status == "success"


def test_without_a_key_requests_are_anonymous(tmp_path: Path) -> None:
    assert RemoteOptions(key=tmp_path / "nothing").signer() is None
    assert RemoteOptions().signer() is None


@pytest.mark.parametrize("kind", ["nonsense", "rsa", "missing"])
def test_an_unusable_key_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "id"
    if kind == "nonsense":
        path.write_bytes(b"nonsense")
    elif kind == "rsa":
        write_key(path, generate_private_key(65537, 2048))
    with pytest.raises(RegistryError, match=r"^the key id ") as caught:
        sign(path, "https://x/")
    assert str(tmp_path) not in str(caught.value)
