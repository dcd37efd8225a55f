"""The settings of how models are loaded."""

from __future__ import annotations

from dataclasses import dataclass

from tampu.settings.choices import (
    CACHE_TYPES,
    ENGINES,
    KERNEL_GROUPS,
    KERNEL_LEVELS,
    POOLINGS,
    SPEC_TYPES,
)
from tampu.settings.declaring import optional, own, shared
from tampu.settings.parsers import (
    boolean,
    count_from,
    count_or_auto,
    count_unless_zero,
    fetch_way,
    layers,
    one_of,
    parse_rate,
    shares,
    size,
    size_or_off,
)

DEFAULT_CONTEXT = 4096  # tokens, where neither a setting nor the model says otherwise


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How models are loaded unless a request says otherwise."""

    context: int | None = optional(
        "CONTEXT_LENGTH", count_unless_zero, "tokens of the context of each request",
        default=str(DEFAULT_CONTEXT), is_shared=True)
    slots: int | None = shared(
        "NUM_PARALLEL", count_or_auto, "auto",
        "concurrent requests per model. A number: each has memory for a whole context. `auto` (0): "
        "up to 8 share the memory of one; one that finds no room waits "
        "([scheduling](runner.md#scheduling))")
    threads: int | None = optional(
        "THREADS", count_from(1), "CPU threads", default="one per core")
    engine: str = own(
        "ENGINE", one_of(ENGINES), "auto",
        "native, llamacpp for llama.cpp (`pip install 'tampu[llamacpp]'`), or auto; also "
        "`--engine`")
    gpu_layers: int | None = optional(
        "NUM_GPU", layers, "how many of a model's last layers go to devices other than the CPU",
        default="as many as fit")
    main_gpu: int | None = optional(
        "MAIN_GPU", count_from(0), "the device that gets layers first", default="most free memory")
    tensor_split: tuple[float, ...] | None = optional(
        "TENSOR_SPLIT", shares, "the share of the layers for each device, such as 3,1",
        default="by free memory")
    n_cpu_moe: int = own(
        "N_CPU_MOE", count_from(0), "0",
        "how many of the first layers keep their experts on the CPU; also `--n-cpu-moe`")
    kv_offload: bool = own(
        "KV_OFFLOAD", boolean, "1",
        "whether layers on a GPU keep their keys and values there; 0: the CPU keeps them and "
        "computes attention; also `--no-kv-offload`")
    flash_attention: bool | None = optional(
        "FLASH_ATTENTION", boolean,
        "whether attention is computed without storing its scores; unset: where that is faster",
        default="auto", is_shared=True)
    deterministic: bool = own(
        "DETERMINISTIC", boolean, "0",
        "whether an answer with a seed is the same whatever else runs, in return for some speed "
        "([deterministic](runner.md#deterministic)); also `--deterministic`")
    kernels: str = own(
        "KERNELS", one_of((*KERNEL_GROUPS, *KERNEL_LEVELS)), "on",
        "which of [tampu's kernels](kernels.md) are used: on, off, one group of them, or an "
        "instruction set; a CPU without it uses its fastest")
    cache_type: str = shared(
        "KV_CACHE_TYPE", one_of(CACHE_TYPES), "f16",
        f"the element type of the KV cache: {', '.join(CACHE_TYPES)}")
    pooling: str | None = optional(
        "POOLING", one_of(POOLINGS),
        "how token vectors are combined into an embedding: mean, cls (the first token's), last, or "
        "none, with which only [`POST /embeddings`](api.md#llama-servers-own-routes) answers, with "
        "every token's vector", default="the model's")
    spec_type: str = own(
        "SPEC_TYPE", one_of(SPEC_TYPES), "auto",
        "auto: the next tokens of answers are guessed and several verified in one step, where that "
        "is measured to be faster ([drafts](runner.md#drafts)); none: one token a step; "
        "draft-simple, draft-mtp and llama-server's names that begin with ngram mean auto, the "
        "last without [multi-token prediction](runner.md#multi-token-prediction); also "
        "`--spec-type`")
    draft: str | None = optional(
        "DRAFT", str, "the name or the file of a draft model, which guesses the next tokens of "
        "models that name none ([drafts](runner.md#draft-models)); also `--draft`", default="none")
    state_cache: int = own(
        "STATE_CACHE", parse_rate, "512MB",
        "memory for the states from which conversations with a model with recurrent layers (Qwen "
        "3.5, LFM2) can resume; at least two per slot are kept "
        "([states](runner.md#states-of-recurrent-layers))")
    repack_cache: int = own(
        "REPACK_CACHE", size_or_off, "off",
        "bytes of packed weights to keep on disk, such as 20GB, or `on` (32 GB)")
    prefix_cache: int = own(
        "PREFIX_CACHE", size_or_off, "off",
        "bytes of computed prompts to keep on disk, such as 20GB, or `on` (32 GB); see "
        "[below](#prompts-that-outlive-the-server)")
    prefix_cache_memory: int = own(
        "PREFIX_CACHE_MEMORY", size, "0",
        "bytes of computed prompts that each model keeps in memory where `PREFIX_CACHE` is off, "
        "such as 2GB")
    fetch: str = own(
        "FETCH", fetch_way, "auto",
        "how weights are prefetched from memory: `auto` measures once per CPU model; otherwise a "
        "hint, bytes ahead and streams, such as t0:1024:8 "
        "([kernels](kernels.md#how-few-tokens-read-their-weights))")
# fmt: on
