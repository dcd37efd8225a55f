"""ModernBERT: `modern-bert`; models for embeddings, and classifiers that rank."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tampu.convert.config import Config, read_rope
from tampu.convert.families.bert import POOLINGS, classifier_keys, encoder_parameters
from tampu.convert.family import Family, Parameters
from tampu.errors import ModelFileError, UnsupportedModelError

_LAYER = "layers.{}"
NAMES = {
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    f"{_LAYER}.attn_norm": "blk.{}.attn_norm",
    f"{_LAYER}.attn.Wqkv": "blk.{}.attn_qkv",
    f"{_LAYER}.attn.Wo": "blk.{}.attn_output",
    f"{_LAYER}.mlp_norm": "blk.{}.ffn_norm",
    f"{_LAYER}.mlp.Wi": "blk.{}.ffn_up",
    f"{_LAYER}.mlp.Wo": "blk.{}.ffn_down",
    "final_norm": "output_norm",
}
_DEFAULTS = {
    "vocab_size": 50_368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
    "num_attention_heads": 12, "max_position_embeddings": 8192, "norm_eps": 1e-5,
}  # fmt: skip


def parameters(config: Config) -> Parameters:
    """Return the keys of `modern-bert`."""
    config.require("hidden_activation", ("gelu", "silu"), "gelu")
    for key in ("norm_bias", "mlp_bias", "attention_bias"):
        config.require(key, (False,), default=False)
    period = _period(config)
    keys = encoder_parameters(config, epsilon="norm_eps") | {
        "hidden_activation": config.string("hidden_activation", "gelu"),
        "rope.freq_base": _base(config, "full_attention", "global_rope_theta", 160_000.0),
        "rope.scaling.type": "none",
    }
    if period == 1:
        return keys
    return keys | {
        "attention.sliding_window": config.integer("local_attention", 128),
        "attention.sliding_window_pattern": period,
        "rope.freq_base_swa": _base(config, "sliding_attention", "local_rope_theta", 10_000.0),
    }


def _base(config: Config, layers: str, older: str, usual: float) -> float:
    """Return the base of one kind of layer; files of older versions state it elsewhere."""
    stated = config.number(older, usual)
    rope = read_rope(config, layers=layers, base=stated)
    if rope.kind != "none":
        raise UnsupportedModelError(
            f"{rope.settings.where}: rope type {rope.kind!r} is not supported"
        )
    return rope.base


def _period(config: Config) -> int:
    """Return how many layers there are from one without a window to the next; the first has none.

    Raises:
        UnsupportedModelError: for other patterns.
    """
    period = config.integer("global_attn_every_n_layers", 3)
    kinds = config.strings("layer_types")
    if not kinds:
        return period
    full = [index for index, kind in enumerate(kinds) if kind == "full_attention"]
    period = full[1] if len(full) > 1 else len(kinds)
    names = ("sliding_attention", "full_attention")
    if kinds != [names[index % period == 0] for index in range(config.layers())]:
        raise UnsupportedModelError(f"{config.where}: layer_types has no regular pattern")
    return period


def classifier_parameters(config: Config) -> Parameters:
    """Return the keys of `modern-bert` with a head."""
    config.require("classifier_activation", ("gelu",), "gelu")
    config.require("classifier_bias", (False,), default=False)
    pooling = config.string("classifier_pooling", "cls")
    if pooling not in POOLINGS:
        raise config.error("classifier_pooling", f"{pooling!r} is neither cls nor mean")
    keys = classifier_keys(config) | {"classifier.pooling_type": POOLINGS[pooling]}
    return parameters(config) | keys


def check_norms(parameters: Parameters, names: Collection[str]) -> Parameters:
    """Return the keys unchanged; the norm before attention may be missing in the first layer only.

    Raises:
        ModelFileError: if it is missing in another.
    """
    normed = {name for name in names if name.endswith(".attn_norm.weight")}
    count = parameters["block_count"]
    if isinstance(count, int) and len(normed) != count - 1:
        reason = f"{len(normed)} norms before attention in {count} layers; the first has none"
        raise ModelFileError("checkpoint", reason)
    return parameters


_MASKED = ("head.dense.weight", "head.norm.weight", "decoder.weight", "decoder.bias")
MODERN_BERT = Family(
    architecture="modern-bert",
    checkpoints=("ModernBertModel", "ModernBertForMaskedLM"),
    names=NAMES,
    parameters=parameters,
    prefixes=(("model.", ""),),
    ignored=frozenset(_MASKED),  # they predict masked tokens
    optional=frozenset({"blk.{}.attn_norm"}),  # the first layer has none
    defaults=_DEFAULTS,
    adapt=check_norms,
    tied=True,  # encoders have no output projection
)
MODERN_BERT_CLASSIFIER = replace(
    MODERN_BERT,
    checkpoints=("ModernBertForSequenceClassification",),
    names={
        **NAMES,
        "head.dense": "cls",
        "head.norm": "cls.norm",
        "classifier": "cls.output",
    },
    parameters=classifier_parameters,
    ignored=frozenset(),
)
