"""Fixtures for tests on the real backend: one thread, tiny tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tampu.ml import Backend, Context, GGMLType, Tensor
from tampu.ml.kernels import KernelChoice

Array = npt.NDArray[Any]
Compute = Callable[..., Any]

TYPES = {
    np.dtype(np.float32): GGMLType.F32,
    np.dtype(np.float16): GGMLType.F16,
    np.dtype(np.int32): GGMLType.I32,
    np.dtype(np.int64): GGMLType.I64,
}


@pytest.fixture(scope="session")
def backend() -> Iterator[Backend]:
    """A backend for all tests of a folder; graphs of up to 1024 tensors."""
    backend = Backend(threads=1, max_nodes=1024)
    _compute_once(backend)  # its thread is there before the first test begins
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def plain_backend() -> Iterator[Backend]:
    """A backend that computes with ggml's own operations alone."""
    choice = KernelChoice.from_word("off")
    backend = Backend(threads=1, max_nodes=1024, kernels=choice)
    _compute_once(backend)
    yield backend
    backend.close()


def _compute_once(backend: Backend) -> None:
    context = backend.context(8)
    one = context.input("one", (1,), GGMLType.F32)
    two = context.output(one + one)
    backend.compute(context, [(one, np.ones(1, np.float32))], [two])
    context.close()


@pytest.fixture
def context(backend: Backend) -> Iterator[Context]:
    """An empty graph."""
    context = backend.context()
    yield context
    context.close()


@pytest.fixture
def given(context: Context) -> Callable[[Array], Tensor]:
    """Declare an input of an array's shape and type."""
    return lambda array: context.input("x", array.shape, TYPES[array.dtype])


@pytest.fixture
def compute(backend: Backend, context: Context) -> Compute:
    """Compute `build(tensors of the arrays)` and return its data: one array, or a list of them."""

    def compute(build: Callable[..., Any], *arrays: Array) -> Any:
        inputs = [context.input("x", array.shape, TYPES[array.dtype]) for array in arrays]
        built = build(*inputs)
        outputs = [context.output(tensor) for tensor in (built if _many(built) else [built])]
        data = [np.ascontiguousarray(array) for array in arrays]
        found = backend.compute(context, list(zip(inputs, data, strict=True)), outputs).outputs
        for tensor, array in zip(outputs, found, strict=True):
            assert array.shape == tensor.shape
        return found if _many(built) else found[0]

    return compute


def _many(built: Any) -> bool:
    return isinstance(built, list | tuple)


def floats(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return random numbers of a normal distribution."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(*values: int) -> npt.NDArray[np.int32]:
    """Return an array of indices or positions."""
    return np.array(values, np.int32)
