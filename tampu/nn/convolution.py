"""Convolutions over time, of encoders of sounds."""

from __future__ import annotations

from functools import reduce

from tampu.ml import Tensor
from tampu.ml.checks import require
from tampu.nn.module import Module, gguf


class Conv1d(Module):
    """A convolution over time, as wide as its kernel is long; zeros lie around the sound.

    The weight is (outputs, inputs, taps) with an odd number of taps; the bias (outputs,), or
    (outputs, 1) as llama.cpp has it.
    """

    weight: Tensor = gguf("weight")
    bias: Tensor = gguf("bias")

    def __call__(self, x: Tensor, stride: int = 1) -> Tensor:
        """Return ((n - 1) // stride + 1, outputs) for x (n, inputs)."""
        weight, count, context = self.weight, x.shape[0], x.context
        fits = len(weight.shape) == 3 and weight.shape[1] == x.shape[1] and weight.shape[2] % 2 == 1
        require(fits and self.bias.shape[0] == weight.shape[0], "convolution", x, weight, self.bias)
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


def zero_rows(x: Tensor, count: int) -> Tensor:
    """Return zeros (count, features) for x (n, features)."""
    features = x.shape[1]
    zeros = x.strided((1, features), (4 * features,)) * 0.0
    while zeros.shape[0] < count:
        zeros = zeros.concat(zeros, 0)
    return zeros.strided((count, features), (4 * features,))
