"""Model files with tensors and options that do not fit: refused or answered, never a crash.

ggml ends the process when operands do not fit; so a failure of these tests may be a missing report.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_model import Tiny, tiny_weights, write_tiny

from tampu.engine.engine import Engine
from tampu.errors import ModelFileError, OutOfMemoryError, TampuError

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hostile.gguf"


# One thing wrong

WRONG: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a norm that is shorter": ("blk.0.attn_norm.weight", lambda w: w[:16]),
    "a norm of one number": ("output_norm.weight", lambda w: w[:1]),
    "a norm in rows": ("blk.0.ffn_norm.weight", lambda w: np.stack([w, w])),
    "queries with other inputs": ("blk.0.attn_q.weight", lambda w: w[:, :16]),
    "queries with fewer outputs": ("blk.0.attn_q.weight", lambda w: w[:32]),
    "keys with more outputs": ("blk.1.attn_k.weight", lambda w: np.concatenate([w, w])),
    "values with more outputs": ("blk.1.attn_v.weight", lambda w: np.concatenate([w, w])),
    "values turned round": ("blk.1.attn_v.weight", lambda w: w.T[:, :16].copy()),
    "an output with other inputs": ("blk.0.attn_output.weight", lambda w: w[:, :32]),
    "a feed-forward of two widths": ("blk.0.ffn_up.weight", lambda w: w[:32]),
    "a narrow embedding": ("token_embd.weight", lambda w: w[:, :16]),
    "an embedding in three dimensions": ("token_embd.weight", lambda w: w[..., None]),
    "a matrix of one row": ("blk.0.ffn_down.weight", lambda w: w.reshape(-1)),
}


@pytest.mark.parametrize("what", WRONG)
def test_weights_of_other_shapes_are_refused_at_loading(path: Path, what: str) -> None:
    name, change = WRONG[what]
    weights = tiny_weights(Tiny())
    weights[name] = np.ascontiguousarray(change(weights[name]))
    write_tiny(path, weights=weights)
    with pytest.raises(ModelFileError, match="tensor"):
        Engine.load(path, context=32, threads=1).close()


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("attn_norm.weight", "F16"),
        ("output_norm.weight", "Q8_0"),
        ("attn_q.weight", "I32"),
        ("token_embd.weight", "I32"),
        ("rope_freqs.weight", "F16"),
    ],
)
def test_weights_of_types_that_do_not_fit_are_refused_at_loading(
    path: Path, name: str, type_: str
) -> None:
    write_tiny(path, Tiny(factors=True), types={name: type_})
    with pytest.raises(ModelFileError, match=type_):
        Engine.load(path, context=32, threads=1).close()


@pytest.mark.parametrize(
    "keys",
    [
        {"attention.head_count": 3},
        {"attention.head_count_kv": 3},
        {"attention.head_count_kv": 8},
        {"attention.key_length": 15},
        {"attention.key_length": 2**31 - 1},
        {"embedding_length": 128, "attention.key_length": None},
        {"rope.dimension_count": 3},
        {"rope.dimension_count": 64},
        {"block_count": 3},
        {"block_count": 1},
    ],
)
def test_options_that_do_not_fit_the_weights_are_refused_at_loading(
    path: Path, keys: dict[str, Any]
) -> None:
    write_tiny(path, Tiny(keys=keys))
    with pytest.raises((ModelFileError, OutOfMemoryError)):
        Engine.load(path, context=32, threads=1).close()


# Anything wrong

TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "I32"]
CHANGES: dict[str, Callable[[Any], Any]] = {
    "turned": lambda w: w.T if w.ndim > 1 else w[None],
    "half of the rows": lambda w: w[: max(1, len(w) // 2)],
    "twice the rows": lambda w: np.concatenate([w, w]),
    "half of each row": lambda w: w[..., : max(1, w.shape[-1] // 2)],
    "rows of twice the length": lambda w: np.concatenate([w, w], -1),
    "one row": lambda w: w.reshape(-1),
    "one number": lambda w: w.reshape(-1)[:1],
    "one dimension more": lambda w: w[None],
    "two of them": lambda w: np.stack([w, w]),
    "infinite": lambda w: np.full_like(w, np.inf),
}
KEYS: dict[str, list[Any]] = {
    "block_count": [1, 2],
    "embedding_length": [1, 16, 64],
    "context_length": [1, 2**31 - 1],
    "attention.head_count": [1, 3, 8, 4096],
    "attention.head_count_kv": [None, 1, 3, 4, 4096],
    "attention.key_length": [None, 1, 8, 15, 64, 2**31 - 1],
    "attention.layer_norm_rms_epsilon": [1e-30, 1e5],
    "attention.sliding_window": [1, 2**31 - 1],
    "attention.sliding_window_pattern": [1, 2, 2**31 - 1],
    "attention.scale": [1e-30, 1e30],
    "final_logit_softcapping": [1e-30, 1e30],
    "rope.freq_base": [None, 1e-30, 1e12],
    "rope.dimension_count": [1, 2, 15, 64, 2**31 - 1],
    "rope.scaling.type": ["linear", "yarn"],
    "rope.scaling.factor": [1e-30, 1e30],
    "rope.scaling.original_context_length": [0, 1],
    "rope.scaling.yarn_ext_factor": [float("nan"), float("inf")],
    "rope.scaling.yarn_beta_fast": [0.0, -1.0, float("nan")],
}


def hostile(source: random.Random, path: Path) -> Path:
    """Write a model with up to two keys and up to two tensors changed."""
    keys: dict[Any, Any] = {}
    for key in source.sample(sorted(KEYS), source.choice([0, 0, 1, 2])):
        keys[key] = source.choice(KEYS[key])
    tiny = Tiny(
        architecture=source.choice(["llama", "qwen3", "gemma3"]),
        layers=1,
        tied=source.random() < 0.3,
        biases=source.random() < 0.5,
        factors=source.random() < 0.2,
        query_norms=source.random() < 0.3,
        keys=keys,
    )
    weights, types = tiny_weights(tiny), {}
    for name in source.sample(sorted(weights), source.choice([1, 1, 2])):
        change = source.choice(sorted(CHANGES))
        if source.random() < 0.6:
            weights[name] = np.ascontiguousarray(CHANGES[change](weights[name]))
        if source.random() < 0.5 and weights[name].shape[-1] % 32 == 0:
            types[name] = source.choice(TYPES)
    return write_tiny(path, tiny, weights=weights, types=types)


@pytest.mark.seed("S41")
@pytest.mark.parametrize("seed", range(60))
def test_a_model_that_does_not_fit_together_is_refused_or_answers(path: Path, seed: int) -> None:
    source = random.Random(seed)
    hostile(source, path)
    options: dict[str, Any] = {
        "context": source.choice([4, 64, 300]),
        "batch": source.choice([1, 8, 512]),
        "cache_type": source.choice(["f16", "f32", "q8_0"]),
        "flash_attention": source.choice([None, True]),
    }
    refusal = "none"
    try:
        with Engine.load(path, threads=1, **options) as engine:
            assert engine.logits([1, 5, 9]).shape == (3, engine.tokenizer.vocabulary_size)
            engine.embed([[1, 5]])
            engine.generate("the", max_tokens=4, truncate=True, temperature=0)
    except TampuError as error:
        refusal = str(error)
    assert refusal
    assert "\n" not in refusal
