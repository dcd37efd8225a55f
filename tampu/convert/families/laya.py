"""Laya and Julia: ModernBERT with a head that answers questions, `modern-bert` in GGUF.

Their checkpoints have the encoder's config.json and the tokenizer in folders of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tampu.convert.checkpoint import DECISION_MODEL, Checkpoint, StoredTensor
from tampu.convert.config import Config
from tampu.convert.families import modern_bert
from tampu.convert.family import Family, Parameters
from tampu.errors import ModelFileError, UnsupportedModelError

_TYPES = ("choice", "score", "noul")
_HEAD = re.compile(r"head\.layers\.(\d+)\.(.*)")
_ENCODER = re.compile(r"encoder\.layers\.(\d+)\.")
_JULIA = "JuliaDecisionModel"
_HEAD_FEATURES = 64  # of each of the head's attention heads
_SCORER = {"0": "norm", "1": "dense", "3": "output"}  # 2 is GELU
_BLOCK = "head.{}"
_NAMES = {
    **modern_bert.NAMES,
    f"{_BLOCK}.self_attn.in_proj": "blk.{}.attn_qkv",
    f"{_BLOCK}.self_attn.out_proj": "blk.{}.attn_output",
    f"{_BLOCK}.norm1": "blk.{}.attn_norm",
    f"{_BLOCK}.norm2": "blk.{}.ffn_norm",
    f"{_BLOCK}.linear1": "blk.{}.ffn_up",
    f"{_BLOCK}.linear2": "blk.{}.ffn_down",
    "type_emb": "token_types",
    "scorer.norm": "cls.norm",
    "scorer.dense": "cls",
    "scorer.output": "cls.output",
}
_LAYERS = frozenset(name for name in _NAMES.values() if name.startswith("blk."))
# How the question, an option and the state are written in the training; the first is of Julia.
_DESCRIBED = "{% if o.description %}{{ o.description }}{% else %}{{ o.key }}{% endif %}"
_NAMED = (
    "{% if type == 'choice' %}{{ o.key }}{% if o.description %}: {{ o.description }}{% endif %}"
    "{% elif type == 'score' %}level {{ o.key }}: {{ o.description }}"
    "{% elif o.description %}{{ o.key }}: {{ o.description }}"
    "{% elif o.key == 'true' %}true: yes, the statement holds"
    "{% else %}false: no, the statement does not hold{% endif %}"
)


def parameters(config: Config) -> Parameters:
    """Return the keys of `modern-bert` with those of the head."""
    keys = modern_bert.parameters(config)
    decision = config.section("decision")
    decision.require("architecture", ("", _JULIA), "")
    encoder, head = config.layers(), decision.integer("head_layers")
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if max(width // _HEAD_FEATURES, 1) != heads:
        what = f"the head has {width // _HEAD_FEATURES} attention heads, and the encoder {heads}"
        raise UnsupportedModelError(f"{config.where}: {what}: GGUF files have one number")
    keys |= {
        "block_count": encoder + head,
        "feed_forward_length": [config.integer("intermediate_size")] * encoder + [4 * width] * head,
        "decision.type": "laya",
        "decision.block_count": head,
        "decision.max_head_tokens": decision.integer("head_max_len", 256),
    }
    stated = decision.numbers("temperature") if "temperature" in decision else []
    named = zip(_TYPES, stated, strict=False)
    keys |= {f"decision.temperature.{name}": value for name, value in named}
    sized = (
        decision.section("temperature_by_options") if "temperature_by_options" in decision else None
    )
    for name in sized.values if sized else ():
        kind, _, size = name.partition(":")  # "choice:3-5", "score:11+"
        key = f"decision.temperature.{kind}.{size.replace('-', '_').rstrip('+')}"
        keys[key] = sized.number(name) if sized else 1.0
    return keys


def gather(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Yield the tensors that answers need, the head's layers numbered after the encoder's."""
    held = [*tensors]
    found = (_ENCODER.match(tensor.name) for tensor in held)
    layers = 1 + max((int(match[1]) for match in found if match), default=-1)
    for tensor in held:
        if tensor.name.startswith("act_head.") or tensor.name == "temperature":
            continue  # whether to ask a person, and a copy of what the configuration says
        name = tensor.name.removeprefix("encoder.").replace("in_proj_", "in_proj.")
        if head := _HEAD.fullmatch(name):
            name = f"head.{layers + int(head[1])}.{head[2]}"
        if part := re.fullmatch(r"scorer\.(\d)\.(.*)", name):
            name = f"scorer.{_SCORER.get(part[1], part[1])}.{part[2]}"
        yield replace(tensor, name=name)


def systemone_template(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the keys of the template of questions.

    Raises:
        ModelFileError: if the tokenizer's settings do not name the tokens in it.
    """
    settings = checkpoint.json("tokenizer_config.json") or {}
    begin, end, mask = (
        found.get("content") if isinstance(found := settings.get(f"{name}_token"), dict) else found
        for name in ("cls", "sep", "mask")
    )
    if not all(isinstance(token, str) for token in (begin, end, mask)):
        raise ModelFileError("tokenizer_config.json", "names no cls_token, sep_token or mask_token")
    is_julia = checkpoint.config["decision"].get("architecture") == _JULIA
    option = _DESCRIBED if is_julia else _NAMED
    text = (
        f"{begin}{{{{ type }}}} question: {{{{ instructions }}}}{end}"
        f"{{% for o in options %}}{mask} {option}{{% endfor %}}{end}{{{{ state }}}}{end}"
    )
    return {
        "tokenizer.chat_template.systemone": text,
        "tokenizer.chat_templates": ["systemone"],
        "tokenizer.ggml.token_type_count": len(_TYPES),
    }


LAYA = Family(
    architecture="modern-bert",
    checkpoints=(DECISION_MODEL,),
    names=_NAMES,
    parameters=parameters,
    optional=_LAYERS,  # the encoder's have other tensors than the head's
    defaults=modern_bert.MODERN_BERT.defaults,
    gather=gather,
    checkpoint_keys=systemone_template,
    tied=True,  # encoders have no output projection
)
