"""The options of loading a model: one struct, from the settings to the worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tampu.errors import RequestError
from tampu.ml.device_map import Offload
from tampu.models import architectures, assisted
from tampu.sampling.checked_options import CheckedOptions
from tampu.sampling.parameters import DEFAULTS, keyword_values
from tampu.settings.choices import ENGINES, POOLINGS, SPEC_TYPES
from tampu.settings.model_settings import DEFAULT_CONTEXT, ModelSettings
from tampu.settings.settings import Settings
from tampu.settings.type_errors import convert
from tampu.store.catalog import resolve

MAX_SLOTS = 1024
UNIFIED_SLOTS = 8  # at most, where they share the cells of one context
DEFAULT_BATCH = 512
AUTO, NATIVE, LLAMACPP = ENGINES


class LoadOptions(CheckedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is loaded; to change an option, the model is loaded again.

    Attributes:
        context: the context length in tokens, of each request.
        slots: the maximum number of requests that run at once, each with cells for a whole context;
            None: up to 8, as many as find room in the cells of one context together.
        batch: the maximum number of prompt tokens in a step; None: 512, or what was measured to be
            fastest on GPUs (`batch_size.py`).
        threads: CPU threads; None: one for each fast core.
        cache_type: the type of the KV cache.
        state_cache: bytes of checkpoints of recurrent layers, if at least two per slot fit.
        spec_type: none, or one of `SPEC_TYPES`, which all guess next tokens where that is faster.
        draft: the file of a draft model, which guesses next tokens; None: there is none. In Python
            it may be a model's name.
        pooling: none, mean, cls or last, for embeddings; None: as the file says.
        flash_attention: whether to use it; None: where it is faster.
        deterministic: whether the logits of a request are the same bits whatever else runs: other
            requests, other parts of its prompt, cached prefixes, other numbers of threads.
        kernels: what the package's own C code computes: on, off, products, experts,
            attention or recurrence.
        engine: native, llamacpp, or auto: the first of them that supports the model.
        gpu_layers: how many of the last layers go to GPUs; below 0: as many as fit.
        main_gpu: the GPU that is filled first; None: the one with the most free memory.
        tensor_split: the proportions of layers on each GPU; empty: by free memory.
        n_cpu_moe: of how many of the first layers the experts stay on the CPU.
        kv_offload: whether keys and values are on the GPUs of their layers, not on the CPU.
        use_mmap: whether weights are used from the mapped file where possible, not copied.
        repack_cache: the folder of repacked weights, and its limit in bytes; None: no cache.
        prefix_cache: the folder of rows that outlive the process, and its limit in bytes; None: no
            rows are kept on disk.
        prefix_cache_memory: bytes of rows that are kept in memory instead when their cells go.
        tuning: how weights are read from memory (auto: measured), and the folder that keeps the
            measurement; None: it is not kept.
        vocabulary_only: load no weights; only tokens and prompts can be requested.
        template: replaces the chat template of the file, unless empty.
        parser: the output parser, by Ollama's names; empty: by the template.
        adapters: files of adapters, and the scale of each.
        projector: the file of the vision encoder; None: in the model's file, or none.
        name: what messages call the model; empty: the name of its file.
        allow_unknown: convert a checkpoint's or an adapter's folder although it has settings that
            the converter does not know, with a warning.
    """

    context: int = DEFAULTS["context"]
    slots: int | None = None
    batch: int | None = DEFAULTS["batch"]
    threads: int | None = DEFAULTS["threads"]
    cache_type: str = ModelSettings.cache_type
    state_cache: int = ModelSettings.state_cache
    spec_type: str = ModelSettings.spec_type
    draft: str | None = None
    pooling: str | None = None
    flash_attention: bool | None = None
    deterministic: bool = DEFAULTS["deterministic"]
    kernels: str = ModelSettings.kernels
    engine: str = ModelSettings.engine
    gpu_layers: int = DEFAULTS["gpu_layers"]
    main_gpu: int | None = DEFAULTS["main_gpu"]
    tensor_split: tuple[float, ...] = ()
    n_cpu_moe: int = DEFAULTS["n_cpu_moe"]
    kv_offload: bool = DEFAULTS["kv_offload"]
    use_mmap: bool = DEFAULTS["use_mmap"]
    repack_cache: tuple[str, int] | None = None
    prefix_cache: tuple[str, int] | None = None
    prefix_cache_memory: int = ModelSettings.prefix_cache_memory
    tuning: tuple[str, str | None] = (ModelSettings.fetch, None)
    vocabulary_only: bool = False
    template: str = ""
    parser: str = ""
    adapters: tuple[tuple[str, float], ...] = ()
    projector: str | None = None
    name: str = ""
    allow_unknown: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            RequestError: naming the option and its range.
        """
        super().__post_init__()
        if self.slots is not None and not 1 <= self.slots <= MAX_SLOTS:
            raise RequestError(f"slots must be from 1 to {MAX_SLOTS}, not {self.slots}")
        if self.pooling not in (None, *POOLINGS):
            raise RequestError(f"pooling must be one of {', '.join(POOLINGS)}, not {self.pooling}")
        if self.deterministic and self.engine == LLAMACPP:
            raise RequestError("deterministic cannot be used with llama.cpp: use the engine native")
        if self.spec_type not in SPEC_TYPES:
            raise RequestError(
                f"spec_type must be one of {', '.join(SPEC_TYPES)}, not {self.spec_type}"
            )

    @property
    def max_slots(self) -> int:
        """The maximum number of requests that run at once, whatever the model."""
        return UNIFIED_SLOTS if self.slots is None else self.slots

    @property
    def kv_unified(self) -> bool:
        """Whether all slots share the cells of one context."""
        return self.slots is None

    @property
    def uses_mtp(self) -> bool:
        """Whether a file's layer of multi-token prediction guesses next tokens."""
        return self.draft is None and self.spec_type in ("auto", "draft-mtp")

    @property
    def offload(self) -> Offload:
        """Which layers go to GPUs."""
        layers = None if self.gpu_layers < 0 else self.gpu_layers
        return Offload(
            layers, self.main_gpu, self.tensor_split, not self.kv_offload, self.n_cpu_moe
        )


def load_options(values: Mapping[str, Any]) -> LoadOptions:
    """Return keyword values as options.

    Raises:
        RequestError: for an unknown name or a value of the wrong type.
        ModelFileError: for a template that does not compile.
    """
    given = {name: _plain(value) for name, value in values.items() if value is not None}
    found = keyword_values(given, LoadOptions.__struct_fields__)
    options = convert(found, LoadOptions, "the load options")
    if options.template:
        from tampu.chat.template_loader import read_template  # slow to import

        read_template(options.template)
    return options


def _plain(value: object, depth: int = 2) -> object:
    """Return a value with its paths as text; a list of adapters has pairs of them."""
    if isinstance(value, Path):
        return str(value)
    if depth and isinstance(value, list | tuple):
        return [_plain(each, depth - 1) for each in value]
    return value


def options_from_settings(settings: Settings) -> LoadOptions:
    """Return how models are loaded, from the settings."""
    return LoadOptions(
        context=settings.context or DEFAULT_CONTEXT,
        slots=settings.slots,
        threads=settings.threads,
        gpu_layers=-1 if settings.gpu_layers is None else settings.gpu_layers,
        main_gpu=settings.main_gpu,
        tensor_split=settings.tensor_split or (),
        n_cpu_moe=settings.n_cpu_moe,
        kv_offload=settings.kv_offload,
        cache_type=settings.cache_type,
        pooling=settings.pooling,
        spec_type=settings.spec_type,
        draft=draft_file(settings),
        state_cache=settings.state_cache,
        flash_attention=settings.flash_attention,
        engine=settings.engine,
        deterministic=settings.deterministic,
        kernels=settings.kernels,
        repack_cache=settings.packed_weights,
        prefix_cache=settings.kept_rows,
        prefix_cache_memory=settings.prefix_cache_memory,
        tuning=(settings.fetch, str(settings.tuning)),
    )


def draft_file(settings: Settings) -> str | None:
    """Return the file of the draft model that the settings name; None: they name none.

    Raises:
        ModelNotFoundError: if there is no such model.
    """
    return None if settings.draft is None else str(resolve(settings.draft, settings))


def with_offload(options: LoadOptions, offload: Offload) -> LoadOptions:
    """Return the options with this offload."""
    return msgspec.structs.replace(
        options,
        gpu_layers=-1 if offload.layers is None else offload.layers,
        main_gpu=offload.main,
        tensor_split=tuple(map(float, offload.split)),
        n_cpu_moe=max(options.n_cpu_moe, offload.cpu_experts),
        kv_offload=options.kv_offload and not offload.cpu_cache,
    )


def choose_engine(wanted: str, architecture: str) -> str:
    """Return the engine for a model of an architecture.

    Args:
        wanted: native or llamacpp; auto: llama.cpp for architectures that the native engine does
            not support. An assistant, which no engine loads alone, is refused by the native one.
        architecture: of the model.
    """
    if wanted != AUTO:
        return wanted
    is_known = architecture in architectures() or assisted(architecture) is not None
    return NATIVE if is_known else LLAMACPP
