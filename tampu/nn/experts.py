"""Mixtures of experts: a router sends each token to a few of many feed-forward parts.

Source: arXiv:1701.06538; `Gating` has the sources of its variants.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from tampu.errors import ModelFileError
from tampu.ml import Tensor
from tampu.ml.attention import softmax
from tampu.ml.buffer_types import WeightUse
from tampu.ml.checks import require
from tampu.ml.gates import gelu_gate, silu_gate
from tampu.ml.metadata import Metadata
from tampu.ml.moe import (
    add_expert_bias,
    clamped_gate,
    expert_linear,
    gather,
    limit_to_groups,
    normalized,
    repeat,
    top_k,
    total,
    weighted_total,
)
from tampu.nn.feed_forward import Activation
from tampu.nn.linear import Linear
from tampu.nn.module import Module, gguf

_CLAMPED_SLOPE = 1.702  # of the sigmoid in gpt-oss's gate


class GatingFunction(enum.Enum):
    """The function that turns the router's logits into scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class Gating:
    """How the experts of a token are chosen and weighted.

    Attributes:
        top_k: experts of each token.
        function: makes the scores (Llama 4, DeepSeek V3: the sigmoid; most others: the softmax).
        renormalize: whether a token's weights, the scores of its experts, are divided by their sum
            (Mixtral, Qwen 3, gpt-oss).
        scale: multiplies the weights (DeepSeek's `routed_scaling_factor`).
        groups: parts of equal size that the experts are divided into (arXiv:2405.04434).
        top_groups: groups of each token; the experts of the others cannot be chosen.
        group_scores: a group's score is the sum of so many of its best experts' scores.
        scales_inputs: whether weights multiply the inputs of experts, not their outputs (Llama 4).
        clamp: the limit of the experts' gate and up projections, with gpt-oss's form of SwiGLU;
            None: SwiGLU without limits.
        has_gelu: whether experts are gated by GELU instead of SiLU (Gemma 4).
    """

    top_k: int
    function: GatingFunction = GatingFunction.SOFTMAX
    renormalize: bool = False
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_scores: int = 1
    scales_inputs: bool = False
    clamp: float | None = None
    has_gelu: bool = False


_FUNCTIONS = {  # by GGUF's numbers; the third is a softmax over the chosen experts
    1: GatingFunction.SOFTMAX,
    2: GatingFunction.SIGMOID,
    3: GatingFunction.SOFTMAX,
}
_OF_CHOSEN = 3


def read_gating(
    metadata: Metadata,
    function: GatingFunction = GatingFunction.SIGMOID,
    *,
    renormalize: bool = False,
) -> Gating:
    """Return how a file says that experts are chosen, by GGUF's standard keys.

    Args:
        metadata: of the file.
        function: the one of the architecture, if the file names none.
        renormalize: whether the architecture does so, if the file does not say.

    Raises:
        ModelFileError: for a function that is not known, or a number that is out of range.
    """
    usual = next(number for number, each in _FUNCTIONS.items() if each is function)
    number = _count(metadata, "expert_gating_func", usual, at_most=max(_FUNCTIONS))
    groups = _count(metadata, "expert_group_count", 1)
    scale = metadata.number("expert_weights_scale", 1.0) or 1.0  # some converters write 0 for none
    if not 0 < scale < math.inf:
        key = metadata.full_key("expert_weights_scale")
        raise ModelFileError(f"key '{key}'", f"{scale} is not a positive number")
    return Gating(
        _count(metadata, "expert_used_count", None),
        _FUNCTIONS[number],
        renormalize=metadata.boolean("expert_weights_norm", default=renormalize)
        or number == _OF_CHOSEN,
        scale=scale,
        groups=groups,
        top_groups=_count(metadata, "expert_group_used_count", 1, at_most=groups),
        group_scores=2,
    )


def _count(metadata: Metadata, key: str, default: int | None, *, at_most: int = 4096) -> int:
    """Return a number of 1 to `at_most`."""
    number = metadata.integer(key, default)
    if not 1 <= number <= at_most:
        raise ModelFileError(f"key '{metadata.full_key(key)}'", f"{number} is not 1 to {at_most}")
    return number


class Router(Module):
    """Chooses experts; a score bias takes part in the choice, not in the weights."""

    project: Linear = gguf("ffn_gate_inp")
    score_bias: Tensor | None = gguf("exp_probs_b.bias")

    def __call__(self, x: Tensor, gating: Gating) -> tuple[Tensor, Tensor]:
        """Return each token's experts, I32 (tokens, top_k), and weights (tokens, top_k, 1)."""
        return route(self.project(x), gating, self.score_bias)


class BiasedRouter(Router):
    """A router of an architecture whose files must have the bias; Hy3's call it differently."""

    score_bias: Tensor = gguf("exp_probs_b.bias", or_="exp_probs_b")


def route(
    logits: Tensor, gating: Gating, score_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return each token's experts, I32 (tokens, top_k), and weights F32 (tokens, top_k, 1).

    Args:
        logits: F32, (tokens, experts).
        gating: how experts are chosen.
        score_bias: F32, (experts,): added to the scores for the choice (arXiv:2408.15664).
    """
    is_softmax = gating.function is GatingFunction.SOFTMAX
    ranks = logits  # the scores grow with the logits, so these choose the same experts
    if score_bias is not None or gating.groups > 1:
        ranks = softmax(logits) if is_softmax else logits.sigmoid()
        ranks = ranks + score_bias if score_bias is not None else ranks
    if gating.groups > 1:
        ranks = limit_to_groups(ranks, gating.groups, gating.top_groups, gating.group_scores)
    choice = top_k(ranks, gating.top_k)
    if is_softmax and gating.renormalize:  # as if only the chosen experts existed
        weights = softmax(gather(logits, choice))
    elif is_softmax:
        weights = gather(softmax(logits), choice)
    else:
        weights = gather(logits, choice).sigmoid()
        weights = normalized(weights) if gating.renormalize else weights
    weights = weights * gating.scale if gating.scale != 1.0 else weights
    return choice, weights.reshape(*choice.shape, 1)


class ExpertLinear(Module):
    """A projection of each expert: weight (experts, outputs, inputs), bias (experts, outputs)."""

    weight: Tensor = gguf("weight", use=WeightUse.EXPERTS)
    bias: Tensor | None = gguf("bias")

    def __call__(self, x: Tensor, choice: Tensor) -> Tensor:
        """Return (tokens, top_k, outputs) for x (tokens, top_k or 1, inputs)."""
        y = expert_linear(x, self.weight, choice)
        return add_expert_bias(y, self.bias, choice) if self.bias else y


class SharedExpert(Module):
    """An expert for every token, weighted by a gate of its own if there is one (Qwen 2)."""

    gate: Linear = gguf("ffn_gate_shexp")
    up: Linear = gguf("ffn_up_shexp")
    down: Linear = gguf("ffn_down_shexp")
    weight: Linear | None = gguf("ffn_gate_inp_shexp")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        y = self.down(silu_gate(self.gate(x), self.up(x)))
        return y * self.weight(x).sigmoid() if self.weight else y


class GateAndUp(Module):
    """The gate and up projections of experts."""

    gate: ExpertLinear = gguf("ffn_gate_exps")
    up: ExpertLinear = gguf("ffn_up_exps")

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """The weights, (experts, outputs, inputs) each."""
        return self.gate.weight, self.up.weight

    def __call__(self, x: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Return two of (tokens, top_k, width) for x (tokens, top_k or 1, inputs)."""
        return self.gate(x, choice), self.up(x, choice)


class FusedGateUp(Module):
    """Both in one weight, all rows of the gate before those of the up projection."""

    both: ExpertLinear = gguf("ffn_gate_up_exps")

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """The weight, (experts, outputs, inputs)."""
        return (self.both.weight,)

    def __call__(self, x: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Return two of (tokens, top_k, width) for x (tokens, top_k or 1, inputs)."""
        y = self.both(x, choice)
        require(y.shape[2] % 2 == 0, "gate and up of experts", self.both.weight)
        gate, up = y.split(2)
        return gate.contiguous(), up.contiguous()


class SparseMoE(Module):
    """A router, its experts, and the experts that all tokens share."""

    router: Router = gguf()
    inputs: GateAndUp | FusedGateUp = gguf()
    down: ExpertLinear = gguf("ffn_down_exps")
    scale: Tensor | None = gguf("ffn_down_exps.scale")
    shared: SharedExpert | None = gguf()

    def __call__(self, x: Tensor, gating: Gating, *, routed: Tensor | None = None) -> Tensor:
        """Return the weighted sum (tokens, features) of experts' outputs for x of that shape.

        Args:
            x: what the experts read.
            gating: how they are chosen.
            routed: what the router reads; None: x.
        """
        tokens, features = x.shape
        self._check_counts()
        choice, weights = self.router(x if routed is None else routed, gating)
        inputs = x.reshape(tokens, 1, features)
        if gating.scales_inputs:
            inputs = repeat(inputs, gating.top_k) * weights
        gate, up = self.inputs(inputs, choice)
        if gating.clamp is not None:
            mixed = clamped_gate(gate, up, slope=_CLAMPED_SLOPE, limit=gating.clamp)
        else:
            mixed = gelu_gate(gate, up) if gating.has_gelu else silu_gate(gate, up)
        y = self.down(mixed, choice)
        if self.scale:
            weights = weights * _chosen(self.scale, choice)
        y = total(y) if gating.scales_inputs else weighted_total(y, weights, self.down.weight)
        return y + self.shared(x) if self.shared else y

    def _check_counts(self) -> None:
        """Require as many experts of each kind as the router knows: ggml reads what it chooses."""
        scales = (self.scale,) if self.scale else ()
        experts = self.router.project.weight.shape[0]
        for weight in (*self.inputs.weights, self.down.weight, *scales):
            require(weight.shape[0] == experts, f"{experts} experts", weight)


class UngatedMoE(Module):
    """A router and experts of two projections with an activation between them."""

    router: Router = gguf()
    up: ExpertLinear = gguf("ffn_up_exps")
    down: ExpertLinear = gguf("ffn_down_exps")

    def __call__(self, x: Tensor, gating: Gating, activate: Activation) -> Tensor:
        """Return the weighted sum (tokens, features) of experts' outputs for x of that shape."""
        experts = self.router.project.weight.shape[0]
        for weight in (self.up.weight, self.down.weight):
            require(weight.shape[0] == experts, f"{experts} experts", weight)
        choice, weights = self.router(x, gating)
        mixed = activate(self.up(x.reshape(x.shape[0], 1, -1), choice))
        return weighted_total(self.down(mixed, choice), weights, self.down.weight)


def _chosen(scales: Tensor, choice: Tensor) -> Tensor:
    """Return the scale (tokens, top_k, 1) of each chosen expert."""
    column = scales.strided((scales.shape[0], 1), (scales.strides[0],), context=choice.context)
    return column.rows(choice.contiguous().reshape(-1)).reshape(*choice.shape, 1)


class LatentMoE(Module):
    """Experts of two projections without a gate, which may read and write fewer features (latents).

    The shared expert, which is always there, reads all features. Source: arXiv:2512.20848
    (Nemotron 3).
    """

    router: BiasedRouter = gguf()
    compress: Linear | None = gguf("ffn_latent_down")
    up: ExpertLinear = gguf("ffn_up_exps")
    down: ExpertLinear = gguf("ffn_down_exps")
    expand: Linear | None = gguf("ffn_latent_up")
    shared_up: Linear = gguf("ffn_up_shexp")
    shared_down: Linear = gguf("ffn_down_shexp")

    def __call__(self, x: Tensor, gating: Gating, activate: Activation) -> Tensor:
        """Return (tokens, features) for x of that shape."""
        experts = self.router.project.weight.shape[0]
        for weight in (self.up.weight, self.down.weight):  # ggml reads what the router chooses
            require(weight.shape[0] == experts, f"{experts} experts", weight)
        choice, weights = self.router(x, gating)
        inputs = self.compress(x) if self.compress else x
        y = activate(self.up(inputs.reshape(x.shape[0], 1, -1), choice))
        y = weighted_total(self.down(y, choice), weights, self.down.weight)
        y = self.expand(y) if self.expand else y
        return y + self.shared_down(activate(self.shared_up(x)))
