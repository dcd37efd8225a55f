"""What a batch copies from a device for requests that need different outputs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.devices import StandIn
from support.tiny_model import Tiny, write_tiny

from tampu.engine.completion import Stream
from tampu.engine.engine import Engine
from tampu.ml.device_map import Offload
from tampu.ml.devices import Device

TOKENS = 6
FOUR: dict[str, Any] = {"context": 256, "slots": 4, "threads": 1, "batch": 64}
PROMPTS = ("the cat is", "the dog is", "the list is", "cat is the")
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "forty": {"top_k": 40, "temperature": 2.0},
    "all": {"top_k": 0},
    "logprobs": {"temperature": 0.0, "logprobs": True},
}


def start(engine: Engine, kinds: Sequence[str]) -> list[Stream]:
    """Start requests that are in the same batches from the first to the last."""
    asked = [
        (prompt, {"max_tokens": TOKENS, "seed": 3, "ignore_eos": True, **KINDS[kind]})
        for prompt, kind in zip(PROMPTS, kinds, strict=False)
    ]
    return engine.runner.call(
        lambda: [engine.stream(prompt, **options) for prompt, options in asked]
    )


def tokens(stream: Stream) -> list[int]:
    return [token for event in stream for token in getattr(event, "tokens", ())]


@pytest.mark.parametrize(
    ("kinds", "width", "in_full"),
    [("greedy greedy greedy greedy", 3, 0), ("greedy all greedy greedy", 3, 1),
     ("greedy logprobs forty greedy", 129, 1), ("all greedy logprobs forty", 129, 2),
     ("all greedy", 3, 1), ("all all all greedy", 0, 4), ("logprobs", 0, 1)],
)  # fmt: skip
def test_only_requests_that_need_all_logits_copy_them(
    tmp_path: Path, gpus: Sequence[StandIn | Device], kinds: str, width: int, in_full: int
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=2))
    wanted = []
    with Engine.load(path, offload=Offload(0), **FOUR) as engine:
        for kind, stream in zip(kinds.split(), start(engine, kinds.split()), strict=True):
            wanted.append(tokens(stream))
            assert len(wanted[-1]) == TOKENS, kind
    with Engine.load(path, offload=Offload(99), **FOUR) as engine:
        assert gpus
        assert engine.device_bytes > 0
        backend = engine.runner.graphs.backend
        before, reserved = backend.counts.bytes_read, backend.graph_bytes
        assert [tokens(stream) for stream in start(engine, kinds.split())] == wanted
        row = len(kinds.split()) * width + in_full * engine.tokenizer.vocabulary_size
        assert backend.counts.bytes_read - before == TOKENS * 4 * row
        assert backend.graph_bytes == reserved
