"""Ollama's `options`: every name, its type, and what it means here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from tampu.errors import RequestError
from tampu.runner.request import GenerateOptions
from tampu.server.generation_request import Overrides, require
from tampu.store.model_info import ModelInfo

logger = logging.getLogger(__name__)

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MIN_CONTEXT = 4


class Options(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All names; None: not given."""

    num_keep: int | None = None
    seed: int | None = None
    num_predict: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    temperature: float | None = None
    repeat_last_n: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: list[str] | None = None
    think_budget: int | None = None
    num_ctx: int | None = None
    num_batch: int | None = None
    num_thread: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    use_mmap: bool | None = None
    draft_num_predict: int | None = None
    penalize_newline: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    use_mlock: bool | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    numa: bool | None = None
    tfs_z: float | None = None


# The same name and meaning as in GenerateOptions.
_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty",
    "presence_penalty", "frequency_penalty",
)  # fmt: skip
_USED = {
    *_SAMPLING, "num_keep", "seed", "num_predict", "stop", "num_ctx", "num_batch", "num_thread",
    "num_gpu", "main_gpu", "use_mmap", "think_budget",
}  # fmt: skip


def asked_options(options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the options of a request.

    Raises:
        RequestError: for an engine: which one computes a model is not up to a request.
    """
    message = "options: engine is a model's own (PARAMETER engine) or the server's (TAMPU_ENGINE)"
    require(holds="engine" not in (options or {}), message=message)
    return options or {}


def read_options(
    given: Mapping[str, Any], info: ModelInfo, more: Mapping[str, Any]
) -> tuple[Overrides, GenerateOptions]:
    """Return what the options of a request ask for.

    Args:
        given: the JSON object, by Ollama's names.
        info: the model that it is for.
        more: fields of GenerateOptions that stand outside the object; None: not given.

    Raises:
        RequestError: naming the option, and the type or range it must have.
    """
    try:
        options = msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        raise RequestError(f"options: {readable(error)}") from error
    _log_ignored(given)
    by_name = msgspec.structs.asdict(options)
    fits = options.num_keep is None or options.num_keep >= -1
    require(holds=fits, message=f"num_keep must be -1 (all) or more, not {options.num_keep}")
    values: dict[str, Any] = {
        **{name: by_name[name] for name in _SAMPLING},
        "keep": options.num_keep,
        "max_tokens": _without_negative(options.num_predict),
        "seed": _without_negative(options.seed),
        "stop": None if options.stop is None else read_stops(options.stop, "stop"),
        "think_budget": _without_negative(options.think_budget),
        **more,
    }
    return _overrides(options, info), GenerateOptions(
        **{name: value for name, value in values.items() if value is not None}
    )


def readable(error: msgspec.ValidationError) -> str:
    """Return what msgspec says, without the null that every option may also be."""
    return str(error).replace(" | null", "")


def _overrides(options: Options, info: ModelInfo) -> Overrides:
    context = options.num_ctx
    if context is not None:
        require(holds=context >= MIN_CONTEXT, message=f"num_ctx must be {MIN_CONTEXT} or more")
        if info.context and context > info.context:
            logger.warning("num_ctx %d is more than the model's %d", context, info.context)
            context = info.context
    for name, value, most in (
        ("num_batch", options.num_batch, 65_536),
        ("num_thread", options.num_thread, 1_024),
        ("main_gpu", options.main_gpu, 1_024),
    ):
        fits = value is None or 0 <= value <= most
        require(holds=fits, message=f"{name} must be 0 to {most}, not {value}")
    return Overrides(
        context=context,
        batch=options.num_batch or None,
        threads=options.num_thread or None,
        gpu_layers=None if options.num_gpu is None else max(options.num_gpu, -1),
        main_gpu=options.main_gpu,
        use_mmap=options.use_mmap,
    )


def read_stops(stops: list[str], field: str) -> tuple[str, ...]:
    """Return stop strings, which the client knows under this name.

    Raises:
        RequestError: for too many, or one that is empty or too long.
    """
    fits = len(stops) <= MAX_STOPS and all(0 < len(stop) <= MAX_STOP_LENGTH for stop in stops)
    limits = f"{field}: at most {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters"
    require(holds=fits, message=limits)
    return tuple(stops)


def _without_negative(value: int | None) -> int | None:
    """Return None for a negative number: no limit, or any seed."""
    return None if value is None or value < 0 else value


def _log_ignored(given: Mapping[str, Any]) -> None:
    ignored = sorted(name for name in given if name not in _USED and name != "engine")
    if ignored:
        logger.warning("options that have no effect: %.500r", ignored)
