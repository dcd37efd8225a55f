"""How registries and hubs are talked to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tampu.settings.proxies import Proxies
from tampu.settings.settings import Settings
from tampu.store.names import DEFAULT_HOST, ModelName, canonical_host
from tampu.store.registry.download import RETRY_DELAYS_S
from tampu.store.registry.session import Signer

HUB_HOSTS = frozenset({"hf.co", "huggingface.co"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """How registries and hubs are talked to.

    Attributes:
        default_registry: the host that stands for registry.ollama.ai.
        realms: pairs of a registry and another host that may give out its tokens.
        logins: pairs of a registry and the "name:password" that it, and nobody else, gets.
        proxies: which proxy stands before which host.
        connections: the most at once for a blob.
        limit_rate: the most bytes in a second; None is without limit.
        key: the file of the private key that tells Ollama's registry who asks; it need not exist.
        hub: the address of Hugging Face's hub.
        hub_token: for models there that are not public.
        public_registries: hosts of registries that callers from other machines may name, too.
        is_insecure: use HTTP without TLS, and allow addresses of private networks.
        retry_delays_s: before the first, second, ... try again.
        read_timeout_s: how long no byte may come before a connection counts as lost.
    """

    default_registry: str = DEFAULT_HOST
    realms: tuple[tuple[str, str], ...] = ()
    logins: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    proxies: Proxies = field(default_factory=Proxies)
    connections: int = 8
    limit_rate: int | None = None
    key: Path | None = None
    hub: str = "https://huggingface.co"
    hub_token: str | None = None
    public_registries: tuple[str, ...] = ()
    is_insecure: bool = False
    retry_delays_s: tuple[float, ...] = RETRY_DELAYS_S
    read_timeout_s: float = 30.0

    @classmethod
    def from_settings(
        cls, settings: Settings, *, is_insecure: bool = False, limit_rate: int | None = None
    ) -> RemoteOptions:
        """Return a user's options; a rate given here comes before that of the settings."""
        return cls(
            default_registry=settings.registry,
            realms=settings.realms,
            logins=settings.logins,
            proxies=settings.proxies,
            connections=settings.connections,
            limit_rate=limit_rate or settings.limit_rate,
            key=settings.registry_key,
            hub=settings.hub,
            hub_token=settings.hub_token,
            public_registries=settings.registries,
            is_insecure=is_insecure,
        )

    def host_of(self, name: ModelName) -> str:
        """Return the host of the registry that has a model."""
        is_default = canonical_host(name.host) == DEFAULT_HOST
        return self.default_registry if is_default else name.host

    @property
    def known_hosts(self) -> frozenset[str]:
        """The registries that the settings name, and the hub."""
        named = (registry for registry, _ in (*self.realms, *self.logins))
        return HUB_HOSTS | {self.default_registry, *self.public_registries, *named}

    def base_of(self, name: ModelName) -> str:
        """Return the address of the registry that has a model."""
        scheme = "http" if self.is_insecure else name.scheme
        return f"{scheme}://{self.host_of(name)}"

    def signer(self) -> Signer | None:
        """Return what proves who asks; None without a key."""
        key = self.key
        if key is None or not key.is_file():
            return None

        def prove(url: str) -> str:
            from tampu.store.registry.signing import sign  # slow to import, and seldom needed

            return sign(key, url)

        return prove

    def realm_hosts(self, host: str) -> frozenset[str]:
        """Return the other hosts that may give out a registry's tokens."""
        return frozenset(realm for registry, realm in self.realms if registry == host.lower())
