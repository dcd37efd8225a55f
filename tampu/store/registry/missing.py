"""Pulls of models that are needed and not on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tampu.errors import ModelNameError, ModelNotFoundError, RegistryError
from tampu.settings.parsers import existing_path
from tampu.settings.settings import Settings
from tampu.store.gguf_files import SUFFIX
from tampu.store.library import Library
from tampu.store.names import ModelName
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.progress import Progress
from tampu.store.store import Store


def pull_missing(
    model: str,
    settings: Settings,
    options: RemoteOptions,
    show: Callable[[Iterable[Progress]], object],
) -> None:
    """Pull a model that is not on this machine; do nothing for a path.

    Args:
        model: a name, or a path.
        settings: where models are.
        options: how the registry is used.
        show: takes the progress to its end.

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

        try:
            show(pull(Store(settings.models), ModelName.parse(model), options))
        except ModelNameError:
            raise missing from None
        except RegistryError as error:
            raise ModelNotFoundError(f"{missing}; it cannot be pulled: {error}") from error
