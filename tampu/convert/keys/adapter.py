"""The keys of a PEFT adapter's adapter_config.json."""

from __future__ import annotations

from tampu.convert.keys.table import NAMES, TRAINING, Keys

ADAPTER = Keys(
    irrelevant={
        **dict.fromkeys(
            ("base_model_name_or_path", "base_model_class", "parent_library", "revision",
             "peft_version", "task_type", "auto_mapping"),
            NAMES,
        ),
        **dict.fromkeys(
            ("inference_mode", "lora_dropout", "init_lora_weights", "loftq_config", "eva_config",
             "corda_config", "lora_ga_config", "runtime_config", "megatron_*", "qalora_group_size",
             "unsloth_*", "ensure_weight_tying", "loraplus_*"),
            TRAINING,
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
