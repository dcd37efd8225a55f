"""Ollama's native API: the models there are, those in memory, and one in detail."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from tampu.catalog import TAG, Entry
from tampu.modelinfo import ModelInfo, plain_metadata
from tampu.server.loaded import LoadedModel
from tampu.server.wire.ollama import timestamp

_MOST_VALUES = 5
_CENTURIES_S = 200 * 365 * 86_400.0
_HIDDEN = ("general.name", "tokenizer.chat_template")


class Details(msgspec.Struct, kw_only=True):
    """What kind of model it is."""

    parent_model: str = ""
    format: str = "gguf"
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    context_length: int
    embedding_length: int


class Tag(msgspec.Struct, kw_only=True):
    """A model that there is."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    capabilities: tuple[str, ...]


class Process(msgspec.Struct, kw_only=True):
    """A model in memory."""

    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int


class Shown(msgspec.Struct, kw_only=True):
    """A model in detail."""

    license: str
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: tuple[str, ...]
    modified_at: str


def tags(entries: Sequence[Entry]) -> dict[str, list[Tag]]:
    """Return the answer to `GET /api/tags`."""
    return {"models": [_tag(entry) for entry in entries]}


def processes(models: Sequence[LoadedModel]) -> dict[str, list[Process]]:
    """Return the answer to `GET /api/ps`."""
    return {"models": [_process(model) for model in models if model.runner.is_alive]}


def show(entry: Entry, *, verbose: bool) -> Shown:
    """Return the answer to `POST /api/show`; long arrays only if `verbose`."""
    info = entry.info
    return Shown(
        license=info.license,
        modelfile=f"# Modelfile made by tampu\nFROM {entry.name}\n",
        parameters="",
        template=info.template,
        details=_details(info),
        model_info=_model_info(info, verbose=verbose),
        capabilities=info.capabilities,
        modified_at=timestamp(entry.modified_s),
    )


def _tag(entry: Entry) -> Tag:
    return Tag(
        name=entry.name + TAG,
        model=entry.name + TAG,
        modified_at=timestamp(entry.modified_s),
        size=entry.info.size_bytes,
        digest=_digest(entry),
        details=_details(entry.info),
        capabilities=entry.info.capabilities,
    )


def _process(model: LoadedModel) -> Process:
    entry = model.entry
    stays_s = min(model.keep_alive_s, _CENTURIES_S)
    ready = model.runner.ready
    return Process(
        name=entry.name + TAG,
        model=entry.name + TAG,
        size=ready.memory_bytes,
        digest=_digest(entry),
        details=_details(entry.info),
        expires_at=timestamp(model.expires_s or time.time() + stays_s),
        size_vram=ready.device_bytes,
        context_length=ready.context,
    )


def _details(info: ModelInfo) -> Details:
    return Details(
        family=info.architecture,
        families=[info.architecture],
        parameter_size=info.parameter_size,
        quantization_level=info.quantization,
        context_length=info.context,
        embedding_length=info.embedding_length,
    )


def _digest(entry: Entry) -> str:
    """Return 64 hex digits that change with the file; its content is too long to be hashed here."""
    identity = f"{entry.name}\0{entry.info.size_bytes}\0{entry.modified_s}"
    return hashlib.sha256(identity.encode()).hexdigest()


def _model_info(info: ModelInfo, *, verbose: bool) -> dict[str, Any]:
    shown = plain_metadata(info.metadata, longest=None if verbose else _MOST_VALUES)
    for key in _HIDDEN:
        shown.pop(key, None)
    return shown | {"general.parameter_count": info.parameters}
