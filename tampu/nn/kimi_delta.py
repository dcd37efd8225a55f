"""Kimi Delta Attention, a gated delta net in which each feature of the keys has a decay of its own.

Source: arXiv:2510.26692 (Kimi Linear). Queries, keys and values each have a projection and a short
convolution; the gates of the decays and of the outputs are made by two matrices each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from tampu.ml import Tensor
from tampu.ml.checks import require
from tampu.ml.recurrence import fits_parts, gated_delta_rule, slide, softplus, unit_vectors
from tampu.nn.cache import LayerCache, States, Tensors
from tampu.nn.delta_net import LENGTH_EPSILON
from tampu.nn.linear import Linear
from tampu.nn.model import StateShape
from tampu.nn.module import Module, gguf
from tampu.nn.norm import RMSNorm


@dataclass(frozen=True, slots=True)
class KimiDeltaHeads:
    """The shape of Kimi Delta Attention.

    Attributes:
        count: heads of queries, keys and values.
        features: of each head.
        width: inputs of a feature that the convolutions see.
        epsilon: of the norm of the outputs.
    """

    count: int
    features: int
    width: int
    epsilon: float

    @property
    def state(self) -> StateShape:
        """What is kept of a sequence: the convolutions' last inputs, and a matrix per head."""
        every = self.count * self.features
        past, matrices = (every, self.width - 1), (self.count, self.features, self.features)
        can = fits_parts(every, self.width, self.features)
        inputs = (every, every, every, every, self.count) if can else ()
        return StateShape((past, past, past, matrices), inputs)


class KimiDeltaAttention(Module):
    """The delta rule on convolved queries, keys and values; decays, steps and outputs are gated."""

    query: Linear = gguf("attn_q")
    key: Linear = gguf("attn_k")
    value: Linear = gguf("attn_v")
    query_kernel: Tensor = gguf("ssm_conv1d_q.weight")
    key_kernel: Tensor = gguf("ssm_conv1d_k.weight")
    value_kernel: Tensor = gguf("ssm_conv1d_v.weight")
    beta: Linear = gguf("ssm_beta")
    decay_down: Linear = gguf("ssm_f_a")
    decay_up: Linear = gguf("ssm_f_b")
    decay: Tensor = gguf("ssm_a")
    decay_bias: Tensor = gguf("ssm_dt.bias")
    gate_down: Linear = gguf("ssm_g_a")
    gate_up: Linear = gguf("ssm_g_b")
    norm: RMSNorm = gguf("ssm_norm")
    output: Linear = gguf("attn_output")

    def __call__(self, x: Tensor, cache: LayerCache, heads: KimiDeltaHeads) -> Tensor:
        """Return (tokens, features) for x of that shape.

        Args:
            x: normed.
            cache: of this layer, of the shape `heads.state`.
            heads: the shape of the layer.
        """
        per_head = (x.shape[0], heads.count, heads.features)
        require(math.prod(self.decay.shape) == heads.count, "decay", self.decay)
        scale = self.decay.strided((heads.count, 1), (4,), context=x.context)
        gated = softplus(self.decay_up(self.decay_down(x)) + self.decay_bias)
        log_decay = gated.reshape(*per_head) * scale
        gates = (log_decay.reshape(x.shape[0], -1), self.beta(x).sigmoid())
        inputs = (self.query(x), self.key(x), self.value(x), *gates)
        y = cache.advance(inputs, partial(self.advance, heads=heads))
        y = self.norm(y.reshape(*per_head), heads.epsilon)
        gate = self.gate_up(self.gate_down(x)).sigmoid()
        return self.output(y.reshape(x.shape[0], -1) * gate)

    def advance(self, inputs: Tensors, states: States, *, heads: KimiDeltaHeads) -> Tensor:
        """Compute the next tokens of some sequences from their states."""
        *streams, log_decay, beta = inputs
        *past, state = states
        batch, tokens, _ = log_decay.shape
        per_head = (batch, tokens, heads.count, heads.features)
        kernels = (self.query_kernel, self.key_kernel, self.value_kernel)
        q, k, v = (
            slide(x, before, _rows(kernel, x, heads), has_silu=True).reshape(*per_head)
            for x, before, kernel in zip(streams, past, kernels, strict=True)
        )
        q, k = unit_vectors(q, LENGTH_EPSILON), unit_vectors(k, LENGTH_EPSILON)
        y = gated_delta_rule(q, k, v, log_decay.reshape(*per_head), beta, state)
        return y.reshape(batch, tokens, -1)


def _rows(kernel: Tensor, x: Tensor, heads: KimiDeltaHeads) -> Tensor:
    """Return kernels (channels, width); files have more dimensions, of one element."""
    shape = (heads.count * heads.features, heads.width)
    require(math.prod(kernel.shape) == math.prod(shape), "convolution", kernel)
    return kernel.strided(shape, (4 * heads.width,), context=x.context)
