"""The settings of access to registries and the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tampu.settings.declaring import folder, foreign, optional, own
from tampu.settings.parsers import count_from, host, logins, parse_rate, realms, texts
from tampu.settings.proxies import Proxies
from tampu.settings.reader import Reader

_HUB = "https://huggingface.co"


def _read_hub(reader: Reader) -> str:
    return (reader.foreign_text("HF_ENDPOINT", _HUB) or _HUB).rstrip("/")


# fmt: off
@dataclass(frozen=True, kw_only=True)
class RemoteSettings:
    """How models are downloaded and uploaded."""

    registry: str = own(
        "REGISTRY", host, "registry.ollama.ai",
        "the host used for names without one, such as a mirror")
    registries: tuple[str, ...] = own(
        "REGISTRIES", texts, "",
        "more registry hosts that clients on other machines may use, besides the default registry "
        "and Hugging Face; clients on this machine may use any public host")
    realms: tuple[tuple[str, str], ...] = own(
        "REALMS", realms, "",
        "hosts that may issue a registry's tokens: `registry=host`, separated by commas")
    logins: tuple[tuple[str, str], ...] = own(
        "LOGINS", logins, "",
        "`registry.example:5000=name:password`, separated by commas; `%2C` is a comma, `%25` a "
        "percent", is_secret=True)
    connections: int = own(
        "CONNECTIONS", count_from(1), "8", "maximum number of connections for a blob")
    limit_rate: int | None = optional(
        "LIMIT_RATE", parse_rate,
        "maximum bytes per second, such as 10MB; `--limit-rate` for one command")
    registry_key: Path | None = folder(
        "REGISTRY_KEY", "the key for Ollama's registry", ("", ".ollama/id_ed25519"))
    hub: str = foreign(("HF_ENDPOINT",), _read_hub, _HUB, "the Hugging Face Hub")
    hub_token: str | None = foreign(
        ("HF_TOKEN",), lambda reader: reader.foreign_text("HF_TOKEN"), None,
        "for private models of the Hub")
    proxies: Proxies = foreign(
        ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"), Reader.proxies, Proxies(),
        "proxies, as `http://name:password@host:port`; direct access: hosts including subdomains, "
        "addresses, networks such as `10.0.0.0/8`, or `*`. Also in lower case")
# fmt: on
