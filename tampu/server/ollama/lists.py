"""Ollama's native API: the installed models, those in memory, and one in detail."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from tampu.engine.load_options import choose_engine
from tampu.engine.management import MemoryEstimate
from tampu.engine.placement import DeviceShare
from tampu.ml.gguf import read_gguf
from tampu.server.ollama.requests import ShowRequest, timestamp
from tampu.server.serving.generation_request import MAX_DURATION_S
from tampu.server.serving.managed_model import ManagedModel, PendingLoad
from tampu.server.serving.model_defaults import ModelDefaults
from tampu.store.catalog import Entry
from tampu.store.manifests import ModelConfig
from tampu.store.model import StoredMessage
from tampu.store.model_info import ModelInfo, plain_metadata
from tampu.store.modelfile import Modelfile, format_modelfile, parameter_texts

_MAX_VALUES = 5
_HIDDEN = ("general.name", "tokenizer.chat_template")


class Details(msgspec.Struct, kw_only=True):
    """A model's architecture and size."""

    parent_model: str = ""
    format: str = "gguf"
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    context_length: int
    embedding_length: int


class _NamedModel(msgspec.Struct, kw_only=True):
    name: str
    model: str
    size: int
    digest: str
    details: Details


class ListedModel(_NamedModel, kw_only=True):
    """An installed model; `origin`, tampu's own: where it is. Only its own store can be changed."""

    modified_at: str
    capabilities: tuple[str, ...]
    origin: str


class RunningModel(_NamedModel, kw_only=True):
    """A model in memory; tampu's own: `engine`, which computes it, and what follows.

    A slot computes one request; its size is its share of the cache and of recurrent states.
    `devices` says what each device has of the model, and `placement` why, in one sentence.
    `loading`: it is not ready yet, and its size is that of its file.
    """

    expires_at: str
    size_vram: int
    context_length: int
    engine: str
    slots: int = 0
    slot_size: int = 0
    devices: tuple[DeviceShare, ...] = ()
    placement: str = ""
    loading: bool = False


class TensorDetails(msgspec.Struct):
    """A tensor, its shape slowest dimension first; `size`, tampu's own, in bytes if requested."""

    name: str
    type: str
    shape: tuple[int, ...]
    size: int | msgspec.UnsetType = msgspec.UNSET


class ModelDetails(msgspec.Struct, kw_only=True):
    """A model in detail; `engine`, tampu's own, is what computes it.

    `template_problem`, tampu's own, says why its template cannot be used. `memory`, tampu's own, if
    requested; null: unknown.
    """

    license: str
    modelfile: str
    parameters: str
    template: str
    system: str
    details: Details
    messages: list[dict[str, Any]]
    model_info: dict[str, Any]
    capabilities: tuple[str, ...]
    modified_at: str
    engine: str
    template_problem: str | msgspec.UnsetType = msgspec.UNSET
    renderer: str | msgspec.UnsetType = msgspec.UNSET
    parser: str | msgspec.UnsetType = msgspec.UNSET
    requires: str | msgspec.UnsetType = msgspec.UNSET
    projector_info: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    tensors: list[TensorDetails] | msgspec.UnsetType = msgspec.UNSET
    memory: MemoryEstimate | msgspec.UnsetType | None = msgspec.UNSET


def tags(entries: Sequence[Entry]) -> dict[str, list[ListedModel]]:
    """Return the response to `GET /api/tags`."""
    return {"models": [_tag(entry) for entry in entries]}


def processes(
    models: Sequence[ManagedModel], loading: Sequence[PendingLoad], engine: str
) -> dict[str, list[RunningModel]]:
    """Return the response to `GET /api/ps`: models in memory, and those being loaded.

    `engine` computes the models whose Modelfile names no other.
    """
    loaded = [_process(model) for model in models if model.runner.is_alive]
    pending = [_pending(each, engine) for each in loading]
    return {"models": sorted(loaded + pending, key=_expiry, reverse=True)}


def show(entry: Entry, defaults: ModelDefaults, body: ShowRequest, engine: str) -> ModelDetails:
    """Return the response to `POST /api/show`; long arrays and tensors only if requested.

    `engine` computes the models whose Modelfile names no other.

    A template, system message or options in the request are shown in place of the model's own.
    """
    info, stored = entry.info, entry.model.stored
    licenses = stored.licenses if stored else []
    config = stored.config if stored else ModelConfig()
    is_verbose = bool(body.verbose)
    template = (stored.template if stored else "") or info.template
    modelfile = Modelfile(
        sources=(entry.full_name,),
        parameters={**defaults.parameters, **(body.options or {})},
        template=body.template or template or None,
        system=body.system or defaults.system or None,
        licenses=tuple(licenses),
        messages=tuple(StoredMessage(said["role"], said["content"]) for said in defaults.messages),
        renderer=config.renderer or None,
        parser=config.parser or None,
        requires=config.requires or None,
    )
    return ModelDetails(
        license="\n".join(licenses) or info.license,
        modelfile=f"# Modelfile made by tampu\n{format_modelfile(modelfile)}",
        parameters="\n".join(parameter_texts(modelfile.parameters)),
        template=body.template or template,
        system=modelfile.system or "",
        details=_details(info),
        messages=list(map(dict, defaults.messages)),
        model_info=_model_info(info, verbose=is_verbose),
        capabilities=info.capabilities,
        modified_at=timestamp(entry.modified_s),
        template_problem=info.template_problem or msgspec.UNSET,
        renderer=config.renderer or msgspec.UNSET,
        parser=config.parser or msgspec.UNSET,
        requires=config.requires or msgspec.UNSET,
        engine=choose_engine(str(defaults.parameters.get("engine", engine)), info.loaded_as),
        projector_info=_projector_info(entry),
        tensors=_tensors(info, body) if is_verbose or body.tensors else msgspec.UNSET,
    )


def _projector_info(entry: Entry) -> dict[str, Any] | msgspec.UnsetType:
    for path in entry.model.projector_paths:
        return plain_metadata(read_gguf(path).metadata, max_items=_MAX_VALUES)
    return msgspec.UNSET


def _tensors(info: ModelInfo, body: ShowRequest) -> list[TensorDetails]:
    return [
        TensorDetails(
            tensor.name,
            tensor.type.name,
            tensor.shape,
            tensor.size_bytes if body.tensors else msgspec.UNSET,
        )
        for tensor in read_gguf(info.path).tensors.values()
    ]


def _tag(entry: Entry) -> ListedModel:
    return ListedModel(
        **_named(entry),
        size=entry.model.size_bytes,
        modified_at=timestamp(entry.modified_s),
        capabilities=entry.info.capabilities,
        origin=entry.model.origin.value,
    )


def _named(entry: Entry) -> dict[str, Any]:
    """Return the fields that name a model in both lists."""
    name, digest = entry.full_name, entry.model.id
    return {"name": name, "model": name, "digest": digest, "details": _details(entry.info)}


def _process(model: ManagedModel) -> RunningModel:
    entry = model.entry
    stays_s = min(model.keep_alive_s, MAX_DURATION_S)
    ready = model.runner.facts
    return RunningModel(
        **_named(entry),
        size=ready.memory_bytes,
        expires_at=timestamp(model.expires_s or time.time() + stays_s),
        size_vram=ready.device_bytes,
        context_length=ready.context,
        engine=ready.engine,
        slots=ready.slots,
        slot_size=ready.slot_bytes,
        devices=ready.placement.shares,
        placement=ready.placement.reason,
    )


def _pending(loading: PendingLoad, engine: str) -> RunningModel:
    """Return a model that is being loaded; its size is that of its file."""
    entry = loading.entry
    stored = entry.model.stored
    stated = stored.parameters.get("engine", engine) if stored else engine
    return RunningModel(
        **_named(entry),
        size=entry.info.size_bytes,
        expires_at=timestamp(time.time() + min(loading.keep_alive_s, MAX_DURATION_S)),
        size_vram=0,
        context_length=loading.context,
        engine=choose_engine(str(stated), entry.info.loaded_as),
        loading=True,
    )


def _expiry(process: RunningModel) -> datetime:
    return datetime.fromisoformat(process.expires_at)


def _details(info: ModelInfo) -> Details:
    return Details(
        family=info.architecture,
        families=[info.architecture],
        parameter_size=info.parameter_size,
        quantization_level=info.quantization,
        context_length=info.context,
        embedding_length=info.embedding_length,
    )


def _model_info(info: ModelInfo, *, verbose: bool) -> dict[str, Any]:
    shown = plain_metadata(info.metadata, max_items=None if verbose else _MAX_VALUES)
    for key in _HIDDEN:
        shown.pop(key, None)
    return shown | {"general.parameter_count": info.parameters}
