"""Pulls of models that a command needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tampu.cli.progress import show_progress
from tampu.errors import RequestError
from tampu.settings.parsers import parse_rate
from tampu.settings.settings import Settings

if TYPE_CHECKING:
    from tampu.store.registry.options import RemoteOptions
    from tampu.store.registry.progress import Progress


def pull_if_missing(
    model: str,
    settings: Settings,
    *,
    insecure: bool = False,
    show: Callable[[Iterable[Progress]], None] = show_progress,
) -> None:
    """Pull a model that is not on this machine; do nothing for a path.

    Raises:
        ModelNotFoundError: if it cannot be pulled either; the message says why.
        TampuError: as `pull`.
    """
    from tampu.store.registry.missing import pull_missing

    pull_missing(model, settings, remote_options(settings, insecure), show)


def remote_options(
    settings: Settings, insecure: bool, limit_rate: str | None = None
) -> RemoteOptions:
    """Return how a registry is used.

    Raises:
        RequestError: for an invalid rate.
    """
    from tampu.store.registry.options import RemoteOptions

    try:
        rate = parse_rate(limit_rate) if limit_rate else None
    except ValueError as error:
        raise RequestError(f"--limit-rate {limit_rate}: {error}") from error
    return RemoteOptions.from_settings(settings, is_insecure=insecure, limit_rate=rate)
