"""The options of sampling as fields; made by tools/parameters_table.py."""

from __future__ import annotations

from tampu.sampling.checked_options import CheckedOptions
from tampu.sampling.parameters import DEFAULTS


class SamplingFields(CheckedOptions, frozen=True, kw_only=True):
    """The options of sampling that are rows of `tampu.sampling.parameters`, and the seed."""

    temperature: float = DEFAULTS["temperature"]
    top_k: int = DEFAULTS["top_k"]
    top_p: float = DEFAULTS["top_p"]
    min_p: float = DEFAULTS["min_p"]
    typical_p: float = DEFAULTS["typical_p"]
    repeat_last_n: int = DEFAULTS["repeat_last_n"]
    repeat_penalty: float = DEFAULTS["repeat_penalty"]
    presence_penalty: float = DEFAULTS["presence_penalty"]
    frequency_penalty: float = DEFAULTS["frequency_penalty"]
    top_n_sigma: float = DEFAULTS["top_n_sigma"]
    xtc_probability: float = DEFAULTS["xtc_probability"]
    xtc_threshold: float = DEFAULTS["xtc_threshold"]
    dry_multiplier: float = DEFAULTS["dry_multiplier"]
    dry_base: float = DEFAULTS["dry_base"]
    dry_allowed_length: int = DEFAULTS["dry_allowed_length"]
    dry_penalty_last_n: int = DEFAULTS["dry_penalty_last_n"]
    dry_sequence_breakers: tuple[str, ...] = DEFAULTS["dry_sequence_breakers"]
    infill: bool = DEFAULTS["infill"]
    seed: int | None = DEFAULTS["seed"]
