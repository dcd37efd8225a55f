"""Captures values inside the model while it reads a prompt; nothing is generated."""

from __future__ import annotations

import queue

from tampu.chat.media import Item, length
from tampu.engine.backend import Handlers
from tampu.engine.captures import Capture, CapturedValues, CapturePlan, CaptureStore
from tampu.engine.completion import RequestHandle, Stream, completion
from tampu.engine.input_processor import flat
from tampu.engine.native import NativeModel
from tampu.runner.capture import SequenceCapture
from tampu.runner.events import Event
from tampu.runner.layout import NumberedMedia
from tampu.runner.sequence import RowCollector, Rows, Sink


def capture(model: NativeModel, request: Capture) -> CapturedValues:
    """Return the values at points of a model for the tokens of a prompt.

    Raises:
        RequestError: for points, layers or positions that are not there, and as for any prompt.
        OutOfMemoryError: if all of it does not fit into memory.
    """
    tokens = model.requests.prompt(request.prompt).tokens
    plan = planned(model, tokens, request)
    plan.check_memory()
    store = CaptureStore(plan)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    handle = begin(model, tokens, request, store.capture, events.put)
    done = completion(Stream(events, handle))
    return CapturedValues(store.result().encoded(), done.usage.prompt_tokens)


def planned(model: NativeModel, tokens: list[Item], request: Capture) -> CapturePlan:
    """Return what a request captures of a prompt."""
    count = length(tokens)
    media = [each for each in flat(tokens) if isinstance(each, NumberedMedia)]
    return model.inputs.plan_capture(request.options, count, count, media)


def begin(
    model: NativeModel, tokens: list[Item], request: Capture, capture: SequenceCapture, sink: Sink
) -> RequestHandle:
    """Begin to compute a prompt whose values are captured."""
    is_bidirectional = model.model.graphs.max_bidirectional_tokens is not None
    last = None if is_bidirectional else 1  # a sequence of a bidirectional model shares no rows
    collector = RowCollector(_ignore, wants_logits=False, last=last)
    return model.inputs.collect(tokens, collector, sink, request.engine_options, capture=capture)


def _ignore(_: Rows) -> None:
    """Take what the graph returns besides."""


HANDLERS: Handlers = {Capture: capture}
