"""Model files with tensors and options that do not fit: refused or answered, never a crash.

ggml ends the process when operands do not fit; so a failure of these tests may be a missing report.
"""

import random

import numpy as np
import pytest
from support.tiny_model import Tiny, tiny_weights, write_tiny

from tampu.engine import Engine
from tampu.errors import TampuError

TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "I32"]
CHANGES = {
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
KEYS = {
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


def hostile(source, path):
    """Write a model with up to two keys and up to two tensors changed."""
    keys = {}
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
def test_a_model_that_does_not_fit_together_is_refused_or_answers(tmp_path, seed):
    source = random.Random(seed)
    path = hostile(source, tmp_path / "hostile.gguf")
    options = {
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
