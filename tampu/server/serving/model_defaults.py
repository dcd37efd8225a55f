"""A model's defaults: from its file, and from its Modelfile for each request."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from tampu.chat.renderers import own_template
from tampu.engine.load_options import LoadOptions, choose_engine
from tampu.store.catalog import Entry
from tampu.store.manifests import Media
from tampu.store.model import StoredDefaults
from tampu.store.model_info import ModelInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelDefaults(StoredDefaults):
    """What a model sets for its requests.

    Attributes:
        info: the metadata of its file.
        truncate: whether prompts that are too long are cut, by the server's setting; None: each
            API has its own default.
        max_capture_bytes: the size of the values inside the model that a response may have, by the
            server's setting; 0: none are returned.
    """

    info: ModelInfo
    truncate: bool | None = None
    max_capture_bytes: int = 0


def with_model_files(options: LoadOptions, entry: Entry) -> LoadOptions:
    """Return load options with a model's name, files, template, parser and engine.

    Raises:
        StoreError: if a part of it is missing from the store.
    """
    stored, engine = entry.model.stored, options.engine
    projector = next(map(str, entry.model.projector_paths), None)
    if problem := entry.model.projector_problem:
        logger.warning("%s", problem)
    found: dict[str, Any] = {"name": entry.full_name, "projector": projector}
    if stored is not None:
        adapters = tuple((str(path), 1.0) for path in stored.paths(Media.ADAPTER))
        config = stored.config
        template = own_template(stored.template, config.renderer, entry.info.metadata)
        found |= {"template": template, "parser": config.parser, "adapters": adapters}
        if drafts := stored.paths(Media.DRAFT):
            found["draft"] = str(drafts[0])
        engine = str(stored.parameters.get("engine", engine))
    found["engine"] = choose_engine(engine, entry.info.loaded_as)
    return msgspec.structs.replace(options, **found)


def model_defaults(
    entry: Entry, *, truncate: bool | None = None, max_capture_bytes: int = 0
) -> ModelDefaults:
    """Return the defaults that a model sets, and those of the server.

    Raises:
        StoreError: if a part of it is missing from the store.
    """
    stored = entry.model.stored
    if stored is None:
        return ModelDefaults(entry.info, truncate=truncate, max_capture_bytes=max_capture_bytes)
    own = stored.defaults
    return ModelDefaults(
        entry.info,
        truncate=truncate,
        max_capture_bytes=max_capture_bytes,
        parameters=own.parameters,
        system=own.system,
        messages=own.messages,
    )
