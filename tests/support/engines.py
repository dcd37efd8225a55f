"""Engines over tiny models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.fake_graphs import wait_until_idle
from support.tiny_model import write_tiny

from tampu.engine.engine import Engine

TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}{% endfor %}{{ bos_token }}a:"
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
PROMPT = "the cat is on the list"
SMALL: dict[str, Any] = {
    "context": 64,
    "threads": 1,
    "batch": 16,
    "spec_type": "none",  # whether drafts win depends on measured times
}


@contextmanager
def tiny_engine(folder: Path) -> Iterator[Engine]:
    """Give an engine with 64 tokens of context in two slots, for the tests of a module."""
    path = write_tiny(folder / "tiny.gguf", template=TEMPLATE)
    with Engine.load(path, slots=2, **SMALL) as engine:
        engine.generate("a", max_tokens=1)  # its threads are there before the first test begins
        yield engine


def rest(engine: Engine) -> None:
    """Wait until nothing runs and each cell has the owners that it should."""
    wait_until_idle(engine.model.scheduler)
