"""Adapters that requests may choose, loaded and unloaded."""

from __future__ import annotations

from tampu.engine.backend import Handlers
from tampu.engine.management import (
    AdapterChanged,
    ChangeAdapter,
)
from tampu.engine.native import NativeModel
from tampu.engine.sent_paths import received_path


def change_adapter(model: NativeModel, request: ChangeAdapter) -> AdapterChanged:
    """Load or unload an adapter; raises as `Adapters.load` and `unload`."""
    if request.path is None:
        model.adapters.unload(request.name)
    else:
        model.adapters.load(request.name, received_path(request.path))
    return AdapterChanged(model.adapters.names)


HANDLERS: Handlers = {ChangeAdapter: change_adapter}
