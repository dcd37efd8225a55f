"""Pulls of models that a command needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tampu.cli.progress import show_progress
from tampu.errors import ModelNameError, ModelNotFoundError, RegistryError, RequestError
from tampu.settings.parsers import existing_path, parse_rate
from tampu.settings.settings import Settings
from tampu.store.gguf_files import SUFFIX
from tampu.store.library import Library
from tampu.store.names import ModelName
from tampu.store.store import Store

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
    if existing_path(model) is not None:
        return
    try:
        Library.from_settings(settings).find(model)
    except ModelNotFoundError as missing:
        if model.endswith(SUFFIX) or model.startswith((".", "/", "~")):
            raise ModelNotFoundError(f"{model}: no such file") from None
        from tampu.store.registry.pull import pull  # slow to import, and seldom needed

        options = remote_options(settings, insecure)
        try:
            show(pull(Store(settings.models), ModelName.parse(model), options))
        except ModelNameError:
            raise missing from None
        except RegistryError as error:
            raise ModelNotFoundError(f"{missing}; it cannot be pulled: {error}") from error


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
