"""Keys that Ollama's published files lack or state in another way than llama.cpp's."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import numpy as np

from tampu.errors import ModelFileError
from tampu.gguf_compat.layout import Keys
from tampu.gguf_compat.mtp_layers import count_mtp_layers
from tampu.ml.gguf_file import GGUFFile
from tampu.ml.metadata import Metadata, StringArray, Value

_MODEL = "tokenizer.ggml.model"
_PRE = "tokenizer.ggml.pre"
_TOKENS = "tokenizer.ggml.tokens"
_ENDS = "tokenizer.ggml.eos_token_ids"
_CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_BY_TOKEN = (_TOKENS, "tokenizer.ggml.scores", "tokenizer.ggml.token_type")
_LONG_CONTEXT = 131_072  # of those Gemma 3 whose positions are scaled
_TURN_END, _TEXT_END = 128_009, 128_001  # of Llama 3


def _shape(file: GGUFFile, name: str) -> tuple[int, ...]:
    """Return a tensor's shape; empty if it is not there."""
    return file.tensors[name].shape if name in file.tensors else ()


def _sections(metadata: Metadata) -> Keys:
    """Return the sections of the rope with a fourth, of no pairs."""
    key = "rope.dimension_sections"
    if not metadata.has(key):
        return {}
    sections = metadata.integers(key).tolist()
    return {key: np.array([*sections, 0][:4], np.int32)} if len(sections) == 3 else {}


def _largest(metadata: Metadata, key: str) -> Keys:
    """Return one number for an array that has 0 for layers without such heads."""
    if isinstance(metadata.get(metadata.full_key(key)), int) or not metadata.has(key):
        return {}
    return {key: max(metadata.integers(key).tolist(), default=0)}


def _stated(metadata: Metadata, key: str) -> str:
    """Return a text; empty for the default."""
    text = metadata.string(key, "")
    return "" if text == "default" else text


def _first_tokens(metadata: Metadata, count: int) -> Keys:
    """Return the vocabulary without the tokens that have no embedding."""
    found: dict[str, Value | None] = {}
    for key in _BY_TOKEN:
        if not metadata.has(key):
            continue
        values = metadata[key]
        if isinstance(values, Sequence | np.ndarray) and 0 < count < len(values):
            texts = isinstance(values, StringArray)
            found[key] = StringArray.of(values[:count]) if texts else values[:count]
    return found


def of_gemma3(file: GGUFFile) -> Keys:
    """Return the keys of Gemma 3; published files lack those with the usual values."""
    metadata = file.metadata
    found = dict(_first_tokens(metadata, (*_shape(file, "token_embd.weight"), 0)[0]))
    if metadata.has("attention.layer_norm_rms_epsilon"):
        return found
    found["attention.layer_norm_rms_epsilon"] = 1e-6
    if metadata.integer("context_length", 0) >= _LONG_CONTEXT and not metadata.has(
        "rope.scaling.type"
    ):
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    return found


def of_embeddinggemma(file: GGUFFile) -> Keys:
    """Return the keys of EmbeddingGemma."""
    found: dict[str, Value | None] = {
        "attention.causal": None,
        "attention.sliding_window_pattern": None,
    }
    for layer in (2, 3):
        shape = _shape(file, f"dense_{layer}.weight")
        if len(shape) == 2:
            found |= {f"dense_{layer}_feat_out": shape[0], f"dense_{layer}_feat_in": shape[1]}
    return found


def charsmap(file: GGUFFile) -> StringArray | None:
    """Return the normalization of a Unigram tokenizer where it is a list of characters."""
    found = file.metadata.get(_CHARSMAP)
    is_unigram = file.metadata.get(_MODEL) == "t5"
    return found if is_unigram and isinstance(found, StringArray) else None


def of_snowflake(file: GGUFFile) -> Keys:
    """Return the bytes that a list of characters is the base64 of."""
    text = "".join(charsmap(file) or ())
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ModelFileError(f"key '{_CHARSMAP}'", f"is not base64: {error}") from error
    return {_CHARSMAP: np.frombuffer(data, np.uint8)}


def of_gemma3n(file: GGUFFile) -> Keys:
    """Return the keys of Gemma 3n for the vocabulary that the layers' embeddings have."""
    metadata = file.metadata
    count = _shape(file, "per_layer_token_embd.weight")[0]
    found = dict(_first_tokens(metadata, count)) | {_MODEL: "llama"}
    types = found.get("tokenizer.ggml.token_type")
    if isinstance(types, np.ndarray):
        texts = list(metadata.strings(_TOKENS))[:count]
        kinds = [
            6 if len(text) == 6 and text.startswith("<0x") else 1 if text.startswith("<unused")
            else int(kind)
            for text, kind in zip(texts, types.tolist(), strict=False)
        ]  # fmt: skip
        found["tokenizer.ggml.token_type"] = np.array(kinds, np.int32)
    ends = metadata.integers(_ENDS, [1]).tolist()
    found[_ENDS] = np.array(ends if 106 in ends else [*ends, 106], np.int32)
    return found


def of_gemma4(file: GGUFFile) -> Keys:
    """Return the tokenizer's name: pairs of characters are merged, whatever files say."""
    metadata = file.metadata
    merges = metadata.has("tokenizer.ggml.merges")
    return {_MODEL: "gemma4"} if merges and metadata.get(_MODEL) == "llama" else {}


def of_gptoss(file: GGUFFile) -> Keys:
    """Return the keys of gpt-oss."""
    shape = _shape(file, "blk.0.ffn_gate_exps.weight")
    width = {"expert_feed_forward_length": shape[1]} if len(shape) == 3 else {}
    has_width = file.metadata.has("expert_feed_forward_length")
    return {_PRE: "gpt-4o", **({} if has_width else width)}


def of_lfm2(file: GGUFFile) -> Keys:
    """Return the keys of LFM2; the width that files state may be that of before rounding."""
    shape = _shape(file, "blk.0.ffn_gate.weight")
    return {_PRE: "lfm2", **({"feed_forward_length": shape[0]} if shape else {})}


def of_mistral3(file: GGUFFile) -> Keys:
    """Return the keys of Mistral Small 3 and Ministral 3."""
    metadata, found = file.metadata, {}
    old, new = "rope.scaling.mscale_all_dim", "rope.scaling.yarn_log_multiplier"
    if metadata.has(old) and not metadata.has(new) and not metadata.has("rope.scaling.attn_factor"):
        found[new] = metadata[metadata.full_key(old)]
    if not _stated(metadata, _PRE) and metadata.get(_MODEL) == "gpt2":
        found[_PRE] = "tekken"
    return found


def of_qwen35(file: GGUFFile) -> Keys:
    """Return the keys of Qwen 3.5: heads as one number, MTP layers among the layers."""
    metadata = file.metadata
    heads = _largest(metadata, "attention.head_count_kv")
    return {**heads, **_sections(metadata), **count_mtp_layers(file)}


def of_qwen3next(file: GGUFFile) -> Keys:
    """Return the keys of Qwen3-Next."""
    return _largest(file.metadata, "attention.head_count_kv")


def of_four_sections(file: GGUFFile) -> Keys:
    """Return the sections of the rope where files state three."""
    return _sections(file.metadata)


def of_qwen3vl(file: GGUFFile) -> Keys:
    """Return the keys of Qwen3-VL; published files lack the sections, which are the same in all."""
    metadata = file.metadata
    found: dict[str, Value | None] = dict(_sections(metadata))
    if not metadata.has("rope.dimension_sections"):
        found["rope.dimension_sections"] = np.array([24, 20, 20, 0], np.int32)
    stack = metadata.integers("vision.deepstack_visual_indexes", [])
    if not metadata.has("n_deepstack_layers"):
        found["n_deepstack_layers"] = len(stack)
    for old, new in {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}.items():
        if metadata.has(f"vision.{old}") and not metadata.has(f"vision.{new}"):
            found[f"vision.{new}"] = metadata.integer(f"vision.{old}")
    return found


def of_deepseekocr(file: GGUFFile) -> Keys:
    """Return the widths of the experts, which published files leave to the tensors."""
    metadata = file.metadata
    experts = _shape(file, "blk.1.ffn_down_exps.weight")
    shared = _shape(file, "blk.1.ffn_down_shexp.weight")
    key = "expert_feed_forward_length"
    width = metadata.integer(key, experts[-1] if experts else 0)
    found: dict[str, Value | None] = {key: width} if width else {}
    if shared and width and not metadata.has("expert_shared_count"):
        found["expert_shared_count"] = shared[-1] // width
    return found


def of_glmocr(file: GGUFFile) -> Keys:
    """Return the keys of GLM-OCR."""
    return {_PRE: "chatglm-bpe", **_sections(file.metadata)}


def of_glm4moelite(file: GGUFFile) -> Keys:
    """Return the keys of GLM-4.7-Flash: those of latent attention, as llama.cpp counts them."""
    metadata = file.metadata
    found: dict[str, Value | None] = {_PRE: "glm4", "attention.head_count_kv": 1}
    rank = metadata.integer("attention.kv_lora_rank", 0)
    if rank:
        found["attention.key_length"] = rank + metadata.integer("rope.dimension_count", 0)
        found["attention.value_length"] = rank
    if metadata.has("attention.key_length"):
        features = metadata.integer("attention.key_length")
        found |= {"attention.key_length_mla": features, "attention.value_length_mla": features}
    ends = metadata.integers(_ENDS, []).tolist()
    for name, token in zip(("eot", "eom"), ends[1:], strict=False):
        key = f"tokenizer.ggml.{name}_token_id"
        if not metadata.has(key):
            found[key] = token
    return found


def nemotron_text(file: GGUFFile) -> str:
    """Return the architecture of the text model in a file of text, images and sound."""
    has_experts = any(
        file.metadata.integer(key, 0) for key in ("expert_count", "expert_used_count")
    )
    return "nemotron_h_moe" if has_experts else "nemotron_h"


def of_nemotron(file: GGUFFile) -> Keys:
    """Return the width of the experts' inputs where they are narrower than the model."""
    shapes = (
        info.shape for info in file.tensors.values() if ".ffn_latent_down.weight" in info.name
    )
    shape = next(shapes, ())
    has_size = not shape or file.metadata.has("moe_latent_size")
    return {} if has_size else {"moe_latent_size": shape[0]}


def lacks_turn_end(file: GGUFFile) -> bool:
    """Return whether a file of Llama 3 leaves out how turns end, or how words are split."""
    metadata = file.metadata
    tokens = metadata.get(_TOKENS)
    if not isinstance(tokens, StringArray) or len(tokens) <= _TURN_END:
        return False
    if tokens[_TURN_END] != "<|eot_id|>":
        return False
    template = metadata.string("tokenizer.chat_template", "")
    markers = ("<|start_header_id|>", "<|eot_id|>")
    is_chat = tokens[_TURN_END - 3] == markers[0] or any(mark in template for mark in markers)
    ends_text = metadata.integer("tokenizer.ggml.eos_token_id", -1) == _TEXT_END
    return is_chat and (not _stated(metadata, _PRE) or ends_text)


def of_llama3(file: GGUFFile) -> Keys:
    """Return the keys of Llama 3's tokenizer, for files that lack them."""
    metadata = file.metadata
    if not lacks_turn_end(file):
        return {}
    found: dict[str, Value | None] = {_ENDS: np.array([_TURN_END], np.int32)}
    if not _stated(metadata, _PRE):
        found[_PRE] = "llama-bpe"
    for name in ("eos", "eot"):
        key = f"tokenizer.ggml.{name}_token_id"
        if metadata.integer(key, _TEXT_END) == _TEXT_END:
            found[key] = _TURN_END
    return found


def of_projector(file: GGUFFile) -> Keys:
    """Return the kind of a projector that does not state its own: LLaVA's."""
    metadata = file.metadata
    is_stated = metadata.has("projector_type") or metadata.has("vision.projector_type")
    is_of_images = metadata.boolean("has_vision_encoder", default=False)
    return {"projector_type": "mlp"} if is_of_images and not is_stated else {}
