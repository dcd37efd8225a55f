"""How many experts a mixture has, from config.json."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Parameters


def moe_parameters(config: Config, *, width: str) -> Parameters:
    """Return the keys of a mixture of experts.

    Args:
        config: the text model's configuration.
        width: the key in config.json of one expert's width.
    """
    count = next((key for key in ("num_local_experts", "num_experts") if key in config), "")
    return {
        **expert_counts(config, count or "num_experts"),
        "expert_feed_forward_length": config.integer(width),
    }


def expert_counts(config: Config, count: str, used: str = "num_experts_per_tok") -> Parameters:
    """Return how many experts there are, and how many of them a token uses.

    Args:
        config: the text model's configuration.
        count: the key in config.json of the first number.
        used: the key of the second.

    Raises:
        ModelFileError: if more are used than there are.
    """
    experts, chosen = config.integer(count), config.integer(used)
    if chosen > experts:
        raise config.error(used, f"{chosen} of {experts} experts")
    return {"expert_count": experts, "expert_used_count": chosen}


def grouped_counts(config: Config, experts: str) -> Parameters:
    """Return the numbers of experts and of their groups, and what their weights are scaled by.

    Raises:
        ModelFileError: if more experts or groups are used than there are.
    """
    counts = expert_counts(config, experts)
    groups, top_groups = config.integer("n_group", 1), config.integer("topk_group", 1)
    count = config.integer(experts)
    if count % groups or top_groups > groups:
        raise config.error("n_group", f"{top_groups} of {groups} groups for {count} experts")
    return {
        **counts,
        "expert_group_count": groups,
        "expert_group_used_count": top_groups,
        "expert_weights_scale": config.number("routed_scaling_factor", 1.0),
        "expert_weights_norm": config.flag("norm_topk_prob", default=True),
    }
