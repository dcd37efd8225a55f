"""Slots that share the cells of one context: answers are those of each request alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.engines import GREEDY, rest
from support.tiny_gemma4 import gemma4_weights, tiny_gemma4
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import Tiny, write_tiny

from tampu.engine.engine import Engine

OPTIONS: dict[str, Any] = {"context": 256, "threads": 1, "batch": 64, "cache_type": "f32"}
MODELS: dict[str, tuple[Tiny, Any]] = {
    "all positions": (Tiny(), None),
    "windows": (tiny_gemma4(), gemma4_weights),
    "recurrent layers": (tiny_hybrid(), hybrid_weights),
}
PROMPTS = [f"the cat is on the list {'and the dog ' * (number % 3)}{number}" for number in range(8)]


@pytest.mark.parametrize("kind", MODELS)
def test_eight_requests_take_turns_in_the_cells_of_one_context(tmp_path: Path, kind: str) -> None:
    tiny, weights = MODELS[kind]
    path = write_tiny(tmp_path / "tiny.gguf", tiny, weights=weights() if weights else None)
    with Engine.load(path, slots=1, **OPTIONS) as engine:
        alone = [engine.generate(each, max_tokens=60, **GREEDY).text for each in PROMPTS]
    with Engine.load(path, **OPTIONS) as engine:
        assert engine.slots == 8
        streams = engine.runner.call(
            lambda: [engine.stream(each, max_tokens=60, **GREEDY) for each in PROMPTS]
        )
        found = ["".join(getattr(e, "text", "") for e in stream) for stream in streams]
        rest(engine)
        stats = engine.runner.stats
    assert found == alone
    assert stats.sequences > 2 * stats.batches  # of each batch
