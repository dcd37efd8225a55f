"""What each family declares: names, keys and changed values, on numbers that can be read."""

from __future__ import annotations

import importlib
import math
import pkgutil
from typing import Any

import numpy as np
import pytest
from support import handmade_checkpoints as handmade

import tampu.convert.families
from tampu.convert import FAMILIES
from tampu.convert.checkpoint import StoredTensor
from tampu.convert.config import Config, read_rope
from tampu.convert.families.gemma import GEMMA3, GEMMA3_TEXT
from tampu.convert.families.lfm2 import LFM2
from tampu.convert.families.llama import LLAMA, interleave, rope_factors
from tampu.convert.families.mllama import MLLAMA
from tampu.convert.families.qwen import QWEN2, QWEN3
from tampu.convert.family import Family
from tampu.convert.keys import check_config
from tampu.errors import ModelFileError, UnsupportedModelError


def stored(name: str) -> StoredTensor:
    return StoredTensor(name, "F32", (1,), None, 0, 4)


def llama(**changes: Any) -> Config:
    return Config(handmade.CONFIG | changes)


def test_interleave_alternates_the_halves_of_a_head() -> None:
    rows = np.arange(8, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    assert interleave(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert interleave(rows[:, 0], 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]  # a bias


@pytest.mark.seed("S50")
def test_mllama_applies_tanh_to_the_gates_of_its_tower_only() -> None:
    parameters: dict[str, object] = {"attention.head_count": 2, "attention.head_count_kv": 1}
    gate = np.array([-2.0, 0.5], np.float32)
    for name in ("v.global.blk.0.attn_gate", "v.global.blk.7.ffn_gate"):
        opened = MLLAMA.transform(name, gate, parameters)
        np.testing.assert_array_equal(opened, np.tanh(gate))
    shut = MLLAMA.transform("v.position_embd.gate", gate, parameters)
    np.testing.assert_array_equal(shut, np.float32(1) - np.tanh(gate))
    for name in (
        "blk.3.cross_attn_attn_gate",
        "blk.3.cross_attn_mlp_gate",
        "blk.0.ffn_gate.weight",
    ):
        assert MLLAMA.transform(name, gate, parameters) is gate


@pytest.mark.seed("S51")
def test_mllamas_tower_has_the_same_attention_with_rows_of_a_head_swapped() -> None:
    """Nothing is rotated there, so that the order of rows within a head is only a name."""
    random = np.random.default_rng(0)
    heads, size, width = 4, 8, 16
    q, k = (random.standard_normal((heads * size, width)).astype(np.float32) for _ in "qk")
    x = random.standard_normal((5, width)).astype(np.float32)

    def scores(query: Any, key: Any) -> Any:
        queries, keys = (
            (x @ each.T).reshape(5, heads, size).transpose(1, 0, 2) for each in (query, key)
        )
        return queries @ keys.transpose(0, 2, 1)

    np.testing.assert_allclose(
        scores(interleave(q, heads), interleave(k, heads)), scores(q, k), rtol=1e-4, atol=1e-4
    )
    parameters: dict[str, object] = dict.fromkeys(
        ("attention.head_count", "attention.head_count_kv"), heads
    )
    for name in ("v.blk.0.attn_q.weight", "v.global.blk.0.attn_k.weight"):
        assert MLLAMA.transform(name, q, parameters) is q
    for name in ("blk.3.cross_attn_q_proj.weight", "blk.3.cross_attn_k_proj.weight"):
        assert MLLAMA.transform(name, q, parameters) is q  # these are not rotated either


@pytest.mark.seed("S24")
def test_llama_reorders_queries_and_keys_and_nothing_else() -> None:
    parameters = LLAMA.parameters(llama())
    q = np.arange(handmade.HEADS * handmade.HEAD, dtype=np.float32)
    k = np.arange(handmade.KV_HEADS * handmade.HEAD, dtype=np.float32)
    assert LLAMA.transform("blk.0.attn_q.bias", q, parameters)[:4].tolist() == [0, 8, 1, 9]
    assert LLAMA.transform("blk.0.attn_k.weight", k, parameters)[:4].tolist() == [0, 8, 1, 9]
    for name in ("blk.0.attn_v.weight", "blk.0.attn_output.weight", "output.weight"):
        assert LLAMA.transform(name, q, parameters) is q


@pytest.mark.parametrize("family", [QWEN2, QWEN3])
def test_qwen_reorders_nothing(family: Any) -> None:
    values = np.arange(32, dtype=np.float32)
    assert family.transform("blk.0.attn_q.weight", values, family.parameters(llama())) is values


def test_interleaving_converts_between_rope_pairings() -> None:
    size, angle = 8, np.arange(4) * 0.3 + 0.1
    x = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    low, high = x[:4], x[4:]
    halves = np.concatenate(
        [low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)]
    )
    y = interleave(x, 1)
    even, odd = y[0::2], y[1::2]
    neighbours = np.stack(
        [even * np.cos(angle) - odd * np.sin(angle), odd * np.cos(angle) + even * np.sin(angle)], 1
    ).reshape(-1)
    np.testing.assert_allclose(interleave(halves.astype(np.float32), 1), neighbours, rtol=1e-6)


def llama3(**changes: Any) -> dict[str, Any]:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return scaling | changes


def test_llama3_factors_follow_the_published_formula() -> None:
    config = llama(head_dim=128, rope_theta=500_000.0, rope_scaling=llama3())
    factors = rope_factors(config)["rope_freqs.weight"]
    assert factors.shape == (64,)
    for pair, factor in enumerate(factors):
        wavelength = 2 * math.pi * 500_000.0 ** (2 * pair / 128)
        smooth = (8192 / wavelength - 1) / 3
        expected = 1 / ((1 - smooth) / 8 + smooth)
        expected = 1.0 if wavelength < 2048 else 8.0 if wavelength > 8192 else expected
        assert factor == pytest.approx(expected, rel=1e-6)
    assert factors[0] == 1
    assert factors[-1] == 8
    assert 1 < factors[30] < 8


def test_only_llama3_scaling_generates_factors() -> None:
    assert rope_factors(llama()) == {}
    assert rope_factors(llama(rope_scaling={"type": "linear", "factor": 2})) == {}


def test_both_layouts_of_rope_settings_are_equivalent() -> None:
    hub = llama(rope_theta=5e5, rope_scaling=llama3(), head_dim=128)
    values = {k: v for k, v in hub.values.items() if k not in ("rope_theta", "rope_scaling")}
    new = Config(values | {"rope_parameters": llama3(rope_theta=5e5)})
    assert LLAMA.parameters(hub) == LLAMA.parameters(new)
    np.testing.assert_array_equal(
        rope_factors(hub)["rope_freqs.weight"], rope_factors(new)["rope_freqs.weight"]
    )


def test_rope_scaling_becomes_keys() -> None:
    linear = LLAMA.parameters(llama(rope_scaling={"type": "linear", "factor": 4}))
    assert linear["rope.scaling.type"] == "linear"
    assert linear["rope.scaling.factor"] == 4.0
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    keys = QWEN3.parameters(llama(rope_scaling=yarn))
    assert keys["rope.scaling.type"] == "yarn"
    assert keys["rope.scaling.original_context_length"] == 32768


@pytest.mark.parametrize(
    ("stated", "context"), [(32768, 131072), (40960, 131072), (262144, 262144)]
)
def test_yarn_extends_a_context_that_is_stated_as_before(stated: int, context: int) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    keys = QWEN3.parameters(llama(rope_scaling=yarn, max_position_embeddings=stated))
    assert keys["context_length"] == context


@pytest.mark.seed("S25", "S26")
def test_head_size_and_rotary_size_do_not_follow_the_hidden_size() -> None:
    keys = LLAMA.parameters(llama(head_dim=48))
    assert keys["attention.key_length"] == 48
    assert keys["attention.value_length"] == 48
    assert keys["rope.dimension_count"] == 48


def test_a_window_below_the_context_is_stored() -> None:
    key = "attention.sliding_window"
    assert LLAMA.parameters(llama(sliding_window=16))[key] == 16
    assert key not in LLAMA.parameters(llama(sliding_window=64))
    assert key not in LLAMA.parameters(llama(sliding_window=None))
    qwen = {"use_sliding_window": True, "sliding_window": 16}
    assert key not in QWEN2.parameters(llama(sliding_window=16))
    assert QWEN2.parameters(llama(**qwen, max_window_layers=0))[key] == 16
    assert key not in QWEN2.parameters(llama(**qwen, max_window_layers=1))
    with pytest.raises(UnsupportedModelError, match="max_window_layers"):
        QWEN2.parameters(llama(**qwen, max_window_layers=1, num_hidden_layers=2))


REFUSED: dict[str, dict[str, Any]] = {
    "another activation": {"hidden_act": "relu"},
    "unknown rotary scaling": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "partial rotary": {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "YaRN with borders between pairs": {
        "rope_scaling": {
            "type": "yarn",
            "factor": 4,
            "original_max_position_embeddings": 32,
            "truncate": False,
        }
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_settings_are_refused(case: str) -> None:
    with pytest.raises(UnsupportedModelError):
        LLAMA.parameters(llama(**REFUSED[case]))


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "layers below zero": {"num_hidden_layers": -1},
    "layers as text": {"num_hidden_layers": "12"},
    "layers with a fraction": {"num_hidden_layers": 1.5},
    "layers true": {"num_hidden_layers": True},
    "too many layers": {"num_hidden_layers": 2**31},
    "no hidden size": {"hidden_size": 0},
    "an epsilon that is no number": {"rms_norm_eps": math.nan},
    "an infinite rotary base": {"rope_theta": math.inf},
    "a rotary base of zero": {"rope_theta": 0},
    "heads that don't divide": {"num_attention_heads": 3, "num_key_value_heads": 2},
    "an odd head size": {"head_dim": 15},
    "scaling that is a list": {"rope_scaling": [1]},
    "linear scaling without a factor": {"rope_scaling": {"type": "linear"}},
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_impossible_values_are_errors(case: str) -> None:
    with pytest.raises(ModelFileError):
        LLAMA.parameters(llama(**IMPOSSIBLE[case]))


def test_a_missing_value_is_an_error_that_names_it() -> None:
    values = {k: v for k, v in handmade.CONFIG.items() if k != "hidden_size"}
    with pytest.raises(ModelFileError, match="hidden_size: is missing"):
        LLAMA.parameters(Config(values))


RENAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.11.self_attn.q_proj.bias": "blk.11.attn_q.bias",
    "model.layers.3.self_attn.o_proj.weight": "blk.3.attn_output.weight",
    "model.layers.3.mlp.down_proj.weight": "blk.3.ffn_down.weight",
    "lm_head.weight": "output.weight",
    "model.norm.weight": "output_norm.weight",
    "model.layers.0.self_attn.rotary_emb.inv_freq": None,
}


@pytest.mark.parametrize("name", RENAMES)
def test_llama_names(name: str) -> None:
    assert LLAMA.rename(name) == RENAMES[name]


GEMMA_RENAMES = {
    "language_model.model.layers.5.post_attention_layernorm.weight": (
        "blk.5.post_attention_norm.weight"
    ),
    "model.language_model.layers.5.pre_feedforward_layernorm.weight": "blk.5.ffn_norm.weight",
    "model.layers.5.post_feedforward_layernorm.weight": "blk.5.post_ffw_norm.weight",
    "language_model.model.layers.0.self_attn.q_norm.weight": "blk.0.attn_q_norm.weight",
    "vision_tower.vision_model.embeddings.patch_embedding.bias": "v.patch_embedding.bias",
    "vision_tower.embeddings.position_embedding.weight": "v.position_embedding.weight",
    "model.vision_tower.vision_model.encoder.layers.26.mlp.fc1.weight": "v.blk.26.mlp.fc1.weight",
    "vision_tower.encoder.layers.1.self_attn.out_proj.bias": "v.blk.1.attn_output.bias",
    "vision_tower.vision_model.post_layernorm.weight": "v.post_layernorm.weight",
    "multi_modal_projector.mm_input_projection_weight": "mm.mm_input_projection.weight",
    "model.multi_modal_projector.mm_soft_emb_norm.weight": "mm.mm_soft_emb_norm.weight",
}


@pytest.mark.parametrize("name", GEMMA_RENAMES)
def test_gemma3_names_with_every_published_prefix(name: str) -> None:
    assert GEMMA3.rename(name) == GEMMA_RENAMES[name]


@pytest.mark.parametrize(
    "name", ["model.layers.0.mlp.router.weight", "model.embed_tokens.scale", "x", ""]
)
def test_an_unknown_tensor_is_an_error(name: str) -> None:
    with pytest.raises(ModelFileError, match="is not a tensor of"):
        LLAMA.rename(name)


def test_two_tensors_with_one_name_are_an_error() -> None:
    names = [*handmade.weights(), "language_model.model.norm.weight"]
    tensors = [stored(name) for name in names]
    with pytest.raises(ModelFileError, match=r"output_norm.weight: duplicate tensor name"):
        GEMMA3_TEXT.plan(tensors, {"block_count": 0}, tied=False)


def test_missing_tensors_are_an_error_that_names_them() -> None:
    tensors = [stored(name) for name in handmade.weights() if "norm" not in name]
    with pytest.raises(ModelFileError, match=r"3 tensors are missing: .*attn_norm.weight"):
        LLAMA.plan(tensors, {"block_count": 1}, tied=False)


def test_a_tied_output_is_not_stored_twice() -> None:
    tensors = [stored(name) for name in handmade.weights()]
    assert "output.weight" in LLAMA.plan(tensors, {"block_count": 1}, tied=False)
    rest = [tensor for tensor in tensors if tensor.name != "lm_head.weight"]
    assert LLAMA.plan(rest, {"block_count": 1}, tied=True)
    with pytest.raises(ModelFileError, match=r"output\.weight"):
        LLAMA.plan(rest, {"block_count": 1}, tied=False)


def test_tensors_are_written_in_the_order_of_the_forward_pass() -> None:
    names = list(handmade.weights())
    names += [name.replace(".0.", f".{i}.") for i in (10, 2, 1) for name in names if ".0." in name]
    plan = LLAMA.plan([stored(name) for name in reversed(names)], {"block_count": 1}, tied=False)
    blocks = [int(name.split(".")[1]) for name in plan if name.startswith("blk")]
    assert next(iter(plan)) == "token_embd.weight"
    assert blocks == sorted(blocks)
    assert list(plan)[-2:] == ["output_norm.weight", "output.weight"]


PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma 2": (
        "Gemma2ForCausalLM",
        {"sliding_window": 4096, "sliding_window_size": 4096, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "LFM2": (
        "Lfm2ForCausalLM",
        {
            "layer_types": ["conv"], "conv_L_cache": 3, "intermediate_size": 96,
            "theta": 1e6, "rope_theta": 1e6, "tie_embedding": True, "use_pos_enc": True,
        },
    ),
    "LFM2.5": (
        "Lfm2ForCausalLM",
        {
            "layer_types": ["conv"], "conv_L_cache": 3, "intermediate_size": 96, "theta": 1e6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "tie_embedding": True,
        },
    ),
    "BERT for Chinese": (
        "BertModel",
        {
            "intermediate_size": 64, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
            "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
            "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
            "pooler_type": "first_token_transform",
            "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
        },
    ),
}  # fmt: skip
"""Keys of published files that transformers does not read, or under another name."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_keys_of_published_files_are_accepted(name: str) -> None:
    architecture, changes = PUBLISHED[name]
    only_decoders = {"rope_theta", "num_key_value_heads", "head_dim", "rms_norm_eps"}
    left_out = only_decoders if architecture == "BertModel" else {"rope_theta"}
    usual = {key: value for key, value in handmade.CONFIG.items() if key not in left_out}
    read = Config(usual | changes)
    config = FAMILIES[architecture].complete(read)
    FAMILIES[architecture].parameters(config)
    assert FAMILIES[architecture].is_tied(config)
    check_config(read, is_allowed=False)


def test_lfm2_has_an_output_where_its_own_key_says_so() -> None:
    assert not LFM2.is_tied(Config({"tie_embedding": False, "tie_word_embeddings": True}))
    assert LFM2.is_tied(Config({"tie_embedding": True, "tie_word_embeddings": False}))
    assert not LFM2.is_tied(Config({"tie_word_embeddings": False}))


def test_a_second_base_of_lfm2_must_be_the_first() -> None:
    lfm2 = handmade.CONFIG | PUBLISHED["LFM2"][1]
    with pytest.raises(UnsupportedModelError, match=r"theta is 20000\.0; only 1000000\.0"):
        LFM2.parameters(Config(lfm2 | {"theta": 2e4}))


def gemma(**changes: Any) -> Config:
    text = {k: v for k, v in handmade.CONFIG.items() if k != "rope_theta"}
    return Config(text | {"sliding_window": 8, "num_hidden_layers": 7} | changes)


def test_gemma3_adds_one_to_norms_outside_the_vision_tower() -> None:
    values = np.array([-0.5, 0, 0.25], np.float32)
    for name in ("blk.0.attn_q_norm.weight", "output_norm.weight", "mm.mm_soft_emb_norm.weight"):
        np.testing.assert_array_equal(GEMMA3.transform(name, values, {}), [0.5, 1, 1.25])
    for name in ("v.blk.0.layer_norm1.weight", "v.post_layernorm.weight", "blk.0.attn_q.weight"):
        assert GEMMA3.transform(name, values, {}) is values


def test_gemma3_norms_in_bf16_keep_their_precision() -> None:
    bits = np.array([0x3C23], np.uint16)  # 0.00994873046875 in BF16
    (value,) = GEMMA3.transform("output_norm.weight", bits, {})
    assert value == np.float32(1.00994873046875)


def test_gemma3_keys() -> None:
    keys = GEMMA3_TEXT.parameters(
        gemma(rope_scaling={"rope_type": "linear", "factor": 8.0}, query_pre_attn_scalar=24)
    )
    assert keys["attention.sliding_window"] == 8
    assert keys["rope.freq_base"] == 1e6
    assert keys["rope.freq_base_swa"] == keys["rope.local.freq_base"] == 1e4
    assert keys["rope.scaling.factor"] == 8.0
    assert keys["attention.scale"] == pytest.approx(24**-0.5)
    assert "attention.sliding_window_pattern" not in keys


def test_gemma3_reads_the_layout_of_transformers_5() -> None:
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    keys = GEMMA3_TEXT.parameters(gemma(rope_parameters=rope))
    assert keys["rope.freq_base"] == 2e6
    assert keys["rope.freq_base_swa"] == 2e4
    assert keys["rope.scaling.factor"] == 8.0


def kinds(period: int, count: int = 7) -> list[str]:
    names = ("sliding_attention", "full_attention")
    return [names[(index + 1) % period == 0] for index in range(count)]


def test_gemma3_stores_an_unusual_pattern() -> None:
    key = "attention.sliding_window_pattern"
    assert key not in GEMMA3_TEXT.parameters(gemma(layer_types=kinds(6)))
    assert GEMMA3_TEXT.parameters(gemma(layer_types=kinds(3)))[key] == 3
    assert GEMMA3_TEXT.parameters(gemma(layer_types=kinds(1)))[key] == 1
    assert GEMMA3_TEXT.parameters(gemma(layer_types=kinds(9)))[key] == 8  # all of them slide
    assert GEMMA3_TEXT.parameters(gemma(sliding_window_pattern=2))[key] == 2


def test_gemma3_without_a_regular_pattern_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="pattern"):
        GEMMA3_TEXT.parameters(gemma(layer_types=kinds(3)[::-1]))
    with pytest.raises(ModelFileError, match="layer_types"):
        GEMMA3_TEXT.parameters(gemma(layer_types=kinds(3, 5)))


def test_gemma3_defaults_are_those_of_the_published_4b() -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }
    vision = {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    }
    config = Config({"text_config": text, "vision_config": vision, "mm_tokens_per_image": 256})
    keys = GEMMA3.parameters(config)
    assert keys["attention.head_count"] == 8
    assert keys["attention.head_count_kv"] == 4
    assert keys["attention.key_length"] == 256
    assert keys["context_length"] == 131_072
    assert keys["vision.block_count"] == 27
    assert keys["mm.tokens_per_image"] == 256
    assert "attention.scale" not in keys


def test_image_tokens_that_do_not_fit_the_patches_are_an_error() -> None:
    vision = {"image_size": 112, "patch_size": 14, "vision_use_head": False}
    config = {"text_config": gemma().values, "vision_config": vision}
    assert GEMMA3.parameters(Config(config | {"mm_tokens_per_image": 16}))
    for tokens in (9, 15, 256):
        with pytest.raises(ModelFileError, match="mm_tokens_per_image"):
            GEMMA3.parameters(Config(config | {"mm_tokens_per_image": tokens}))


@pytest.mark.parametrize(
    ("given", "whole"), [({"fullatt_block_indexes": [1, 3]}, [1, 3]), ({}, None),
                         ({"fullatt_block_indexes": None}, None)]
)  # fmt: skip
def test_qwen25vl_has_the_published_list_of_layers_where_a_checkpoint_has_none(
    given: dict[str, Any], whole: list[int] | None
) -> None:
    text = {**llama().values, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    tower = {"hidden_size": 64, "intermediate_size": 96, "hidden_act": "silu", **given}
    config = Config({"text_config": text, "vision_config": tower})
    keys = FAMILIES["Qwen2_5_VLForConditionalGeneration"].parameters(config)
    assert keys["vision.fullatt_block_indexes"] == (whole or [7, 15, 23, 31])


LFM2_CONFIG = {
    "hidden_size": 2048,
    "intermediate_size": 12_288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 3,
    "layer_types": ["conv", "conv", "full_attention"],
    "vocab_size": 65_536,
    "max_position_embeddings": 128_000,
    "conv_L_cache": 3,
    "norm_eps": 1e-5,
}


def test_lfm2_stores_the_kv_heads_per_layer_and_the_width_after_gating() -> None:
    keys = LFM2.parameters(Config(LFM2_CONFIG))
    assert keys["attention.head_count_kv"] == [0, 0, 8]
    assert keys["feed_forward_length"] == 8192
    assert keys["shortconv.l_cache"] == 3
    stated = LFM2.parameters(Config(LFM2_CONFIG | {"block_auto_adjust_ff_dim": False}))
    assert stated["feed_forward_length"] == 12_288


@pytest.mark.parametrize("kinds", [["conv", "conv"], ["conv", "mamba", "full_attention"]])
def test_lfm2_with_unknown_layer_types_is_an_error(kinds: list[str]) -> None:
    with pytest.raises(ModelFileError, match=r"layer_types.*for 3 layers"):
        LFM2.parameters(Config(LFM2_CONFIG | {"layer_types": kinds}))


def test_every_architecture_belongs_to_one_family() -> None:
    package = tampu.convert.families
    declared = [
        (name, family)
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        for family in vars(importlib.import_module(module.name)).values()
        if isinstance(family, Family)
        for name in family.checkpoints
    ]
    assert all(FAMILIES[name] is family for name, family in declared)
    assert {name for name, _ in declared} == set(FAMILIES)


def test_the_rope_base_defaults_to_the_familys() -> None:
    assert read_rope(Config({}), base=5.0).base == 5.0


def test_lfm2_reads_the_names_of_its_first_release() -> None:
    old = LFM2_CONFIG | {"full_attn_idxs": [2], "block_ff_dim": 12_288}
    del old["layer_types"], old["intermediate_size"]
    assert LFM2.parameters(Config(old)) == LFM2.parameters(Config(LFM2_CONFIG))


@pytest.mark.parametrize(
    ("name", "base"),
    [("MixtralForCausalLM", 1e6), ("Lfm2ForCausalLM", 1e6), ("LlamaForCausalLM", 1e4)],
)
def test_a_missing_rope_base_is_the_default_of_the_family(name: str, base: float) -> None:
    values = LFM2_CONFIG | {"num_local_experts": 4, "num_experts_per_tok": 2}
    family = FAMILIES[name]
    assert family.parameters(family.complete(Config(values)))["rope.freq_base"] == base
