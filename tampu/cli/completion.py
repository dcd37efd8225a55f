"""What the shell completes when Tab is pressed: models, types. It never fails and never warns."""

from __future__ import annotations

from tampu.errors import TampuError


def complete_model(incomplete: str) -> list[str]:
    """Return the models on this machine whose names begin so, without the tag `:latest`."""
    from tampu.settings.settings import Settings
    from tampu.store.library import Library

    try:
        models = Library.from_settings(Settings.from_environment()).listing().models
    except TampuError:
        return []
    names = {model.name for model in models} | {m.name.removesuffix(":latest") for m in models}
    return sorted(name for name in names if name.lower().startswith(incomplete.lower()))


def complete_type(incomplete: str) -> list[str]:
    """Return the types of weights that files are written in, whose names begin so."""
    from tampu.convert.quant_mix import FILE_TYPES

    names = [name for name in FILE_TYPES if name.startswith(incomplete.upper())]
    return [name.lower() for name in names] if incomplete.islower() else names
