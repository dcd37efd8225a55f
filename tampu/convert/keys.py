"""The keys of a checkpoint's files: each is used, irrelevant for a reason, or an error.

Of config.json, `Config` records what a family reads: that is used, and stands in the family's file
only. The tables here are for the rest. A key that is neither read nor listed may change the model's
numbers, so it stops a conversion. A key of null counts as absent, as in transformers; false, zero
and empty values do not, because the default of an unknown key is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from tampu.convert.checkpoint import Checkpoint
from tampu.convert.config import Config
from tampu.errors import UnsupportedModelError

log = logging.getLogger("tampu")

_SHOWN = 5
_TRAINING = "it concerns training only"
_LIBRARY = "it concerns transformers' own Python code"
_OUTPUT = "it selects what transformers returns"
_NAMES = "it describes where the files come from"
_TENSORS = "the tensors show it: biases and other optional weights are read where they exist"
_TOKENS = "it is read with the tokenizer"
_MARKS = "the tokenizer contains the token, and the vision model finds it by its text"
_REQUEST = "requests set it"
_GENERATED = "it is computed from other keys"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one file, or of one kind of object, which no code reads through `Config`.

    Attributes:
        irrelevant: name, or pattern with `*` -> why its value does not change the numbers.
        neutral: name -> the values, or entries of a list, with which it changes nothing; others
            are refused by name.
        used: names that are read elsewhere.
    """

    irrelevant: Mapping[str, str] = field(default_factory=dict)
    neutral: Mapping[str, Sequence[object]] = field(default_factory=dict)
    used: frozenset[str] = frozenset()

    def reason(self, key: str) -> str | None:
        """Return why a key is irrelevant; None if it is not listed."""
        if key in self.irrelevant:
            return self.irrelevant[key]
        return next(
            (
                why
                for name, why in self.irrelevant.items()
                if "*" in name and fnmatchcase(key, name)
            ),
            None,
        )

    def refused(self, key: str, value: object) -> str | None:
        """Return what is wrong with a key that no family reads; None if nothing is."""
        if value is None or key in self.used or self.reason(key) is not None:
            return None
        if key not in self.neutral:
            return "is not known"
        known = self.neutral[key]
        entries = value if isinstance(value, list) and value else [value]
        if value in known or all(entry in known for entry in entries):
            return None
        return f"is {_short(value)}; only {' or '.join(map(repr, known)) or 'null'} is supported"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


CONFIG = Keys(
    irrelevant={
        **dict.fromkeys(
            ("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "license",
             "model_name", "model_version", "mistral_version", "unsloth_*", "base_model_name*",
             "finetuned_from", "language", "tags", "architectures", "model_type",
             "_diffusers_version", "gguf", "transformers.js_config", "eagle_config",
             "is_llama_config"),
            _NAMES,
        ),
        **dict.fromkeys(
            ("auto_map", "custom_pipelines", "torchscript", "use_bfloat16", "tf_legacy_loss",
             "return_dict", "use_return_dict", "use_cache", "_attn_implementation*",
             "attn_implementation", "*_attn_implementation", "_experts_implementation",
             "use_flash_attn", "use_cache_quantization", "use_cache_kernel", "softmax_in_fp32",
             "use_dynamic_ntk", "chunk_size_feed_forward", "pretraining_tp", "pruned_heads",
             "tokenizer_class", "processor_class", "is_composition",
             "keys_to_ignore_at_inference", "base_model_tp_plan", "base_model_pp_plan",
             "distributed_config", "gradient_checkpointing", "cache_implementation",
             "use_kernels", "mamba_ssm_dtype", "rope_type_validation"),
            _LIBRARY,
        ),
        **dict.fromkeys(
            ("torch_dtype", "dtype", "*_dtype"),
            "the tensors have types of their own",
        ),
        **dict.fromkeys(
            ("initializer_range", "initializer_factor", "*initializer_range", "*_dropout",
             "*_dropout_prob", "dropout", "*_dropout_rate", "dropout_rate", "*_drop_rate",
             "*_pdrop", "router_jitter_noise", "router_aux_loss_coef", "aux_loss_alpha",
             "*_loss_coef", "*_loss_weight", "initial_context_length", "layerdrop",
             "use_gradient_checkpointing", "label_smoothing", "ignore_index",
             "conv_use_xavier_init", "block_out_init_scale", "neftune_noise_alpha",
             "max_train_*", "loss_type"),
            _TRAINING,
        ),
        **dict.fromkeys(
            ("output_attentions", "output_hidden_states", "output_router_logits", "output_past",
             "output_scores", "problem_type", "finetuning_task", "task_specific_params",
             "label2id", "id2label", "num_labels", "_num_labels", "sentence_transformers",
             "classifier_activation", "sbert_ce_default_activation_function"),
            _OUTPUT,
        ),
        **dict.fromkeys(
            ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id",
             "cls_token_id", "mask_token_id", "decoder_start_token_id", "eos_token", "bos_token",
             "pad_token", "unk_token", "type_vocab_size"),
            _TOKENS,
        ),
        **dict.fromkeys(
            ("image_token_id", "image_token_index", "video_token_id", "audio_token_id",
             "boi_token_id", "boi_token_index", "eoi_token_id", "eoi_token_index", "boa_token_id",
             "eoa_token_id", "boa_token_index", "eoa_token_index", "audio_token_index",
             "vision_start_token_id", "vision_end_token_id", "vision_token_id",
             "image_seq_length"),
            _MARKS,
        ),
        **dict.fromkeys(
            ("attention_bias", "mlp_bias", "qkv_bias", "use_qkv_bias", "use_mlp_bias",
             "*_projector_bias", "mtp_num_hidden_layers", "num_nextn_predict_layers",
             "mtp_use_dedicated_embeddings", "vocab_size_per_layer_input", "audio_config",
             "vision_config", "use_clipped_linears", "standardize", "position_embedding_size",
             "mm_posemb_size"),
            _TENSORS,
        ),
        **dict.fromkeys(
            ("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
             "do_sample", "num_beams", "num_beam_groups", "num_return_sequences", "max_length",
             "min_length", "diversity_penalty", "early_stopping", "no_repeat_ngram_size",
             "encoder_no_repeat_ngram_size", "bad_words_ids", "remove_invalid_values",
             "suppress_tokens", "begin_suppress_tokens", "exponential_decay_length_penalty",
             "forced_bos_token_id", "forced_eos_token_id", "prefix", "max_new_tokens"),
            _REQUEST,
        ),
        **dict.fromkeys(
            ("full_attn_idxs", "experts_per_token", "_sliding_window_pattern",
             "vision_output_dim", "projector_input_dim", "projector_output_dim", "projection_dim",
             "out_hidden_size", "output_proj_dims", "vocab_size", "supported_aspect_ratios",
             "block_dim", "num_heads", "conv_dim", "conv_dim_out", "block_use_swiglu",
             "block_use_xavier_init", "block_out_dim", "block_mlp_init_scale", "block_norm_eps",
             "max_position_embeddings", "default_num_tiles", "num_soft_tokens*",
             "spatial_patch_size", "layers_block_type"),
            _GENERATED,
        ),
        **dict.fromkeys(
            ("max_sequence_length", "max_seq_length", "model_max_length", "seq_length",
             "tokenizer_model_max_length"),
            "the context length is max_position_embeddings",
        ),
        **dict.fromkeys(
            ("directionality", "pooler_fc_size", "pooler_num_attention_heads",
             "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
            "it is of Google's first code for BERT; its pooler has no such parts",
        ),
        "tokens_per_second": "it concerns videos",
        "vision_soft_tokens_per_image": "image processor settings have it, too",
        "max_window_layers": "without use_sliding_window no layer has a window",
    },
    neutral={
        "is_encoder_decoder": (False,),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "cross_attention_hidden_size": (),
        "position_embedding_type": ("absolute", "rope"),
        "partial_rotary_factor": (1, 1.0),
        "use_bidirectional_attention": (False,),
        "is_causal": (True,),
        "attn_logit_softcapping": (),
        "final_logit_softcapping": (),
        "layer_types": ("full_attention",),
        "sliding_window": (),
        "sliding_window_pattern": (),
        "use_sliding_window": (False,),
        "use_mrope": (False,),
        "use_qk_norm": (),
        "qk_layernorm": (False,),
        "clip_qkv": (),
        "attn_output_gate": (True,),
        "output_gate_type": ("swish", "silu", "sigmoid"),
        "hidden_act": ("silu", "gelu_pytorch_tanh"),
        "hidden_activation": ("gelu_pytorch_tanh",),
        "rms_norm": (True,),
        "use_rms_norm": (True,),
        "use_pos_enc": (True,),
        "tie_encoder_decoder": (False,),
        "use_attn_qkv_bias": (True,),
        "shared_expert_intermediate_size": (0,),
        "n_shared_experts": (0,),
        "rope_interleaved": (False,),
        "in_channels": (3,),
        "in_chans": (3,),
        "num_channels": (3,),
        "temporal_patch_size": (2,),
        "vision_feature_select_strategy": ("default",),
        "vision_feature_layer": (),
        "vision_use_head": (False,),
        "add_bos_token": (True, False),
        "swiglu_alpha": (1.702,),
        "compression_config": (),
        "deepstack_visual_indexes": ([],),
        "for_llm_compressor": (False,),
    },
)  # fmt: skip

GENERATION = Keys(
    irrelevant={
        **{name: why for name, why in CONFIG.irrelevant.items() if why != _TENSORS},
        **dict.fromkeys(
            ("*_p", "*_k", "*_penalty", "max_*", "min_*", "num_*", "assistant_*",
             "guidance_scale", "use_cache", "cache_*", "stop_strings", "penalty_alpha",
             "watermarking_config", "compile_config", "disable_compile", "low_memory",
             "renormalize_logits", "sequence_bias", "token_healing", "trust_remote_code",
             "chat_format", "*_cutoff", "prompt_lookup_*", "is_assistant", "speculative_*",
             "target_lookbehind", "constraints", "force_words_ids", "is_*", "prefill_chunk_size",
             "generation_mode", "_from_model_config", "return_dict_in_generate", "output_logits",
             "transformers_version", "max_window_size", "dola_layers", "low_cpu_mem_usage",
             "continuous_batching_config", "*_token_id"),
            _REQUEST,
        ),
    },
    used=frozenset({"eos_token_id"}),
)  # fmt: skip

POOLING = Keys(
    irrelevant={
        "word_embedding_dimension": _GENERATED,
        "embedding_dimension": _GENERATED,
        "pooling_mode_*": "exactly one of them may be true, which is checked where it is read",
    },
    neutral={"include_prompt": (True,)},
    used=frozenset({"pooling_mode"}),
)


ADAPTER = Keys(
    irrelevant={
        **dict.fromkeys(
            ("base_model_name_or_path", "base_model_class", "parent_library", "revision",
             "peft_version", "task_type", "auto_mapping"),
            _NAMES,
        ),
        **dict.fromkeys(
            ("inference_mode", "lora_dropout", "init_lora_weights", "loftq_config", "eva_config",
             "corda_config", "lora_ga_config", "runtime_config", "megatron_*", "qalora_group_size",
             "unsloth_*", "ensure_weight_tying", "loraplus_*"),
            _TRAINING,
        ),
        **dict.fromkeys(
            ("r", "rank_pattern", "target_modules", "exclude_modules", "layers_to_transform",
             "layers_pattern"),
            "the tensors show it: each has its own rank",
        ),
    },
    neutral={
        "use_dora": (False,),
        "use_qalora": (False,),
        "use_bdlora": (False,),
        "lora_bias": (False,),
        "layer_replication": (),
        "target_parameters": ([],),
        "trainable_token_indices": ({}, []),
        "alora_invocation_tokens": ([],),
        "arrow_config": (),
    },
    used=frozenset(
        {"peft_type", "fan_in_fan_out", "bias", "modules_to_save", "alpha_pattern", "lora_alpha",
         "use_rslora"}
    ),
)  # fmt: skip

FILES: Mapping[str, Keys] = {"generation_config.json": GENERATION, "1_Pooling/config.json": POOLING}


def check_config(config: Config, *, is_allowed: bool) -> None:
    """Refuse keys of config.json that the family did not read and that are not irrelevant.

    Args:
        config: the whole object, after the family has read it.
        is_allowed: log unknown keys instead of refusing them.

    Raises:
        UnsupportedModelError: naming the keys, and what to do.
    """
    report(list(_refused(config.values, config.where, config)), is_allowed=is_allowed)


def check_quantization(config: Config, readable: Sequence[str]) -> None:
    """Refuse a checkpoint whose weights are quantized in a way that the family cannot read.

    Raises:
        UnsupportedModelError: naming the method.
    """
    key = "quantization_config"
    if key not in config:
        return
    settings = config.section(key)
    method = settings.get("quant_method")
    if method not in readable:
        raise UnsupportedModelError(
            f"{settings.where}: quant_method is {_short(method)}: quantized checkpoints are not "
            "converted; start from the original one in BF16, F16 or F32"
        )
    config.reading.sections.discard(settings.where)


def check_files(checkpoint: Checkpoint, *, is_allowed: bool) -> None:
    """Refuse unknown keys in the files beside config.json, as `check_config`."""
    for name, keys in FILES.items():
        values = checkpoint.json(name)
        if values is not None:
            check_file(values, name, keys, is_allowed=is_allowed)


def check_file(values: Mapping[str, Any], where: str, keys: Keys, *, is_allowed: bool) -> None:
    """Refuse keys of another file that are not listed, as `check_config`."""
    found = ((key, keys.refused(key, value)) for key, value in values.items())
    report([f"{where}: {key} {why}" for key, why in found if why], is_allowed=is_allowed)


def report(refused: Sequence[str], *, is_allowed: bool) -> None:
    """Raise or log what is refused.

    Raises:
        UnsupportedModelError: if it is not allowed.
    """
    if not refused:
        return
    shown = "; ".join(refused[:_SHOWN])
    if len(refused) > _SHOWN:
        shown += f"; and {len(refused) - _SHOWN} more"
    if not is_allowed:
        raise UnsupportedModelError(
            f"{shown}: this could change the model's results; "
            "`tampu convert --allow-unknown` converts without it"
        )
    log.warning("converted without what could change the model's results: %s", shown)


def _refused(values: Mapping[str, Any], where: str, config: Config) -> Iterator[str]:
    reading = config.reading
    for key, value in values.items():
        path = f"{where}: {key}"
        if isinstance(value, dict) and path in reading.sections:
            yield from _refused(value, path, config)
        elif path not in reading.keys and (why := CONFIG.refused(key, value)):
            yield f"{path} {why}"
