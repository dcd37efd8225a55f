"""The adapters that a request chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from tampu.errors import require
from tampu.server.fields.options import ModelBody


class NumberedAdapter(msgspec.Struct, kw_only=True):
    """An adapter by its number in `/lora-adapters`, as llama-server has it."""

    id: int
    scale: float = 1.0


AdapterScales: TypeAlias = list[NumberedAdapter] | dict[str, float]


class AdapterBody(ModelBody, kw_only=True):
    """A request that may choose adapters: llama-server has `lora`, SGLang `lora_path`, a name."""

    lora: AdapterScales | None = None
    lora_path: str | None = None


def scales_by_id(lora: Sequence[NumberedAdapter]) -> dict[int, float]:
    """Return the strengths of adapters by their numbers.

    Raises:
        RequestError: if one has two.
    """
    found: dict[int, float] = {}
    for each in lora:
        require(each.id not in found, f"lora: the id {each.id} is there twice")
        found[each.id] = each.scale
    return found


def chosen_adapters(lora: AdapterScales | None, path: str | None) -> dict[str, float] | None:
    """Return the names, or numbers, of the adapters that a body chooses, with their strengths."""
    require(not lora or not path, "lora and lora_path: give one of them")
    if path:
        return {path: 1.0}
    if isinstance(lora, list):
        return {str(id): scale for id, scale in scales_by_id(lora).items()}
    return lora
