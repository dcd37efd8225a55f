"""Turns conversations into padded batches of token ids, loss weights and pixels."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from tools.train_demo import data, pictures, tokenizer, turns

BUCKETS = (48, 64, 80, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 800)


@dataclass
class Row:
    """One conversation in token ids; ``answers`` marks the ids the model has to write."""

    ids: list[int]
    answers: list[float]
    pictures: list[Any]


@dataclass
class Batch:
    """Rows of like length, padded."""

    ids: torch.Tensor
    answers: torch.Tensor
    soft: torch.Tensor
    pixels: torch.Tensor | None
    scenes: list[list[pictures.Shape]]


def images(messages: list[turns.Message]) -> list[Any]:
    """The pictures of a conversation, in order."""
    parts = (part for m in messages if isinstance(m["content"], list) for part in m["content"])
    return [part["image"] for part in parts if part["type"] == "image"]


def row(
    tok: Tokenizer,
    messages: list[turns.Message],
    tools: list[turns.Tool],
    *,
    only_last: bool = False,
) -> Row:
    """Tokenize a conversation and mark what the model says, up to the end of its turn."""
    text = tokenizer.render(messages, tools, prompt=False).removesuffix("\n")
    ids = tok.encode(text, add_special_tokens=False).ids
    opening = tok.encode("<start_of_turn>model\n", add_special_tokens=False).ids
    end = tokenizer.token(tok, "<end_of_turn>")
    answers = [0.0] * len(ids)
    start, spans = 0, []
    while start < len(ids):
        if ids[start : start + len(opening)] == opening:
            start += len(opening)
            stop = ids.index(end, start) + 1
            spans.append((start, stop))
            start = stop
        else:
            start += 1
    for first, stop in spans[-1:] if only_last else spans:
        answers[first:stop] = [1 / math.sqrt(stop - first)] * (stop - first)
    return Row(ids, answers, images(messages))


def pixels(shown: list[Any]) -> torch.Tensor:
    """Pictures as the tower takes them: from -1 to 1, channels first."""
    array = np.stack([np.asarray(picture.convert("RGB"), dtype=np.float32) for picture in shown])
    return torch.from_numpy(array).permute(0, 3, 1, 2).contiguous() / 127.5 - 1.0


def batch(tok: Tokenizer, rows: list[Row], width: int) -> Batch:
    """Pad rows to one width."""
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    answers = torch.zeros(len(rows), width)
    for i, one in enumerate(rows):
        ids[i, : len(one.ids)] = torch.tensor(one.ids)
        answers[i, : len(one.ids)] = torch.tensor(one.answers)
    soft = ids.eq(tokenizer.token(tok, "<image_soft_token>"))
    shown = [picture for one in rows for picture in one.pictures]
    scenes = [picture.info["scene"] for picture in shown]
    return Batch(ids, answers, soft, pixels(shown) if shown else None, scenes)


def width_for(length: int) -> int:
    """The bucket a row of that length belongs to (0 when it is too long)."""
    return next((width for width in BUCKETS if length <= width), 0)


class Source:
    """An endless stream of training batches; the mixture and lengths may change as it runs."""

    def __init__(self, tok: Tokenizer, seed: int, tokens: int) -> None:
        self.tok = tok
        self.rng = random.Random(seed)
        self.tokens = tokens
        self.mixture: dict[str, float] = dict.fromkeys(data.SKILLS, 1.0)
        self.longest = 100
        self.pools: dict[int, list[Row]] = {width: [] for width in BUCKETS}

    def _row(self) -> Row:
        skill = self.rng.choices(list(self.mixture), list(self.mixture.values()))[0]
        length = int(self.rng.triangular(30, self.longest, 30 + self.longest / 3))
        tools, messages = data.conversation(skill, self.rng, length)
        return row(self.tok, messages, tools)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            one = self._row()
            width = width_for(len(one.ids))
            if not width:
                continue
            pool = self.pools[width]
            pool.append(one)
            if len(pool) * width >= self.tokens:
                self.pools[width] = []
                yield batch(self.tok, pool, width)
