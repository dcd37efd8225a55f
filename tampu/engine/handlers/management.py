"""What is asked about a model instead of about a text; raises as what it calls."""

from __future__ import annotations

from pathlib import Path

from tampu.engine.backend import Backend, Handlers
from tampu.engine.estimate import estimate_memory
from tampu.engine.layer_watch import LayersSeen, WatchLayers
from tampu.engine.management import (
    ActedOnSlot,
    ActOnSlot,
    AdapterChanged,
    ChangeAdapter,
    EstimateMemory,
    ListPrefixes,
    MemoryEstimate,
    Observe,
    Observed,
    Prefixes,
)
from tampu.engine.native import NativeModel
from tampu.engine.sent_paths import received_options, received_path


def estimate(_: Backend, request: EstimateMemory) -> MemoryEstimate:
    """Return what the model of a file would take."""
    return estimate_memory(Path(received_path(request.path)), received_options(request.options))


def observe(model: NativeModel, _: Observe) -> Observed:
    """Return what the run loop has done since the last call."""
    return Observed(model.runner.observe())


def watch_layers(model: NativeModel, request: WatchLayers) -> LayersSeen:
    """Return what the layers make of the token that is being written."""
    return model.layers.look(request.request)


def list_prefixes(model: NativeModel, _: ListPrefixes) -> Prefixes:
    """Return which prefixes are in the cache."""
    return Prefixes(model.prefixes.listed())


def act_on_slot(model: NativeModel, request: ActOnSlot) -> ActedOnSlot:
    """Save, restore or erase the last conversation of a slot."""
    path = Path(received_path(request.path))
    done = model.snapshots.act_on_slot(request.action, request.slot, path)
    return ActedOnSlot(done.tokens, done.size_bytes)


def change_adapter(model: NativeModel, request: ChangeAdapter) -> AdapterChanged:
    """Load or unload an adapter that requests may choose."""
    if request.path is None:
        model.adapters.unload(request.name)
    else:
        model.adapters.load(request.name, received_path(request.path))
    return AdapterChanged(model.adapters.names)


ANY: Handlers = {EstimateMemory: estimate}
HANDLERS: Handlers = {
    Observe: observe,
    WatchLayers: watch_layers,
    ListPrefixes: list_prefixes,
    ActOnSlot: act_on_slot,
    ChangeAdapter: change_adapter,
}
