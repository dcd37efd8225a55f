"""Snapshots: one conversation's rows in a file, and back, with the same logits."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import GREEDY, rest
from support.tiny_gemma4 import gemma4_weights, tiny_gemma4
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import Tiny, write_tiny

from tampu.engine.completion import Completion
from tampu.engine.engine import Engine
from tampu.errors import RequestError, SnapshotError

OPTIONS: dict[str, Any] = {"context": 512, "threads": 1, "batch": 64}
PROMPT = [random.Random(0).randrange(8, 60) for _ in range(300)]


def answer(engine: Engine, prompt: list[int]) -> Completion:
    return engine.generate(prompt, max_tokens=5, logprobs=True, top_logprobs=20, **GREEDY)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(write_tiny, id="dense"),
        pytest.param(
            lambda path: write_tiny(path, tiny_gemma4(), weights=gemma4_weights()), id="window"
        ),
        pytest.param(
            lambda path: write_tiny(path, tiny_hybrid(), weights=hybrid_weights()), id="hybrid"
        ),
    ],
)
def test_a_restored_conversation_continues_with_the_same_logits(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path, file = make(tmp_path / "model.gguf"), tmp_path / "talk"
    with Engine.load(path, **OPTIONS) as engine:
        first = answer(engine, PROMPT)
        saved = engine.snapshots.save([*PROMPT, *first.tokens], file)
        assert saved.tokens == len(PROMPT) + 4  # the last token was not computed
        assert saved.size_bytes == file.stat().st_size
        following = [*PROMPT, *first.tokens, 9, 10, 11]
        expected = answer(engine, following)
    with Engine.load(path, **OPTIONS) as engine:
        for _ in range(2):  # what is there already stays
            assert engine.snapshots.restore(file) == saved
            rest(engine)
        found = answer(engine, following)
        rest(engine)
    assert found.usage.cached_tokens == expected.usage.cached_tokens == saved.tokens
    assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)


def test_a_snapshot_of_another_model_is_refused_with_what_differs(tmp_path: Path) -> None:
    paths = [write_tiny(tmp_path / f"{at}.gguf", Tiny(head_dim=32, seed=at)) for at in (0, 1)]
    file = tmp_path / "talk"
    with Engine.load(paths[0], **OPTIONS) as engine:
        answer(engine, PROMPT)
        assert engine.snapshot(PROMPT, file).tokens == len(PROMPT)
    with Engine.load(paths[1], **OPTIONS) as engine:
        with pytest.raises(SnapshotError, match="different: model, name"):
            engine.restore_snapshot(file)
        assert answer(engine, PROMPT).usage.cached_tokens == 0
    with (
        Engine.load(paths[0], cache_type="q8_0", **OPTIONS) as engine,
        pytest.raises(SnapshotError, match="different: cache type, layout of rows"),
    ):
        engine.snapshots.restore(file)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = write_tiny(tmp_path_factory.mktemp("engine") / "tiny.gguf")
    with Engine.load(path, **OPTIONS) as engine:
        answer(engine, PROMPT)
        yield engine


def test_what_is_not_cached_cannot_be_saved(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="nothing of this conversation is in the cache"):
        engine.snapshots.save([4, 5, 6], tmp_path / "talk")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SnapshotError, match="cannot be written"):
        engine.snapshots.save(PROMPT, tmp_path / "none" / "talk")


def test_damaged_snapshots_are_refused_and_leave_nothing(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "talk"
    with pytest.raises(SnapshotError, match="snapshot talk not found"):
        engine.snapshots.restore(file)
    engine.snapshots.save(PROMPT, file)
    content = file.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(content), 40).tolist():
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(SnapshotError, match=r"^talk: "):
            engine.snapshots.restore(file)
        file.write_bytes(content[:at])
        if at not in (0,):
            with pytest.raises(SnapshotError):
                engine.snapshots.restore(file)
    rest(engine)
