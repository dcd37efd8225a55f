"""The list of models. It imports little, to be quick."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from tampu.cli.table import human_age, human_bytes, table
from tampu.settings.settings import Settings
from tampu.store.library import Library
from tampu.store.local_model import LocalModel

_ID_LENGTH = 12


def print_list(prefix: str, settings: Settings, *, as_json: bool) -> int:
    """Print the models whose names have this prefix, and damaged ones on standard error.

    Returns:
        The exit code.
    """
    listing = Library.from_settings(settings).listing()
    models = [model for model in listing.models if model.name.lower().startswith(prefix.lower())]
    print(_as_json(models) if as_json else _as_table(models))
    for entry in listing.damaged:
        print(f"damaged: {entry.path}: {entry.reason}", file=sys.stderr)
    return 0


def models_table(models: Iterable[tuple[str, str, int, float]]) -> str:
    """Return the table of models: names, digests, bytes, times of change in seconds."""
    now = time.time()
    rows = [
        (name, digest[:_ID_LENGTH], human_bytes(size), human_age(now - modified_s))
        for name, digest, size, modified_s in models
    ]
    return table(("NAME", "ID", "SIZE", "MODIFIED"), rows)


def _as_table(models: list[LocalModel]) -> str:
    return models_table((each.name, each.id, each.size_bytes, each.modified_s) for each in models)


def _as_json(models: list[LocalModel]) -> str:
    import json
    from datetime import UTC, datetime

    rows = [
        {
            "name": model.name,
            "id": model.id,
            "size_bytes": model.size_bytes,
            "modified_at": datetime.fromtimestamp(model.modified_s, UTC).isoformat(),
            "origin": model.origin.value,
        }
        for model in models
    ]
    return json.dumps(rows, indent=2)
