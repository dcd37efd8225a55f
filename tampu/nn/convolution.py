"""Convolutions of encoders of sounds: over time, and over frequencies and time."""

from __future__ import annotations

from functools import reduce

from tampu.ml import Tensor
from tampu.ml.buffer_types import WeightUse
from tampu.ml.checks import require
from tampu.ml.convolution import map_patches, project_patches
from tampu.nn.module import Module, gguf

_TAPS = range(3, 64, 2)


class Conv1d(Module):
    """A convolution over time, as wide as its kernel is long; zeros lie around the sound.

    The weight is (outputs, inputs, taps) with an odd number of taps above one; the bias is
    (outputs,), or (outputs, 1) as llama.cpp has it.
    """

    weight: Tensor = gguf("weight")
    bias: Tensor = gguf("bias")

    def __call__(self, x: Tensor, stride: int = 1) -> Tensor:
        """Return ((n - 1) // stride + 1, outputs) for x (n, inputs)."""
        weight, count, context = self.weight, x.shape[0], x.context
        fits = len(weight.shape) == 3 and weight.shape[1] == x.shape[1]
        fits = fits and weight.shape[2] in _TAPS
        fits = fits and self.bias.shape[0] == weight.shape[0]
        require(fits, "convolution", x, weight, self.bias)
        outputs, inputs, taps = weight.shape
        whole = weight.strided(weight.shape, weight.strides[:-1], context=context)
        kernel = whole.transpose(0, 2, 1).contiguous().reshape(outputs, taps * inputs)
        zeros = zero_rows(x, taps // 2)
        padded, row = zeros.concat(x, 0).concat(zeros, 0), 4 * inputs
        rows = (count - 1) // stride + 1
        shifted = [
            padded.strided((rows, inputs), (stride * row,), tap * row) for tap in range(taps)
        ]
        patches = reduce(lambda some, other: some.concat(other, 1), shifted)
        return patches.linear(kernel) + self.bias.strided((outputs,), (), context=context)


class Conv2d(Module):
    """A convolution over a map, whose kernel has an odd height and width; zeros lie around it.

    The weight is (outputs, inputs, height, width); the bias (outputs,), or (outputs, 1, 1) as
    llama.cpp has it.
    """

    weight: Tensor = gguf("weight", use=WeightUse.CONVOLUTION)
    bias: Tensor | None = gguf("bias")

    def __call__(self, x: Tensor, stride: int) -> Tensor:
        """Return (rows', columns', outputs) for x (inputs, rows, columns)."""
        weight = self.weight
        patches = map_patches(x, weight, stride, weight.shape[-1] // 2)
        y = project_patches(patches, weight)
        if not self.bias:
            return y
        require(self.bias.shape[0] == y.shape[-1], "convolution", y, self.bias)
        return y + self.bias.strided(self.bias.shape[:1], (), context=x.context)


def zero_rows(x: Tensor, count: int) -> Tensor:
    """Return zeros (count, features) for x (n, features)."""
    features = x.shape[1]
    zeros = x.strided((1, features), (4 * features,)) * 0.0
    while zeros.shape[0] < count:
        zeros = zeros.concat(zeros, 0)
    return zeros.strided((count, features), (4 * features,))
