"""Settings of config.json that would change a family's numbers and that its files cannot carry."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.checkpoints import FAMILIES as RECIPES

from tampu.convert import FAMILIES
from tampu.convert.config import Config
from tampu.errors import ModelFileError, UnsupportedModelError

LONG = {"rope_type": "longrope", "short_factor": [1.0] * 12, "long_factor": [2.0] * 12}


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("phi4", {"hidden_act": "gelu"}, "hidden_act"),
        ("phi4", {"rope_scaling": LONG | {"short_factor": [1.0] * 16}}, "long_factor.*not 16"),
        ("phi4_mini", {"rope_scaling": LONG | {"short_factor": [0.0] * 12}}, "short_factor"),
        ("phi4_mini", {"partial_rotary_factor": 0.3}, "partial_rotary_factor.*pairs"),
        ("phi4_mini", {"original_max_position_embeddings": 1}, "1 is not a length of contexts"),
        ("minicpm", {"sparse_config": {"block_size": 64}}, "sparse_config"),
        ("granite_swa", {"layer_rope_theta": [1e4, 1e4, 1e5, 0, 0]}, "layer_rope_theta"),
        ("granite_swa", {"layer_types": ["sliding_attention"]}, "layer_types.*5 layers"),
        ("olmo3", {"layer_types": ["chunked_attention"] * 3}, "layer_types"),
        ("cohere2", {"use_parallel_block": False}, "use_parallel_block"),
        ("cohere2", {"rotary_pct": 0.5}, "rotary_pct"),
        ("exaone4_windows", {"sliding_window_pattern": "LX", "layer_types": None}, "LX.*LLLG"),
        ("hunyuan", {"use_cla": True}, "use_cla"),
        ("apertus", {"qk_norm": False}, "qk_norm"),
    ],
)
def test_a_setting_that_a_file_cannot_carry_is_refused(
    name: str, changes: dict[str, Any], reason: str
) -> None:
    recipe = RECIPES[name]
    values = recipe.published or recipe.config(**recipe.values).to_dict()
    if "rope_scaling" in changes or "partial_rotary_factor" in changes:
        values = {key: value for key, value in values.items() if key != "rope_parameters"}
        values = {"rope_scaling": LONG, **values}
    if "original_max_position_embeddings" in changes:
        values["rope_parameters"] = values["rope_parameters"] | changes
    family = FAMILIES[recipe.checkpoint]
    config = family.complete(Config(values | changes))
    with pytest.raises((ModelFileError, UnsupportedModelError), match=re.compile(reason)):
        family.generated(config.changed({**config.values, **family.parameters(config)}))
