"""What sentence-transformers puts behind a model: the pooling, and dense layers after it.

modules.json lists the steps. Dense layers without an activation become `dense_2` and `dense_3`, the
names of llama.cpp; they follow the pooling, or the model itself where each token has a vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tampu.convert.checkpoint import SINGLE_FILE, Checkpoint, StoredTensor, read_safetensors
from tampu.convert.config import Config
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.tokenizer.prompts import EmbeddingPrompts

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
_POOLING_FILE = "1_Pooling/config.json"
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
# The keys of a pooling module's settings, and GGUF's numbers for them.
_KINDS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
_NAMED = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
_NAMED |= {"lasttoken": "pooling_mode_lasttoken"}  # in the value of `pooling_mode`
_NONE, _MEAN = 0, 1
_DENSE = ("dense_2", "dense_3")


@dataclass(frozen=True, slots=True)
class Modules:
    """The steps after a model.

    Attributes:
        pooling: the name of the pooling's file of settings.
        dense: the folders of the dense layers.
        is_pooled: whether a pooling follows the model, as it does without a modules.json.
    """

    pooling: str = _POOLING_FILE
    dense: tuple[str, ...] = ()
    is_pooled: bool = True


def read_modules(checkpoint: Checkpoint) -> Modules:
    """Return the steps in modules.json; refuse those that are not computed.

    Raises:
        UnsupportedModelError: naming a module of another kind, or one too many.
        ModelFileError: for a module without a folder.
    """
    entries = checkpoint.entries(MODULES_FILE)
    modules = Modules(is_pooled=not entries)
    for module in entries:
        kind, folder = str(module.get("type")).rpartition(".")[2], str(module.get("path"))
        if kind not in _MODULES:
            raise UnsupportedModelError(
                f"{MODULES_FILE}: {kind} is not supported, only {', '.join(_MODULES)}"
            )
        if kind == "Dense" and (Path(folder).name != folder or not folder):
            raise ModelFileError(MODULES_FILE, f"{folder!r} is not the name of a folder")
        if kind == "Pooling":
            name = Path(folder).name
            pooling = f"{folder}/config.json" if name and name == folder else modules.pooling
            modules = replace(modules, pooling=pooling, is_pooled=True)
        if kind == "Dense":
            modules = replace(modules, dense=(*modules.dense, folder))
    if len(modules.dense) > len(_DENSE):
        raise UnsupportedModelError(
            f"{MODULES_FILE}: {len(modules.dense)} dense layers, {len(_DENSE)} are supported"
        )
    return modules


def dense_files(modules: Modules) -> list[str]:
    """Return the names of the dense layers' files of settings."""
    return [f"{folder}/config.json" for folder in modules.dense]


def dense_tensors(checkpoint: Checkpoint, modules: Modules) -> list[StoredTensor]:
    """Return the dense layers' tensors under their GGUF names.

    Raises:
        UnsupportedModelError: for one with an activation.
        ModelFileError: if a file is missing or damaged.
    """
    found: list[StoredTensor] = []
    for folder, name in zip(modules.dense, _DENSE, strict=False):
        settings = Config(checkpoint.json(f"{folder}/config.json") or {}, f"{folder}/config.json")
        identity = "torch.nn.modules.linear.Identity"
        # Without the key it is sentence-transformers' default, the hyperbolic tangent.
        settings.require("activation_function", (identity,), "torch.nn.modules.activation.Tanh")
        path = checkpoint.folder / folder / SINGLE_FILE
        if not path.exists():
            raise ModelFileError(f"{folder}/{SINGLE_FILE}", "is missing; pickles are not read")
        for tensor in read_safetensors(path):
            leaf = tensor.name.removeprefix("linear.")
            if leaf not in ("weight", "bias") or leaf == tensor.name:
                raise ModelFileError(f"{folder}/{SINGLE_FILE}", f"{tensor.name} is not known")
            found.append(replace(tensor, name=f"{name}.{leaf}"))
    return found


def encoder_keys(
    checkpoint: Checkpoint,
    modules: Modules,
    architecture: str,
    parameters: Mapping[str, object],
    dense: Iterable[StoredTensor],
) -> dict[str, object]:
    """Return the keys of segments, of the pooling and of dense layers."""
    is_encoder = parameters.get("attention.causal") is False
    keys: dict[str, object] = {}
    kinds = Config(checkpoint.config).get("type_vocab_size", 2 if architecture == "bert" else 0)
    if is_encoder and type(kinds) is int and kinds > 0:
        keys["tokenizer.ggml.token_type_count"] = kinds  # llama.cpp needs it
    if "pooling_type" not in parameters:
        pooling = _pooling(checkpoint, modules)
        if pooling is None and is_encoder:
            pooling = _MEAN
        keys |= {} if pooling is None else {f"{architecture}.pooling_type": pooling}
    for tensor in dense:
        if tensor.name.endswith(".weight") and len(tensor.shape) == 2:
            layer = tensor.name.removesuffix(".weight")
            keys[f"{architecture}.{layer}_feat_in"] = tensor.shape[1]
            keys[f"{architecture}.{layer}_feat_out"] = tensor.shape[0]
            keys[f"{architecture}.embedding_length_out"] = tensor.shape[0]
    return keys


def prompts(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the keys of the prompts in config_sentence_transformers.json; empty ones are left out.

    Raises:
        ModelFileError: for a prompt that is not a text, or an unknown default.
    """
    settings = checkpoint.json(PROMPTS_FILE) or {}
    listed, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(listed, dict) or not all(isinstance(text, str) for text in listed.values()):
        raise ModelFileError(PROMPTS_FILE, "prompts is not an object of texts")
    if default is not None and default not in listed:
        raise ModelFileError(PROMPTS_FILE, f"default_prompt_name: {default!r} is not in prompts")
    has_default = default is not None and bool(listed[default])
    given = EmbeddingPrompts(
        listed if any(listed.values()) else {}, str(default) if has_default else ""
    )
    return given.keys()


def _pooling(checkpoint: Checkpoint, modules: Modules) -> int | None:
    """Return GGUF's number of the pooling; None if there are no settings."""
    if not modules.is_pooled:
        return _NONE
    name = modules.pooling
    settings = checkpoint.json(name)
    if settings is None:
        return None
    asked = {key for key, value in settings.items() if key.startswith("pooling_mode_") and value}
    if "pooling_mode" in settings:
        stated = str(settings["pooling_mode"])
        asked.add(_NAMED.get(stated, stated))
    if len(asked) != 1 or not asked <= _KINDS.keys():
        found = ", ".join(sorted(asked)) or "no pooling"
        raise UnsupportedModelError(
            f"{name}: {found} is not supported, only one of {', '.join((*_NAMED, *_KINDS))}"
        )
    return _KINDS[asked.pop()]
