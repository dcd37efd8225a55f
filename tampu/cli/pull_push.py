"""`tampu pull` and `tampu push`: models from registries and to them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tampu.cli.arguments import Insecure, StoredModel, model_argument
from tampu.cli.models import stored_model
from tampu.cli.progress import show_progress
from tampu.cli.pulling import remote_options
from tampu.settings.settings import Settings
from tampu.store.names import ModelName
from tampu.store.store import Store

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
    options = remote_options(settings, insecure, limit_rate)
    show_progress(pull(Store(settings.models), ModelName.parse(model), options))


def push_command(
    model: StoredModel, insecure: Insecure = False, limit_rate: LimitRate = None
) -> None:
    """Upload a model to the registry in its name."""
    from tampu.store.registry.push import push

    settings = Settings.from_environment()
    name, options = ModelName.parse(model), remote_options(settings, insecure, limit_rate)
    show_progress(push(stored_model(model, settings)[0], name, options))
    print(f"{model} is at {options.base_of(name)}/{name.repository}", file=sys.stderr)
