"""What depends on where a caller is."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request

from tampu.errors import NotAllowedError
from tampu.server.trusted_host import is_loopback
from tampu.store.names import ModelName
from tampu.store.registry.options import RemoteOptions

_MAPPED = "::ffff:"  # an IPv4 address, where a socket of IPv6 takes both


def is_near(request: Request) -> bool:
    """Whether a caller is on this machine, as far as its address says."""
    if request.client is None:
        return True  # through the Unix socket
    return is_loopback(request.client.host.removeprefix(_MAPPED))


def remote_for(
    request: Request, options: RemoteOptions, name: ModelName, *, is_insecure: bool = False
) -> RemoteOptions:
    """Return how this caller's wish for a model of a registry is met.

    Whoever calls from another machine names registries of the settings only: with any other host
    this machine would fetch for a stranger what the stranger cannot reach.

    Raises:
        NotAllowedError: if it is another.
    """
    host = options.host_of(name)
    if not is_near(request) and host.lower() not in options.known_hosts:
        raise NotAllowedError(
            f"only callers on the server's machine may name the registry {host}; its owner can "
            "allow it to all (TAMPU_REGISTRIES)"
        )
    return replace(options, is_insecure=is_insecure)
