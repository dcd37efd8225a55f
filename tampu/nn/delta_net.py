"""Gated delta net, a recurrent layer: a matrix per head learns to map keys to values.

Sources: arXiv:2412.06464, and arXiv:2406.06484 for the delta rule. The state of a sequence is those
matrices and the last inputs of the short convolution, however long it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from tampu.errors import ModelFileError
from tampu.ml import Tensor
from tampu.ml.checks import require
from tampu.ml.gates import silu_gate
from tampu.ml.metadata import Metadata
from tampu.ml.recurrence import (
    fits_parts,
    gated_delta_rule,
    repeat_heads,
    slide,
    softplus,
    unit_vectors,
)
from tampu.nn.cache import LayerCache, States, Tensors
from tampu.nn.linear import Linear
from tampu.nn.model import StateShape
from tampu.nn.module import Module, gguf
from tampu.nn.norm import RMSNorm
from tampu.nn.options import option, read_options

LENGTH_EPSILON = 1e-6  # of the lengths of queries and keys; the reference's, in none of its files


@dataclass(frozen=True, kw_only=True)
class DeltaHeads:
    """The shape of a gated delta net.

    Attributes:
        keys: heads of queries and keys.
        values: heads of values, a multiple.
        features: of each head.
        inner: features of all values.
        width: inputs of a feature that the convolution sees.
        epsilon: of the norm of the outputs.
        is_tiled: whether value head h belongs to key head h modulo their number; otherwise
            neighbouring value heads belong to the same key head.
    """

    keys: int = option("ssm.group_count", at_most=4096)
    values: int = option("ssm.time_step_rank", at_most=4096)
    features: int = option("ssm.state_size", at_most=4096)
    inner: int = option("ssm.inner_size")
    width: int = option("ssm.conv_kernel", at_least=2, at_most=64)
    epsilon: float = option("attention.layer_norm_rms_epsilon")
    is_tiled: bool = True

    @property
    def channels(self) -> int:
        """Features of all queries, keys and values, which the convolution mixes."""
        return (2 * self.keys + self.values) * self.features

    @property
    def state(self) -> StateShape:
        """What is kept of a sequence: the convolution's last inputs, and a matrix per head."""
        matrices = (self.values, self.features, self.features)
        can = fits_parts(self.channels, self.width, self.features)
        inputs = (self.channels, self.values, self.values) if can else ()
        return StateShape(((self.channels, self.width - 1), matrices), inputs)


def read_delta_heads(metadata: Metadata) -> DeltaHeads:
    """Return the shape that a file states.

    Raises:
        ModelFileError: for numbers that are missing, out of range or do not fit one another.
    """
    heads = read_options(DeltaHeads, metadata, {})
    if heads.values % heads.keys:
        key = metadata.full_key("ssm.time_step_rank")
        reason = f"{heads.values} value heads are not a multiple of {heads.keys} key heads"
        raise ModelFileError(f"key '{key}'", reason)
    if heads.inner != heads.values * heads.features:
        key = metadata.full_key("ssm.inner_size")
        reason = f"{heads.inner} is not {heads.values} heads of {heads.features} features"
        raise ModelFileError(f"key '{key}'", reason)
    return heads


class SeparateProjections(Module):
    """Queries, keys and values by one projection, the gates of the outputs by another."""

    mixed: Linear = gguf("attn_qkv")
    gate: Linear = gguf("attn_gate")

    def __call__(self, x: Tensor, heads: DeltaHeads) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return queries, keys and values (tokens, channels), and the gates (tokens, inner)."""
        return self.mixed(x), self.gate(x)


class JointProjections(Module):
    """All by one projection, in turn for each key head (the first files of Qwen3-Next)."""

    all: Linear = gguf("ssm_in")

    def __call__(self, x: Tensor, heads: DeltaHeads) -> tuple[Tensor, Tensor]:
        """Return queries, keys and values (tokens, channels), and the gates (tokens, inner)."""
        y, size, each = self.all(x), heads.features, heads.inner // heads.keys
        require(y.shape[1] == heads.channels + heads.inner, "projections of the delta net", y)
        ends, parts = (0, size, 2 * size, 2 * size + each, 2 * (size + each)), []
        for start, end in pairwise(ends):
            shape, steps = (y.shape[0], heads.keys, end - start), (y.strides[0], 4 * ends[-1])
            parts.append(y.strided(shape, steps, 4 * start).reshape(y.shape[0], -1))
        queries, keys, values, gates = parts
        return queries.concat(keys, 1).concat(values, 1), gates


class SeparateGates(Module):
    """The inputs of both gates by a projection each (Qwen 3.5)."""

    beta: Linear = gguf("ssm_beta")
    alpha: Linear = gguf("ssm_alpha")

    def __call__(self, x: Tensor, heads: DeltaHeads) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the inputs of beta and of the decay, (tokens, values) each."""
        return self.beta(x), self.alpha(x)


class JointGates(Module):
    """The inputs of both gates by one projection, in turn for each key head (Qwen3-Next)."""

    both: Linear = gguf("ssm_ba")

    def __call__(self, x: Tensor, heads: DeltaHeads) -> tuple[Tensor, Tensor]:
        """Return the inputs of beta and of the decay, (tokens, values) each."""
        each = heads.values // heads.keys
        y = self.both(x)
        shape, steps = (y.shape[0], heads.keys, each), (y.strides[0], 2 * each * 4)
        beta, alpha = (y.strided(shape, steps, part * each * 4) for part in range(2))
        return beta.reshape(-1, heads.values), alpha.reshape(-1, heads.values)


class GatedDeltaNet(Module):
    """The delta rule on convolved queries, keys and values; decay, step and outputs are gated."""

    project: SeparateProjections | JointProjections = gguf()
    gates: SeparateGates | JointGates = gguf()
    kernel: Tensor = gguf("ssm_conv1d.weight")
    decay: Tensor = gguf("ssm_a")
    decay_bias: Tensor = gguf("ssm_dt.bias")
    norm: RMSNorm = gguf("ssm_norm")
    output: Linear = gguf("ssm_out")

    def __call__(self, x: Tensor, cache: LayerCache, heads: DeltaHeads) -> Tensor:
        """Return (tokens, features) for x of that shape.

        Args:
            x: normed.
            cache: of this layer, of the shape `heads.state`.
            heads: the shape of the layer.
        """
        beta, alpha = self.gates(x, heads)
        gated = [alpha, self.decay, self.decay_bias]
        require(all(each.shape[-1:] == (heads.values,) for each in gated), "decay", *gated)
        log_decay = softplus(alpha + self.decay_bias) * self.decay
        mixed, gate = self.project(x, heads)
        inputs = (mixed, log_decay, beta.sigmoid())
        y = cache.advance(inputs, partial(self.advance, heads=heads))
        y = self.norm(y.reshape(-1, heads.values, heads.features), heads.epsilon)
        y = self.output(silu_gate(gate.reshape(*y.shape), y).reshape(x.shape[0], -1))
        require(y.shape == x.shape, "output of the delta net", x, y)
        return y

    def advance(self, inputs: Tensors, states: States, *, heads: DeltaHeads) -> Tensor:
        """Compute the next tokens of some sequences from their states."""
        (x, log_decay, beta), (past, state) = inputs, states
        mixed = slide(x, past, self.kernel, has_silu=True)
        (batch, tokens, _), size = x.shape, heads.features * 4
        steps = (*mixed.strides[:2], size)
        queries_and_keys = mixed.strided((batch, tokens, 2 * heads.keys, heads.features), steps)
        v = mixed.strided(
            (batch, tokens, heads.values, heads.features), steps, 2 * heads.keys * size
        )
        count = 1 if heads.is_tiled else heads.values // heads.keys
        unit = repeat_heads(unit_vectors(queries_and_keys, LENGTH_EPSILON), count)
        q, k = unit.split(2, axis=2)
        y = gated_delta_rule(q, k, v, log_decay, beta, state)
        return y.reshape(batch, tokens, -1)
