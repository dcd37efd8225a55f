"""Mamba 1, a recurrent layer: a short convolution, and a selective scan of each feature.

Source: arXiv:2312.00752. Jamba norms what the scan selects by (arXiv:2403.19887). The state of a
sequence is a vector for each feature, and the last inputs of the convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tampu.ml import Tensor
from tampu.ml.checks import require
from tampu.ml.recurrence import slide
from tampu.ml.selective_scan import selective_scan
from tampu.nn.cache import LayerCache, States, Tensors
from tampu.nn.linear import Linear
from tampu.nn.model import StateShape
from tampu.nn.module import Module, gguf
from tampu.nn.norm import RMSNorm
from tampu.nn.options import option


@dataclass(frozen=True, kw_only=True)
class MambaShape:
    """The shape of a layer of Mamba 1.

    Attributes:
        inner: features of the scan.
        rank: inputs of the projection of the steps.
        size: elements of the state for each feature.
        width: inputs of a feature that the convolution sees.
        epsilon: of the norms.
    """

    inner: int = option("ssm.inner_size")
    rank: int = option("ssm.time_step_rank")
    size: int = option("ssm.state_size", at_most=4096)
    width: int = option("ssm.conv_kernel", at_least=2, at_most=64)
    epsilon: float = option("attention.layer_norm_rms_epsilon")

    @property
    def state(self) -> StateShape:
        """What is kept of a sequence: the convolution's last inputs, and a vector per feature."""
        return StateShape(((self.inner, self.width - 1), (self.inner, 1, self.size)))


class Mamba(Module):
    """What the scan selects by is projected from the outputs of the convolution."""

    project: Linear = gguf("ssm_in")
    kernel: Tensor = gguf("ssm_conv1d.weight")
    kernel_bias: Tensor | None = gguf("ssm_conv1d.bias")
    select: Linear = gguf("ssm_x")
    step: Linear = gguf("ssm_dt")
    step_norm: RMSNorm | None = gguf("ssm_dt_norm")
    b_norm: RMSNorm | None = gguf("ssm_b_norm")
    c_norm: RMSNorm | None = gguf("ssm_c_norm")
    decay: Tensor = gguf("ssm_a")
    skip: Tensor = gguf("ssm_d")
    output: Linear = gguf("ssm_out")

    def __call__(self, x: Tensor, cache: LayerCache, shape: MambaShape) -> Tensor:
        """Return (tokens, features) for x of that shape.

        Args:
            x: normed.
            cache: of this layer, of the shape `shape.state`.
            shape: of the layer.
        """
        y = self.project(x)
        require(y.shape[1] == 2 * shape.inner, "projection of Mamba", y)
        mixed, gate = y.split(2)
        y = cache.advance((mixed,), partial(self.advance, shape=shape)) * gate.silu()
        y = self.output(y)
        require(y.shape == x.shape, "output of Mamba", x, y)
        return y

    def advance(self, inputs: Tensors, states: States, *, shape: MambaShape) -> Tensor:
        """Compute the next tokens of some sequences from their states."""
        (x,), (past, state) = inputs, states
        mixed = slide(x, past, self.kernel, bias=self.kernel_bias, has_silu=True)
        batch, tokens, inner = mixed.shape
        selected = self.select(mixed.reshape(batch * tokens, inner))
        require(selected.shape[1] == shape.rank + 2 * shape.size, "selection of Mamba", selected)
        step, b, c = selected.split((shape.rank, shape.size, shape.size))
        step = self.step_norm(step, shape.epsilon) if self.step_norm else step.contiguous()
        b = self.b_norm(b, shape.epsilon) if self.b_norm else b
        c = self.c_norm(c, shape.epsilon) if self.c_norm else c
        b, c = (each.reshape(batch, tokens, 1, shape.size) for each in (b, c))
        step = self.step(step).reshape(batch, tokens, inner)
        require(self.skip.shape == (inner,), "skip of Mamba", self.skip)
        skip = self.skip.strided((inner, 1), (4,), context=mixed.context)
        x = mixed.reshape(batch, tokens, inner, 1)
        y = selective_scan(x, b, c, step, self.decay, skip, state)
        return y.reshape(batch, tokens, inner)
