"""Combines the given load options with those that the store has for the model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from tampu.engine.load_options import LoadOptions, load_options, with_offload
from tampu.ml.device_map import Offload
from tampu.settings.settings import Settings
from tampu.store.catalog import Prepared, prepare

log = logging.getLogger("tampu")

_PLACING = {"gpu_layers", "main_gpu", "tensor_split", "n_cpu_moe", "kv_offload"}


def prepared_options(
    path: str,
    options: LoadOptions | None,
    offload: Offload | None,
    settings: Settings | None,
    values: Mapping[str, Any],
) -> tuple[LoadOptions, Prepared]:
    """Return the options to load a model with, and the model; as `Engine.load`."""
    is_loose = options is None
    options = options or load_options(values)
    found = prepare(
        path,
        options.adapters,
        options.template,
        options.projector,
        settings,
        allow_unknown=options.allow_unknown,
        draft=options.draft,
    )
    found = replace(found, parser=options.parser or found.parser)
    options = msgspec.structs.replace(
        options,
        adapters=tuple((str(path), scale) for path, scale in found.adapters),
        projector=str(found.projector) if found.projector else None,
        draft=str(found.draft) if found.draft else None,
    )
    if is_loose:
        if values.get("context") is None:
            options = msgspec.structs.replace(options, context=found.context)
        if offload is not None or not _PLACING & values.keys():
            options = with_offload(options, offload or found.offload)
    return options, found
