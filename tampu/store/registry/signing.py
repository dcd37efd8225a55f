"""Signatures for Ollama's registry, which identifies users by the key ~/.ollama/id_ed25519.

The signature covers the method, the full URL and the hash of an empty body; it is sent with the
public key to request a token. The private key never leaves this machine.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)

from tampu.errors import RegistryError

_EMPTY = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
_MAX_KEY_BYTES = 64 << 10


def sign(path: Path, url: str) -> str:
    """Return the `Authorization` header that signs a request for a token.

    Args:
        path: of the private key, in OpenSSH format without a passphrase.
        url: of the GET request, with its query.

    Raises:
        RegistryError: if the key cannot be used.
    """
    key = _read_key(path)
    signature = key.sign(f"GET,{url},{_EMPTY}".encode())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return f"{public.split()[1].decode()}:{base64.b64encode(signature).decode()}"


def _read_key(path: Path) -> Ed25519PrivateKey:
    try:
        with path.open("rb") as file:
            key = load_ssh_private_key(file.read(_MAX_KEY_BYTES), password=None)
    except OSError as error:
        raise RegistryError(f"the key {path.name} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RegistryError(
            f"the key {path.name} is not an OpenSSH key without passphrase"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RegistryError(f"the key {path.name} is not an Ed25519 key")
    return key
