"""The last conversation of a slot, saved in a file, restored and erased."""

from __future__ import annotations

from pathlib import Path

from tampu.engine.backend import Handlers
from tampu.engine.management import (
    ActedOnSlot,
    ActOnSlot,
)
from tampu.engine.native import NativeModel
from tampu.engine.sent_paths import received_path


def act_on_slot(model: NativeModel, request: ActOnSlot) -> ActedOnSlot:
    """Save, restore or erase a conversation; raises as `Snapshots.act_on_slot`."""
    path = Path(received_path(request.path))
    done = model.snapshots.act_on_slot(request.action, request.slot, path)
    return ActedOnSlot(done.tokens, done.size_bytes)


HANDLERS: Handlers = {ActOnSlot: act_on_slot}
