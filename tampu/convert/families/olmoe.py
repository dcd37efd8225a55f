"""OLMoE: `olmoe`."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.experts import STACKS
from tampu.convert.families.llama import QK_NORM_NAMES
from tampu.convert.families.qwen import MOE_NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import moe_parameters


def parameters(config: Config) -> Parameters:
    """Return the keys of `olmoe`, whose readers never renormalize the experts' weights."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("clip_qkv", (None,), None)
    config.require("norm_topk_prob", (False,), default=False)
    return {
        **text_parameters(config, scalings=("none", "linear", "yarn")),
        **moe_parameters(config, width="intermediate_size"),
    }


OLMOE = Family(
    architecture="olmoe",
    checkpoints=("OlmoeForCausalLM",),
    names=MOE_NAMES | QK_NORM_NAMES,
    stacks=STACKS,
    parameters=parameters,
    defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
)
