"""One request of each kind, for a tiny model with a chat template."""

from __future__ import annotations

from typing import Any

import numpy as np

from tampu.audio.pieces import Cutting
from tampu.audio.wav import wav_file
from tampu.engine.captures import Capture
from tampu.engine.format_check import CheckFormat
from tampu.engine.layer_watch import WatchLayers
from tampu.engine.load_options import LoadOptions
from tampu.engine.management import ActOnSlot, ChangeAdapter, EstimateMemory, ListPrefixes, Observe
from tampu.engine.prompts import ChatPrompt, TextPrompt, TokensPrompt
from tampu.engine.questions import Predicate
from tampu.engine.request import Request
from tampu.engine.requests import (
    Decide,
    Decode,
    Embed,
    Encode,
    Generate,
    Pair,
    Rank,
    Rerank,
    Score,
)
from tampu.engine.sounds import CutSound
from tampu.runner.capture_options import CaptureOptions
from tampu.runner.generate_options import GenerateOptions

CHAT = ChatPrompt(messages=({"role": "user", "content": "the cat"},))


def one_of_each(model: str, folder: str) -> list[Request[Any]]:
    """Return requests in an order in which each can be answered, `Rank` apart.

    Args:
        model: the file of the model.
        folder: where a slot is saved.
    """
    return [
        Generate(TextPrompt("the cat"), GenerateOptions(max_tokens=3, temperature=0.0)),
        Embed((TextPrompt("the cat"), TokensPrompt((3, 4)))),
        Score((5, 6), [((5, 6, 7), [(3,), (4, 5)])]),
        Decide(CHAT, (Predicate("It is late."),)),
        Rerank("the cat", ("the", "a cat"), "Find it"),
        Capture(CHAT, CaptureOptions(points=("hidden_states:1",), positions=(-1,))),
        Encode(TextPrompt("the cat"), detail="pieces"),
        Decode((5, 6)),
        CheckFormat({"type": "object"}),
        EstimateMemory(model, LoadOptions(context=64, threads=1)),
        Observe(),
        WatchLayers(),
        ListPrefixes(),
        ActOnSlot("save", 0, f"{folder}/slot"),
    ]


def refused_of_each() -> list[tuple[Request[Any], str]]:
    """Return requests of the other kinds, which this model refuses, and a part of the message."""
    return [
        (CutSound(wav_file(np.zeros(16_000, np.float32)), Cutting()), "takes no audio"),
        (ChangeAdapter("none"), "no adapter 'none' is loaded"),
        (Rank([Pair([3], 1, "a", "b")]), "does not rank"),
    ]
