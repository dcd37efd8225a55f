"""Options for access to registries and the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tampu.settings.proxies import Proxies
from tampu.settings.remote_settings import RemoteSettings
from tampu.settings.settings import Settings
from tampu.store.names import DEFAULT_HOST, ModelName, canonical_host

MAX_ATTEMPTS = 6
MAX_UNREACHABLE = 2  # attempts to reach a host at first: it may be a typo
HUB_HOSTS = frozenset({"hf.co", "huggingface.co"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """Options for access to registries and the hub.

    Attributes:
        default_registry: the host used in place of registry.ollama.ai.
        realms: pairs of a registry and another host that may issue its tokens.
        logins: pairs of a registry and the "name:password" that only it receives.
        proxies: the proxies for hosts. A proxy resolves names and decides about their addresses;
            a literal private address is refused here.
        connections: the maximum number at once for a blob.
        limit_rate: the maximum of bytes per second; None: unlimited.
        key: the private key file that identifies the user to Ollama's registry; may be missing.
        hub: the URL of the Hugging Face Hub.
        hub_token: for private repositories there.
        public_registries: hosts of registries that remote clients may use, too.
        is_insecure: allow HTTP without TLS, and addresses in private networks.
        allows_http: allow HTTP without TLS.
        open_hosts: hosts that may have an address in a private network.
        retry_delays_s: before the first, second, ... retry.
        connect_timeout_s: how long connecting may take.
        read_timeout_s: how long a connection may be silent before it counts as lost.
    """

    default_registry: str = DEFAULT_HOST
    realms: tuple[tuple[str, str], ...] = ()
    logins: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    proxies: Proxies = field(default_factory=Proxies)
    connections: int = RemoteSettings.connections
    limit_rate: int | None = None
    key: Path | None = None
    hub: str = RemoteSettings.hub
    hub_token: str | None = None
    public_registries: tuple[str, ...] = ()
    is_insecure: bool = False
    allows_http: bool = False
    open_hosts: tuple[str, ...] = ()
    retry_delays_s: tuple[float, ...] = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0

    @classmethod
    def from_settings(
        cls, settings: Settings, *, is_insecure: bool = False, limit_rate: int | None = None
    ) -> RemoteOptions:
        """Return the options of the settings; `limit_rate` overrides theirs."""
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
        """Return the host of a model's registry."""
        is_default = canonical_host(name.host) == DEFAULT_HOST
        return self.default_registry if is_default else name.host

    @property
    def known_hosts(self) -> frozenset[str]:
        """The registries in the settings, and the hub."""
        named = (registry for registry, _ in (*self.realms, *self.logins))
        return HUB_HOSTS | {self.default_registry, *self.public_registries, *named}

    @property
    def private_hosts(self) -> frozenset[str]:
        """The hosts that may have an address in a private network."""
        registry = {self.default_registry.partition(":")[0]} - {DEFAULT_HOST}
        return frozenset({*registry, *self.open_hosts})

    def retry_delay_s(self, failures: int, requested_s: float) -> float:
        """Return how long to wait after `failures` failed attempts, at least what was requested."""
        delays = self.retry_delays_s
        return max(requested_s, delays[min(failures, len(delays) - 1)])

    def base_of(self, name: ModelName) -> str:
        """Return the base URL of a model's registry."""
        scheme = "http" if self.is_insecure else name.scheme
        return f"{scheme}://{self.host_of(name)}"

    def signer(self) -> Callable[[str], str] | None:
        """Return a function that signs requests for tokens; None without a key."""
        key = self.key
        if key is None or not key.is_file():
            return None

        def prove(url: str) -> str:
            from tampu.store.registry.signing import sign  # slow to import, rarely needed

            return sign(key, url)

        return prove

    def realm_hosts(self, host: str) -> frozenset[str]:
        """Return the other hosts that may issue a registry's tokens."""
        return frozenset(realm for registry, realm in self.realms if registry == host.lower())
