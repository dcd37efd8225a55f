"""Every key of a checkpoint's files is used, irrelevant for a stated reason, or an error."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import transformers
from support import handmade_checkpoints as handmade
from support.checkpoints import RANKERS, RECIPES
from support.checkpoints.published import published_config

from tampu.convert import FAMILIES, convert, plan_conversion
from tampu.convert.config import Config
from tampu.convert.keys import CONFIG, FILES, Keys, check_config, check_quantization
from tampu.errors import UnsupportedModelError

RECIPES_OF_ALL = RECIPES | RANKERS


@pytest.mark.parametrize("name", RECIPES_OF_ALL)
def test_every_key_that_transformers_writes_is_classified(name: str) -> None:
    recipe = RECIPES_OF_ALL[name]
    values = recipe.config(**recipe.values, architectures=[recipe.architecture]).to_dict()
    values = recipe.published or values
    values = published_config(values, recipe.layout) if recipe.layout else values
    read = Config(values)
    named = FAMILIES[recipe.checkpoint]
    family = named.variant(read) or named
    config = family.complete(read)
    check_quantization(config, family.quantizations)
    family.parameters(config)
    family.generated(config)
    family.multipliers(config)
    family.is_tied(config)
    check_config(read, is_allowed=False)


def write(folder: Path, **changes: Any) -> Path:
    return handmade.write(folder / "model", config=handmade.CONFIG | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"invented_scale": 2.0},
        {"invented_scale": False},
        {"invented_scale": []},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "invented_scale": 1}},
        {"rope_parameters": {"rope_type": "default", "invented_scale": 1}},
        {"invented_scale": {"a": 1}},
    ],
)
def test_an_invented_key_stops_a_conversion(tmp_path: Path, changes: dict[str, Any]) -> None:
    source = write(tmp_path, **changes)
    with pytest.raises(
        UnsupportedModelError, match=r"config\.json: .*invented_scale is not known.*--allow-unknown"
    ):
        convert(source, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_an_unknown_key_may_be_allowed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write(tmp_path, invented_scale=2.0)
    with caplog.at_level(logging.WARNING, "tampu"):
        convert(source, tmp_path / "out.gguf", allow_unknown=True)
    assert "invented_scale is not known" in caplog.text
    assert (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"invented_scale": None},
        {"torch_dtype": "bfloat16", "_name_or_path": "x", "use_cache": True},
        {"attention_dropout": 0.1, "initializer_range": 0.02, "pretraining_tp": 2},
        {"unsloth_version": "2026.1", "auto_map": {"AutoModel": "x.py"}},
        {"use_mrope": False, "is_decoder": False, "attn_logit_softcapping": None},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "low_freq_factor": 1.0}},
        {"id2label": {"0": "a"}, "label2id": {"a": 0}},
        {"task_specific_params": {"x": {"prefix": "y"}}},
        {"is_llama_config": True, "rope_interleaved": False},  # SmolLM
        {"max_sequence_length": 2048, "pad_token_id": -1},  # Llama 1
        {"loss_type": "ForCausalLM", "pad_token": "<pad>"},
    ],
)
def test_keys_that_change_nothing_are_accepted(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert plan_conversion(write(tmp_path, **changes))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("partial_rotary_factor", 0.5),
        ("is_decoder", True),
        ("use_bidirectional_attention", True),
        ("layer_types", ["sliding_attention"]),
        ("clip_qkv", 8),
        ("qk_layernorm", True),
        ("embedding_multiplier", 12.0),
        ("logits_scaling", 8.0),
        ("residual_multiplier", 0.2),
        ("attention_multiplier", 0.1),
        ("use_qk_norm", False),
        ("num_local_experts", 4),
    ],
)
def test_a_setting_that_the_graph_does_not_compute_is_refused_by_name(
    tmp_path: Path, key: str, value: object
) -> None:
    with pytest.raises(UnsupportedModelError, match=key):
        plan_conversion(write(tmp_path, **{key: value}))


@pytest.mark.parametrize("method", ["fp8", "gptq", "awq", "bitsandbytes", "mxfp4", None])
def test_a_quantized_checkpoint_is_refused_by_its_method(tmp_path: Path, method: object) -> None:
    source = write(tmp_path, quantization_config={"quant_method": method, "bits": 4})
    with pytest.raises(
        UnsupportedModelError, match=f"quantization_config: quant_method is {method!r}"
    ):
        plan_conversion(source, allow_unknown=True)


def test_an_unknown_key_of_another_file_stops_a_conversion(tmp_path: Path) -> None:
    source = handmade.write(
        tmp_path / "model", generation_config={"eos_token_id": 9, "top_k": 20, "invented": 1}
    )
    with pytest.raises(UnsupportedModelError, match=r"generation_config\.json: invented is not"):
        plan_conversion(source)
    assert plan_conversion(source, allow_unknown=True)


@pytest.mark.parametrize("keys", [CONFIG, *FILES.values()])
def test_no_key_stands_twice_in_a_table(keys: Keys) -> None:
    assert all(keys.irrelevant.values())
    assert not keys.irrelevant.keys() & keys.neutral.keys()
    assert not keys.used & keys.neutral.keys()


def test_supported_configurations_belong_to_transformers() -> None:
    assert transformers.__version__.startswith("5.")
