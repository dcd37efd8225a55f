"""Nomic BERT and Jina Embeddings v3: `nomic-bert`, `nomic-bert-moe` and `jina-bert-v3`.

Nomic's config.json has the names of GPT-2, or those of transformers, which come first. Jina's
original checkpoint is a model of XLM-RoBERTa's class with an adapter for each task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tampu.convert.checkpoint import Stored, StoredTensor, to_float32
from tampu.convert.config import Config, read_rope
from tampu.convert.families.bert import encoder_parameters, gather
from tampu.convert.family import Family, Parameters
from tampu.convert.keys.experts import moe_parameters
from tampu.convert.lazy_tensor import View, transposed
from tampu.errors import UnsupportedModelError
from tampu.models.nomic_bert import EXPERT_BIASES

log = logging.getLogger("tampu")

_LAYER = "encoder.layers.{}"
_COMMON = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "emb_ln": "token_embd_norm",
    f"{_LAYER}.norm1": "blk.{}.attn_output_norm",
    f"{_LAYER}.norm2": "blk.{}.layer_output_norm",
}
NAMES = _COMMON | {
    f"{_LAYER}.attn.Wqkv": "blk.{}.attn_qkv",
    f"{_LAYER}.attn.out_proj": "blk.{}.attn_output",
    f"{_LAYER}.mlp.fc11": "blk.{}.ffn_up",
    f"{_LAYER}.mlp.fc12": "blk.{}.ffn_gate",
    f"{_LAYER}.mlp.fc2": "blk.{}.ffn_down",
}
_EXPERTS = {
    f"{_LAYER}.mlp.fc1": "blk.{}.ffn_up",
    f"{_LAYER}.mlp.router.layer": "blk.{}.ffn_gate_inp",
}
# The names of transformers, and those that Nomic's first files have.
_OLDER = {
    "hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head", "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}  # fmt: skip
_GATED, _PLAIN = ("swiglu", "silu"), ("gelu",)
_TRAINED = 2048  # the longest texts of Nomic's training; of the model with experts:
_TRAINED_EXPERTS = 512


def _read(config: Config) -> Config:
    """Return config.json with the names of transformers."""
    for key, value in (
        ("causal", False), ("prenorm", False), ("rotary_emb_fraction", 1.0),
        ("rotary_emb_interleaved", False), ("rotary_emb_scale_base", None),
        ("rotary_scaling_factor", None), ("use_rms_norm", False), ("parallel_block", False),
        ("scale_attn_by_inverse_layer_idx", False), ("scale_attn_weights", True),
    ):  # fmt: skip
        config.require(key, (value, None), value)
    values = dict(config.values)
    for new, old in _OLDER.items():
        if config.get(old) is not None:
            values.setdefault(new, values[old])
    limit = _TRAINED_EXPERTS if config.get("moe_every_n_layers") else _TRAINED
    longest = config.get("n_positions"), config.get("max_trained_positions"), limit
    values.setdefault("max_position_embeddings", min(n for n in longest if type(n) is int))
    return config.changed(values)


def _rotary(config: Config, usual: float) -> Parameters:
    rope = read_rope(config, base=usual)
    if rope.kind != "none":
        raise UnsupportedModelError(
            f"{rope.settings.where}: rope type {rope.kind!r} is not supported"
        )
    return {"rope.freq_base": rope.base}


def parameters(config: Config) -> Parameters:
    """Return the keys of `nomic-bert`."""
    config = _read(config)
    for key in ("activation_function", "hidden_act"):
        config.require(key, (*_GATED, None), None)
    head = config.integer("hidden_size") // config.integer("num_attention_heads")
    config.require("head_dim", (head,), head)
    return encoder_parameters(config) | _rotary(config, 1000.0)


def expert_parameters(config: Config) -> Parameters:
    """Return the keys of `nomic-bert-moe`."""
    config = _read(config)
    config.require("activation_function", _PLAIN, "gelu")
    config.require("hidden_act", (*_PLAIN, None), None)
    for key in ("expert_choice_router", "moe_normalize_expert_weights", "num_shared_experts"):
        config.require(key, (False, None, 0), default=False)
    values = {"num_experts_per_tok": config.integer("moe_top_k")}
    experts = moe_parameters(config.with_defaults(values), width="intermediate_size")
    del experts["expert_feed_forward_length"]  # that of the other layers
    return (
        encoder_parameters(config)
        | _rotary(config, 10_000.0)
        | experts
        | {"moe_every_n_layers": config.integer("moe_every_n_layers")}
    )


def with_experts(config: Config) -> Family | None:
    """Return the family with experts, if config.json has any."""
    return NOMIC_BERT_MOE if config.get("moe_every_n_layers") else None


def expert_biases(tensors: Mapping[str, StoredTensor]) -> Parameters:
    """Return what is added to the sums of experts, all layers in a row; none where it is zero."""
    found = {
        int(name.split(".")[2]): to_float32(tensor.read())
        for name, tensor in tensors.items()
        if name.endswith(".mlp.experts.bias")
    }
    biases = [value for layer in sorted(found) for value in found[layer].tolist()]
    return {EXPERT_BIASES: biases} if any(biases) else {}


def expert_views(parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    """Return the views of experts, which are stored one after the other.

    The last projections are stored with their inputs first.
    """
    count = parameters["expert_count"]

    def apart(values: Stored) -> Stored:
        return values.reshape(count, -1, values.shape[-1]) if isinstance(count, int) else values

    first, last = f"{_LAYER}.mlp.experts.mlp.w1", f"{_LAYER}.mlp.experts.mlp.w2"
    return {
        first: {"blk.{}.ffn_up_exps.weight": apart},
        last: {"blk.{}.ffn_down_exps.weight": transposed(apart)},
    }


NOMIC_BERT = Family(
    architecture="nomic-bert",
    checkpoints=("NomicBertModel", "NomicBertForMaskedLM", "NomicBertForPreTraining"),
    names=NAMES,
    parameters=parameters,
    prefixes=(("nomic_bert.", ""), ("bert.", "")),
    ignored=frozenset({"pooler.dense.weight", "pooler.dense.bias"}),
    gather=gather,
    variant=with_experts,
    tied=True,  # encoders have no output projection
)
NOMIC_BERT_MOE = replace(
    NOMIC_BERT,
    architecture="nomic-bert-moe",
    checkpoints=(),
    names={name: new for name, new in NAMES.items() if "mlp.fc1" not in name} | _EXPERTS,
    parameters=expert_parameters,
    ignored=NOMIC_BERT.ignored | {f"{_LAYER}.mlp.experts.bias"},  # in a key
    fused=expert_views,
    tensor_keys=expert_biases,
    optional=frozenset(  # each in some layers
        f"blk.{{}}.{name}"
        for name in (
            "ffn_up", "ffn_down", "ffn_gate_inp", "ffn_up_exps.weight", "ffn_down_exps.weight"
        )
    ),
    variant=lambda _: None,
)  # fmt: skip


def jina_parameters(config: Config) -> Parameters:
    """Return the keys of `jina-bert-v3`, of a checkpoint as transformers saves it."""
    config.require("hidden_act", ("gelu",), "gelu")
    return encoder_parameters(config) | _rotary(config, 20_000.0)


JINA_BERT_V3 = replace(
    NOMIC_BERT,
    architecture="jina-bert-v3",
    checkpoints=("JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM"),
    names=_COMMON
    | {
        f"{_LAYER}.mixer.Wqkv": "blk.{}.attn_qkv",
        f"{_LAYER}.mixer.out_proj": "blk.{}.attn_output",
        f"{_LAYER}.mlp.fc1": "blk.{}.ffn_up",
        f"{_LAYER}.mlp.fc2": "blk.{}.ffn_down",
    },
    parameters=jina_parameters,
    prefixes=(("roberta.", ""),),
    variant=lambda _: None,
)


_TASKS = (".0.lora_A", ".0.lora_B")


def task_parameters(config: Config) -> Parameters:
    """Return the keys of `jina-bert-v3`, of a checkpoint with an adapter for each task.

    Without a task the reference computes the model alone, and so does the file.
    """
    config.require("position_embedding_type", ("rotary",), "rotary")
    for key in ("lora_rank", "lora_alpha", "lora_dropout_p", "lora_main_params_trainable",
                "load_trained_adapters", "matryoshka_dimensions", "emb_pooler", "use_reentrant",
                "truncate_dim"):  # fmt: skip
        config.get(key)  # of the adapters, the training and what callers do with embeddings
    prompts = config.get("task_instructions")
    tasks = config.strings("lora_adaptations")
    log.warning(
        "the adapters for %s are left out: embeddings are those of the model without a task%s",
        ", ".join(tasks),
        "" if prompts is None else f"; texts that belong before others: {prompts}",
    )
    base = config.number("rotary_emb_base", 10_000.0)
    return jina_parameters(config.changed({**config.values, "rope_theta": base}))


def without_tasks(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Yield the tensors of the model alone, without the names of torch's parametrizations."""
    own = (tensor for tensor in tensors if not tensor.name.endswith(_TASKS))
    for tensor in gather(own):
        name = tensor.name.replace(".parametrizations.", ".").removesuffix(".original")
        yield replace(tensor, name=name)


JINA_BERT_V3_TASKS = replace(
    JINA_BERT_V3, checkpoints=("XLMRobertaLoRA",), parameters=task_parameters, gather=without_tasks
)
