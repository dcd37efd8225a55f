"""Completions of names, in the shell and in a conversation: they never fail and never warn."""

from __future__ import annotations

from tampu.errors import TampuError
from tampu.settings.settings import Settings
from tampu.store.library import Library


def complete_model(incomplete: str) -> list[str]:
    """Return the names of local models with this prefix, also without the tag `:latest`."""
    try:
        models = Library.from_settings(Settings.from_environment()).listing().models
    except TampuError:
        return []
    names = {model.name for model in models} | {m.name.removesuffix(":latest") for m in models}
    return sorted(name for name in names if name.lower().startswith(incomplete.lower()))


def complete_type(incomplete: str) -> list[str]:
    """Return the weight types with this prefix, in its case."""
    from tampu.convert.quant_mix import FILE_TYPES

    names = [name for name in FILE_TYPES if name.startswith(incomplete.upper())]
    return [name.lower() for name in names] if incomplete.islower() else names
