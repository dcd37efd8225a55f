"""A model bound to the tensors of its files: no weights are read yet."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tampu.engine.load_options import DEFAULT_BATCH, LoadOptions
from tampu.engine.memory import Footprint, weight_sizes
from tampu.engine.pooling import pooling_of
from tampu.gguf_compat import read_model
from tampu.kvcache import CacheSize, state_features
from tampu.ml import Weights
from tampu.ml.device_map import is_embedding
from tampu.ml.devices import Device, find_devices
from tampu.ml.gguf import GGUFFile, TensorInfo
from tampu.ml.vulkan import VISIBLE, usable_devices
from tampu.models import ASSISTANT, bind_model
from tampu.nn import Model
from tampu.nn.lora import attach
from tampu.settings.model_settings import DEFAULT_CONTEXT
from tampu.settings.settings import runner_environment
from tampu.store.draft import is_assistant
from tampu.store.model_info import ModelInfo, describe

log = logging.getLogger("tampu")


@dataclass(frozen=True, slots=True)
class BoundModel:
    """A model bound to the tensors of its files; no weights are read yet.

    Attributes:
        info: the metadata of the model's own file.
        model: the tensors are bound to it.
        weights: of the model's own file.
        others: of the adapters, the projector and the assistant.
    """

    info: ModelInfo
    model: Model
    weights: Weights
    others: list[Weights]

    @property
    def file(self) -> GGUFFile:
        """The model's own file."""
        return self.weights.file

    @property
    def parts(self) -> list[Weights]:
        """The weights of all files, the model's own first."""
        return [self.weights, *self.others]

    @property
    def embeddings(self) -> list[TensorInfo]:
        """The tensors of the token embeddings."""
        tensors = self.weights.file.tensors
        return [info for name, info in tensors.items() if is_embedding(name)]

    def footprint(self, options: LoadOptions) -> Footprint:
        """Return the memory that it needs with these options."""
        sizes = {
            name: tensor.size_bytes
            for part in self.parts
            for name, tensor in part.file.tensors.items()
        }
        return Footprint(
            self.info,
            self.model.cache_shapes(),
            self.cache_size(options),
            cache_types(options),
            weight_sizes(sizes),
        )

    def cache_size(self, options: LoadOptions) -> CacheSize:
        """Return the size of its cache with these options."""
        wanted = CacheSize(
            options.max_slots,
            options.context,
            options.batch or DEFAULT_BATCH,
            options.state_cache,
            kv_unified=options.kv_unified,
        )
        if not options.kv_unified:
            return wanted
        return wanted.bounded(state_features(self.model.cache_shapes()))


def bind(
    path: Path, options: LoadOptions, resources: ExitStack, *, may_exceed: bool = False
) -> tuple[BoundModel, LoadOptions]:
    """Open a model's files and bind their tensors by name; return the options with its context.

    `may_exceed`: whether the context may be longer than in training, for measurements of speed.
    """

    def opened(path: str | Path) -> Weights:
        return resources.enter_context(Weights(read_model(path)))

    weights = opened(path)
    info = describe(weights.file)
    pooling_of(info.metadata, options.pooling)  # an invalid one is an error before the weights
    if options.name:
        info = replace(info, name=options.name)
    projector = opened(options.projector) if options.projector else None
    assistant = _assistant(options)
    drafts = resources.enter_context(Weights(assistant)) if assistant else None
    model = bind_model(weights, projector, drafts, predicts=options.uses_mtp)
    others = [opened(adapter) for adapter, _ in options.adapters]
    for adapter, (_, scale) in zip(others, options.adapters, strict=True):
        attach(model, weights, adapter, scale)
    others += filter(None, (projector, drafts))
    bound = BoundModel(info, model, weights, others)
    options = _bounded(options, bound, may_exceed=may_exceed)
    model.context = options.context
    return bound, options


def _assistant(options: LoadOptions) -> GGUFFile | None:
    """Return the draft model's file if it is an assistant, with a prefix at its tensors' names."""
    if options.draft is None or options.spec_type == "none":
        return None
    file = read_model(options.draft)
    if not is_assistant(file):
        return None
    tensors = {
        f"{ASSISTANT}{name}": replace(info, name=f"{ASSISTANT}{name}")
        for name, info in file.tensors.items()
    }
    return replace(file, tensors=tensors)


def _bounded(options: LoadOptions, bound: BoundModel, *, may_exceed: bool) -> LoadOptions:
    """Return the options with a context that the model was trained with and has positions for."""
    trained = 0 if may_exceed else bound.info.context
    limits = (bound.model.max_bidirectional_tokens, bound.model.max_positions, trained)
    longest = min(filter(None, limits), default=0)
    if not longest or longest >= options.context:
        return options
    if options.context != DEFAULT_CONTEXT:
        log.warning(
            "context is %d, the longest of %s, not %d", longest, bound.info.name, options.context
        )
    return msgspec.structs.replace(options, context=longest)


def devices_for(options: LoadOptions) -> tuple[Device, ...]:
    """Return the devices that may get layers, and the CPU."""
    devices, environment = find_devices(), runner_environment()
    return usable_devices(devices, environment.get(VISIBLE)) if options.gpu_layers else devices


def cache_types(options: LoadOptions) -> tuple[str, str]:
    """Return the types of keys and of values."""
    keys, _, values = options.cache_type.partition("/")
    return keys, values or keys
