"""How a model is loaded: one struct, from the settings to the process that loads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tampu.errors import RequestError
from tampu.ml.device_map import Offload
from tampu.sampling.options import CheckedOptions
from tampu.sampling.parameters import DEFAULTS

MAX_SLOTS = 1024


class LoadOptions(CheckedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is loaded; other values need another process.

    Attributes:
        context: the length of the context in tokens, for each slot.
        slots: how many requests run at once.
        batch: how many tokens of prompts are computed in one step.
        threads: threads of the CPU; None: as many as it has fast cores.
        cache_type: the type of the KV cache.
        flash_attention: whether to use it; None: where it is faster.
        kernels: what the package's own C code computes: on, off, products, experts or
            attention.
        engine: what computes: native, llamacpp, or auto: the first of them that knows the model.
        gpu_layers: how many of the last layers go to devices besides the processor; below 0: as
            many as fit.
        main_gpu: which of them takes layers first; None: the one with the most free memory.
        tensor_split: how many of the layers each takes, in proportion; empty: by free memory.
        use_mmap: whether weights are used in the file's mapping where they can be, not copied.
        repack_cache: the folder of packed weights, and the most bytes in it; None: none are kept.
        tuning: how weights are read from memory (auto: measured), and the folder that keeps what
            was measured; None: none does.
        vocabulary_only: load no weights: tokens and prompts can be asked for, nothing else.
        template: in place of that of the file; empty: that.
        parser: what reads answers, by Ollama's names; empty: the template shows how they are.
        adapters: files of adapters, and how much of each.
        projector: a file with the part that sees; None: it is in the model's, or there is none.
    """

    context: int = DEFAULTS["context"]
    slots: int = 1
    batch: int = DEFAULTS["batch"]
    threads: int | None = DEFAULTS["threads"]
    cache_type: str = "f16"
    flash_attention: bool | None = None
    kernels: str = "on"
    engine: str = "auto"
    gpu_layers: int = DEFAULTS["gpu_layers"]
    main_gpu: int | None = DEFAULTS["main_gpu"]
    tensor_split: tuple[float, ...] = ()
    use_mmap: bool = DEFAULTS["use_mmap"]
    repack_cache: tuple[str, int] | None = None
    tuning: tuple[str, str | None] = ("auto", None)
    vocabulary_only: bool = False
    template: str = ""
    parser: str = ""
    adapters: tuple[tuple[str, float], ...] = ()
    projector: str | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            RequestError: naming the option and its range.
        """
        super().__post_init__()
        if not 1 <= self.slots <= MAX_SLOTS:
            raise RequestError(f"slots must be from 1 to {MAX_SLOTS}, not {self.slots}")

    @property
    def offload(self) -> Offload:
        """Which layers go to devices."""
        layers = None if self.gpu_layers < 0 else self.gpu_layers
        return Offload(layers, self.main_gpu, self.tensor_split)


def load_options(values: Mapping[str, Any]) -> LoadOptions:
    """Return loose keyword values as options.

    Raises:
        RequestError: for an unknown name or a value of the wrong type.
    """
    values = {name: value for name, value in values.items() if value is not None}
    if "adapters" in values:
        values["adapters"] = [(str(path), scale) for path, scale in values["adapters"]]
    if "projector" in values:
        values["projector"] = str(values["projector"])
    if "repack_cache" in values:
        folder, limit = values["repack_cache"]
        values["repack_cache"] = (str(folder), limit)
    try:
        return msgspec.convert(values, LoadOptions)
    except msgspec.ValidationError as error:
        raise RequestError(f"load options: {error}") from None


def with_offload(options: LoadOptions, offload: Offload) -> LoadOptions:
    """Return the options with other layers on devices."""
    return msgspec.structs.replace(
        options,
        gpu_layers=-1 if offload.layers is None else offload.layers,
        main_gpu=offload.main,
        tensor_split=tuple(map(float, offload.split)),
    )
