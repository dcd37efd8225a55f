"""The words that settings with a fixed set of values accept."""

from __future__ import annotations

CACHE_TYPES = ("f16", "f32", "q8_0", "q4_0")
ENGINES = ("auto", "native", "llamacpp")
LOG_FORMATS = ("text", "json")
# Whether next tokens are guessed (auto). llama-server's names of ways to guess turn it on too, and
# those of n-grams and of draft models leave out layers of multi-token prediction.
SPEC_TYPES = (
    "auto", "none",
    "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache",
    "draft-simple", "draft-mtp",
)  # fmt: skip
POOLINGS = ("none", "mean", "cls", "last")
# Which of tampu's C kernels are used: a group of them, or the newest instruction set they may use.
KERNEL_GROUPS = ("on", "off", "products", "experts", "attention", "recurrence")
KERNEL_LEVELS = ("amx", "avx512bf16", "avx512", "avxvnni", "avx2", "i8mm", "neon", "portable")
