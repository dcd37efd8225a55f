"""The builder function for Ray Serve's commands: `serve run tampu.cluster.app:build model=demo`.

In a file for `serve deploy`, `import_path` names it, and `args` has its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from ray import serve

from tampu.cluster.application import bind
from tampu.cluster.config import ClusterConfig, DeployedModel
from tampu.errors import SettingsError
from tampu.server.options import server_options
from tampu.server.serve import check_exposure
from tampu.settings.settings import Settings
from tampu.settings.type_errors import type_error


def build(arguments: Mapping[str, Any]) -> serve.Application:
    """Return the application of one model, with the settings of the environment.

    Args:
        arguments: the fields of `DeployedModel`; `serve run` gives texts.

    Raises:
        SettingsError: for an unknown field or an invalid value; or if TAMPU_HOST is an address that
            other machines can reach, and there is no key.
    """
    try:
        model = msgspec.convert(dict(arguments), DeployedModel, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(type_error(error, "the arguments of the application")) from None
    config = ClusterConfig(models=(model,))
    config.check()
    settings = Settings.from_environment()
    options = server_options(settings, [settings.address.host])
    has_keys = bool(options.use_api_keys or options.api_keys or options.keys)
    check_exposure(settings.address.host, has_keys=has_keys, is_allowed=False)
    return bind(config, options, settings)
