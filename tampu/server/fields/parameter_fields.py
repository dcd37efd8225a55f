"""The parameters in OpenAI's requests; made by tools/parameters_table.py."""

from __future__ import annotations

from typing import Any

from tampu.server.fields.output_format import FormattedBody


class ParameterBody(FormattedBody, kw_only=True):
    """A request that has parameters at the top, by the names of `tampu.sampling.parameters`."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_last_n: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[Any] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | list[Any] | None = None
    num_keep: int | None = None
    think_budget: int | None = None
    num_ctx: int | None = None
    num_batch: int | None = None
    num_thread: int | None = None
