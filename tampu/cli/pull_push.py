"""`tampu pull` and `tampu push`: models from registries and to them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.arguments import Insecure, StoredModel, model_argument
from tampu.cli.models import stored_model
from tampu.cli.progress import show_progress
from tampu.errors import ModelNameError, ModelNotFoundError, RegistryError
from tampu.settings.parsers import existing_path, parse_rate
from tampu.settings.settings import Settings
from tampu.store.gguf_files import SUFFIX
from tampu.store.library import Library
from tampu.store.names import ModelName
from tampu.store.store import Store

if TYPE_CHECKING:
    from tampu.store.registry.options import RemoteOptions
    from tampu.store.registry.progress import Progress

LimitRate = Annotated[
    str | None, typer.Option(metavar="RATE", help="Maximum rate in bytes per second, such as 10MB.")
]


def pull_command(
    model: Annotated[
        str, model_argument("MODEL", "Model name, such as llama3.2:1b or hf.co/user/repo:Q4_K_M.")
    ],
    insecure: Insecure = False,
    limit_rate: LimitRate = None,
) -> None:
    """Download a model from a registry or from Hugging Face."""
    from tampu.store.registry.pull import pull

    settings = Settings.from_environment()
    options = _remote_options(settings, insecure, limit_rate)
    show_progress(pull(Store(settings.models), ModelName.parse(model), options))


def push_command(
    model: StoredModel, insecure: Insecure = False, limit_rate: LimitRate = None
) -> None:
    """Upload a model to the registry in its name."""
    from tampu.store.registry.push import push

    settings = Settings.from_environment()
    name, options = ModelName.parse(model), _remote_options(settings, insecure, limit_rate)
    show_progress(push(stored_model(model, settings)[0], name, options))
    print(f"{model} is at {options.base_of(name)}/{name.repository}", file=sys.stderr)


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

        options = _remote_options(settings, insecure)
        try:
            show(pull(Store(settings.models), ModelName.parse(model), options))
        except ModelNameError:
            raise missing from None
        except RegistryError as error:
            raise ModelNotFoundError(f"{missing}; it cannot be pulled: {error}") from error


def _remote_options(
    settings: Settings, insecure: bool, limit_rate: str | None = None
) -> RemoteOptions:
    from tampu.store.registry.options import RemoteOptions

    try:
        rate = parse_rate(limit_rate) if limit_rate else None
    except ValueError as error:
        raise typer.BadParameter(f"--limit-rate {limit_rate}: {error}") from error
    return RemoteOptions.from_settings(settings, is_insecure=insecure, limit_rate=rate)
