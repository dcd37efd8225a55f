"""The models that the server has in memory. It imports little, to be quick."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from tampu.cli.server_client import HTTPServer, loaded_models
from tampu.cli.table import human_bytes, human_span, table
from tampu.settings.settings import Settings

_ID_LENGTH = 12
_FOREVER_S = 20 * 365 * 86_400


def print_processes(prefix: str, settings: Settings, *, as_json: bool) -> int:
    """Print the loaded models whose names have this prefix.

    Returns:
        The exit code.

    Raises:
        ServerError: if no server is running, or it refused.
    """
    models = [
        model
        for model in loaded_models(HTTPServer(settings))
        if str(model.get("name", "")).lower().startswith(prefix.lower())
    ]
    if as_json:
        print(json.dumps(models, indent=2))
    else:
        titles = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "ENGINE", "SLOTS", "UNTIL")
        print(table(titles, map(_row, models)))
        for model in models:
            if model.get("placement"):
                print(f"\n{model['name']}: {model['placement']}")
                shown = ("DEVICE", "LAYERS", "WEIGHTS", "CACHE", "GRAPHS", "ALSO")
                print(table(shown, map(_share, model["devices"])))
    return 0


def processor(size: int, on_device: int) -> str:
    """Return which processor has a model: 100% CPU, 100% GPU, or 30%/70% CPU/GPU."""
    if size <= 0 or on_device > size:
        return "Unknown"
    if on_device == 0:
        return "100% CPU"
    if on_device == size:
        return "100% GPU"
    share = round((size - on_device) / size * 100)
    return f"{share}%/{100 - share}% CPU/GPU"


def until(expires: str, now: datetime) -> str:
    """Return in words when a model will be unloaded."""
    try:
        seconds = (datetime.fromisoformat(expires) - now).total_seconds()
    except (ValueError, TypeError):
        return "Unknown"
    if seconds < 0:
        return "Stopping..."
    return "Forever" if seconds > _FOREVER_S else f"{human_span(seconds)} from now"


def slots(model: dict[str, Any]) -> str:
    """Return how many slots a model has, and the memory of each: 4 x 128 MB."""
    count, size = int(model.get("slots", 0)), int(model.get("slot_size", 0))
    if not count:
        return ""
    return f"{count} x {human_bytes(size)}" if size else str(count)


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers in short: 0-3, 7."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    pairs = zip(starts, ends, strict=True)
    return ", ".join(str(start) if start == end else f"{start}-{end}" for start, end in pairs)


def _share(share: dict[str, Any]) -> tuple[str, ...]:
    """Return what one device has of a model."""
    sizes = (human_bytes(int(share[name])) for name in ("weights", "cache", "graphs"))
    return (share["name"], ranges(share["layers"]), *sizes, ", ".join(_others(share)))


def _others(share: dict[str, Any]) -> Iterator[str]:
    if share["experts"]:
        yield f"experts of {ranges(share['experts'])}"
    if share["has_embedding"]:
        yield "token embeddings"


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    size, on_device = int(model.get("size", 0)), int(model.get("size_vram", 0))
    return (
        str(model.get("name", "")),
        str(model.get("digest", ""))[:_ID_LENGTH],
        human_bytes(size),
        processor(size, on_device),
        str(model.get("context_length", "")),
        str(model.get("engine", "")),
        slots(model),
        until(str(model.get("expires_at", "")), datetime.now(UTC)),
    )
