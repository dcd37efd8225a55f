"""Files that say the same in other keys than ours, as other converters write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.laboratory import Laboratory, tokens

from tampu.convert import convert
from tampu.engine.engine import Engine

pytestmark = pytest.mark.parity

# What llama.cpp's converter writes in place of ours; where it has no key, what stands for none.
LAYOUTS: dict[str, dict[str, float]] = {
    "mistral3": {
        "mistral3.rope.scaling.attn_factor": 1.0,
        "mistral3.rope.scaling.yarn_log_multiplier": 1.0,
    },
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_file_in_llama_cpps_keys_gives_the_same_logits(
    laboratory: Laboratory, tmp_path: Path, name: str
) -> None:
    folder = laboratory.checkpoint(name)
    files = {"ours": None, "theirs": LAYOUTS[name]}
    logits = []
    for file, keys in files.items():
        convert(folder, tmp_path / f"{file}.gguf", "F32", metadata=keys)
        path = tmp_path / f"{file}.gguf"
        with Engine.load(path, context=128, threads=1, cache_type="f32") as engine:
            logits.append(engine.logits(tokens(60)))
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-5, atol=1e-5)
