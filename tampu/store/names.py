"""Model names and blob digests: validated value types.

Names become folders and digests become files, so both are validated on construction. Names follow
Ollama's rules: `[scheme://][host/][namespace/]model[:tag]`, parts of ASCII letters, digits, `_`,
`-` and `.` that start with a letter, a digit or `_`; no `.` in a namespace. Names are compared
case-insensitively.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import total_ordering
from pathlib import PurePosixPath
from typing import Self

from tampu.errors import ModelNameError

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,349}(?::[0-9]{1,5})?", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAX_HOST_CHARACTERS = 350
_MAX_PART_CHARACTERS = 80
_MAX_PORT = 65_535
_ALIASES = {"ollama.com": DEFAULT_HOST}
_SCHEMES = ("https", "http")
_SHOWN = 100


@dataclass(frozen=True, slots=True, eq=False)
class ModelName:
    """The full name of a model; case and scheme do not matter for equality.

    Attributes:
        model: the base name, such as llama3.2.
        tag: the variant, such as 3b.
        namespace: the owner.
        host: the registry, with an optional port.
        scheme: https or http.

    Raises:
        ModelNameError: for an invalid part.
    """

    model: str
    tag: str = DEFAULT_TAG
    namespace: str = DEFAULT_NAMESPACE
    host: str = DEFAULT_HOST
    scheme: str = field(default="https")

    def __post_init__(self) -> None:
        _check("model", self.model, _PART)
        _check("tag", self.tag, _PART)
        _check("namespace", self.namespace, _NAMESPACE)
        _check("host", self.host, _HOST)
        _, _, port = self.host.partition(":")
        if len(self.host) > _MAX_HOST_CHARACTERS or (port and not 0 < int(port) <= _MAX_PORT):
            raise ModelNameError(f"invalid host {_shown(self.host)} in a model name")
        if self.scheme not in _SCHEMES:
            raise ModelNameError(f"invalid scheme {_shown(self.scheme)} in a model name: use https")

    @classmethod
    def parse(cls, text: str, *, default_host: str = DEFAULT_HOST) -> Self:
        """Parse a name, at least the model; missing parts get their defaults."""
        scheme, separator, rest = text.partition("://")
        if not separator:
            scheme, rest = "https", text
        before, colon, tag = rest.rpartition(":")
        is_tag = colon and "/" not in tag  # else it is a port
        rest, tag = (before, tag) if is_tag else (rest, DEFAULT_TAG)
        parts = rest.split("/")
        if len(parts) > 3:  # host, namespace, model
            raise ModelNameError(f"{_shown(text)} is not a valid model name: it has too many parts")
        host, namespace, model = [default_host, DEFAULT_NAMESPACE, ""][: 3 - len(parts)] + parts
        return cls(model, tag, namespace, host, scheme.lower())

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Host, namespace, model and tag in lower case, for comparison."""
        names = (self.namespace.lower(), self.model.lower(), self.tag.lower())
        return (canonical_host(self.host), *names)

    @property
    def short(self) -> str:
        """The displayed name: without the default host and namespace, with the tag."""
        shown = f"{self.model}:{self.tag}"
        is_default_host = canonical_host(self.host) == DEFAULT_HOST
        if not is_default_host or self.namespace.lower() != DEFAULT_NAMESPACE:
            shown = f"{self.namespace}/{shown}"
        return shown if is_default_host else f"{self.host}/{shown}"

    @property
    def repository(self) -> str:
        """The repository in its registry: namespace/model."""
        return f"{self.namespace}/{self.model}"

    @property
    def relative_path(self) -> PurePosixPath:
        """The path of its manifest in the folder of manifests."""
        return PurePosixPath(self.host, self.namespace, self.model, self.tag)

    def __str__(self) -> str:
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, ModelName) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)


@total_ordering
class Digest:
    """The SHA-256 of a blob; immutable. Anything else raises ModelNameError.

    Not a dataclass: msgspec would decode one from a JSON object without validation.
    """

    __slots__ = ("_hex",)

    def __init__(self, hex: str) -> None:  # noqa: A002 - the name of what it is
        """Create a digest from 64 lower-case hexadecimal digits."""
        if not _DIGEST.fullmatch(hex):
            raise ModelNameError(f"{_shown(hex)} is not a SHA-256 of 64 hexadecimal digits")
        self._hex = hex

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `sha256:<hex>`."""
        algorithm, _, digits = text.partition(":")
        if algorithm != "sha256":
            raise ModelNameError(f"{_shown(text)} is not a digest: use sha256:<64 hex digits>")
        return cls(digits)

    @classmethod
    def parse_file_name(cls, text: str) -> Self:
        """Parse a blob's file name, `sha256-<hex>` or `sha256:<hex>`."""
        return cls.parse(text.replace("-", ":", 1) if text.startswith("sha256-") else text)

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return the digest of bytes."""
        return cls(hashlib.sha256(content).hexdigest())

    @property
    def hex(self) -> str:
        """The 64 digits."""
        return self._hex

    @property
    def file_name(self) -> str:
        """The name of the blob's file."""
        return f"sha256-{self.hex}"

    @property
    def short(self) -> str:
        """The first twelve digits, for display."""
        return self.hex[:12]

    def __str__(self) -> str:
        return f"sha256:{self.hex}"

    def __repr__(self) -> str:
        return f"Digest({self.hex!r})"

    def __eq__(self, other: object) -> bool:
        return self.hex == other.hex if isinstance(other, Digest) else NotImplemented

    def __lt__(self, other: Digest) -> bool:
        return self.hex < other.hex

    def __hash__(self) -> int:
        return hash(self.hex)


def canonical_host(host: str) -> str:
    """Return a host in lower case, with aliases resolved."""
    return _ALIASES.get(host.lower(), host.lower())


def _check(kind: str, text: str, allowed: re.Pattern[str]) -> None:
    if not allowed.fullmatch(text):
        if any(map(str.isspace, text)):
            raise ModelNameError(f"a model name must not contain spaces: {_shown(text)}")
        reason = "is empty" if not text else f"{_shown(text)} is not valid"
        if len(text) > _MAX_PART_CHARACTERS and allowed is not _HOST:
            reason = f"{_shown(text)} is longer than {_MAX_PART_CHARACTERS} characters"
        raise ModelNameError(f"a model name is [host/][namespace/]model[:tag]; its {kind} {reason}")


def _shown(text: str) -> str:
    return repr(text[:_SHOWN])
