"""Mamba 2, a recurrent layer: a short convolution, a selective scan, and a gated norm.

Source: arXiv:2405.21060. The state of a sequence is a matrix for each head, and the last inputs of
the convolution, however long it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tampu.errors import ModelFileError
from tampu.ml import Tensor
from tampu.ml.checks import require
from tampu.ml.metadata import Metadata
from tampu.ml.recurrence import fits_parts, slide
from tampu.ml.selective_scan import selective_scan
from tampu.nn.cache import LayerCache, States, Tensors
from tampu.nn.linear import Linear
from tampu.nn.model import StateShape
from tampu.nn.module import Module, gguf
from tampu.nn.options import option, read_options


@dataclass(frozen=True, kw_only=True)
class Mamba2Shape:
    """The shape of a layer of Mamba 2.

    Attributes:
        inner: features of all heads.
        heads: of the scan.
        groups: of heads with the same inputs and outputs of the state.
        size: elements of the state for each feature.
        width: inputs of a feature that the convolution sees.
        epsilon: of the norm of the outputs.
    """

    inner: int = option("ssm.inner_size")
    heads: int = option("ssm.time_step_rank", at_most=4096)
    groups: int = option("ssm.group_count", default=1, at_most=4096)
    size: int = option("ssm.state_size", at_most=4096)
    width: int = option("ssm.conv_kernel", at_least=2, at_most=64)
    epsilon: float = option("attention.layer_norm_rms_epsilon", or_="attention.layer_norm_epsilon")

    @property
    def channels(self) -> int:
        """Features that the convolution mixes: the inputs, and those of the state of each group."""
        return self.inner + 2 * self.groups * self.size

    @property
    def state(self) -> StateShape:
        """What is kept of a sequence: the convolution's last inputs, and a matrix per head."""
        matrices = (self.heads, self.inner // self.heads, self.size)
        can = fits_parts(self.channels, self.width, self.size)
        can = can and fits_parts(self.inner // self.heads, self.width)
        inputs = (self.channels, self.heads) if can else ()
        return StateShape(((self.channels, self.width - 1), matrices), inputs)


def read_mamba2_shape(metadata: Metadata) -> Mamba2Shape:
    """Return the shape that a file states.

    Raises:
        ModelFileError: for numbers that are missing, out of range or do not fit one another.
    """
    shape = read_options(Mamba2Shape, metadata, {})
    for part, count, key in (
        (shape.inner, shape.heads, "ssm.inner_size"),
        (shape.heads, shape.groups, "ssm.time_step_rank"),
    ):
        if part % count:
            of = "heads" if count is shape.heads else "groups"
            reason = f"{part} is not a multiple of {count} {of}"
            raise ModelFileError(f"key '{metadata.full_key(key)}'", reason)
    return shape


class Mamba2(Module):
    """All inputs by one projection; gated before the norm, which some models lack."""

    project: Linear = gguf("ssm_in")
    kernel: Tensor = gguf("ssm_conv1d.weight")
    kernel_bias: Tensor | None = gguf("ssm_conv1d.bias")
    decay: Tensor = gguf("ssm_a")
    step_bias: Tensor = gguf("ssm_dt.bias")
    skip: Tensor = gguf("ssm_d")
    norm: Tensor | None = gguf("ssm_norm.weight")  # (groups, features of a group)
    output: Linear = gguf("ssm_out")

    def __call__(self, x: Tensor, cache: LayerCache, shape: Mamba2Shape) -> Tensor:
        """Return (tokens, features) for x of that shape.

        Args:
            x: normed.
            cache: of this layer, of the shape `shape.state`.
            shape: of the layer.
        """
        y = self.project(x)
        lengths = (shape.inner, shape.channels, shape.heads)
        require(y.shape[1] == sum(lengths), "projection of Mamba 2", y)
        gate, mixed, step = y.split(lengths)
        require(self.step_bias.shape == (shape.heads,), "steps of Mamba 2", self.step_bias)
        inputs = (mixed, step + self.step_bias)
        y = cache.advance(inputs, partial(self.advance, shape=shape)) * gate.silu()
        if self.norm:
            y = y.reshape(-1, shape.groups, shape.inner // shape.groups)
            require(self.norm.shape == y.shape[1:], "norm of Mamba 2", y, self.norm)
            y = (y.rms_norm(shape.epsilon) * self.norm).reshape(x.shape[0], shape.inner)
        y = self.output(y)
        require(y.shape == x.shape, "output of Mamba 2", x, y)
        return y

    def advance(self, inputs: Tensors, states: States, *, shape: Mamba2Shape) -> Tensor:
        """Compute the next tokens of some sequences from their states."""
        (x, step), (past, state) = inputs, states
        mixed = slide(x, past, self.kernel, bias=self.kernel_bias, has_silu=True)
        (batch, tokens, _), size = mixed.shape, 4 * shape.size
        features, starts = shape.inner // shape.heads, 4 * shape.inner
        steps, parts = mixed.strides[:2], (batch, tokens, shape.groups, shape.size)
        x = mixed.strided((batch, tokens, shape.heads, features), (*steps, 4 * features))
        b, c = (
            mixed.strided(parts, (*steps, size), starts + part * shape.groups * size)
            for part in range(2)
        )
        y = selective_scan(x, b, c, step, self.decay, self.skip, state)
        return y.reshape(batch, tokens, -1)
