"""Who asks: Ollama's registry knows people by the Ed25519 key in ~/.ollama/id_ed25519.

The signature covers the method, the whole address and the hash of an empty body; it goes with the
public key when a token is asked for. The private key never leaves this machine.
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
    """Return what proves, in `Authorization`, that the owner of a key asks for a token.

    Args:
        path: of the private key, in OpenSSH's format and without a passphrase.
        url: that is asked with GET, with its query.

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
        raise RegistryError(f"the key {path.name} is no OpenSSH key without passphrase") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RegistryError(f"the key {path.name} is no Ed25519 key")
    return key
