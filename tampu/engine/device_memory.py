"""What the device of the output keeps from one step to the next."""

from __future__ import annotations

from contextlib import ExitStack

from tampu.kvcache import CacheSize
from tampu.ml import Backend, GGMLType
from tampu.ml.device_states import DeviceStates
from tampu.ml.device_tokens import DeviceTokens
from tampu.nn import Model
from tampu.runner.batch import STATES


def device_tokens_of(
    backend: Backend, outputs: int, candidates: tuple[int, ...], resources: ExitStack
) -> DeviceTokens | None:
    """Keep the tokens that greedy requests choose, if one device computes whole steps."""
    device = backend.device_map.of_output() if backend.device_map.is_on_one else None
    if device is None or 1 not in candidates or not device.can_look_up(GGMLType.I32, 1):
        return None
    kept = DeviceTokens(backend, outputs)
    resources.callback(kept.close)
    return kept


def device_states_of(
    backend: Backend, model: Model, size: CacheSize, resources: ExitStack
) -> DeviceStates | None:
    """Keep hidden states for an assistant, if there is one."""
    if model.assistant is None:
        return None
    kept = DeviceStates(backend, size.slots * STATES, model.options.embedding)
    resources.callback(kept.close)
    return kept
