"""What the shell completes when Tab is pressed: names of models. It never fails and never warns."""

from __future__ import annotations

from tampu.errors import TampuError


def complete_model(incomplete: str) -> list[str]:
    """Return the models on this machine whose names begin so, without the tag `:latest`."""
    from tampu.settings import Settings
    from tampu.store.library import Library

    try:
        models = Library.from_settings(Settings.from_environment()).listing().models
    except TampuError:
        return []
    names = {model.name for model in models} | {m.name.removesuffix(":latest") for m in models}
    return sorted(name for name in names if name.lower().startswith(incomplete.lower()))
