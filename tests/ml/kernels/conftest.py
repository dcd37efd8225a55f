"""Backends with each level of the kernels, and weights of every type that they know."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import _compute_once
from support.kernels import Product, Products, exact, levels

from tampu.ml import Backend, GGMLType, Tensor, Weights
from tampu.ml.buffer_types import WeightUse
from tampu.ml.gguf import read_gguf
from tampu.ml.kernels import KernelChoice
from tampu.ml.kernels.matmul import PackedWeight
from tampu.ml.quantize import quantize


@pytest.fixture(scope="session")
def level_backends() -> Iterator[Callable[..., Any]]:
    """A backend for a level and a number of threads; None: the fastest level; ggml: none."""
    wanted = [(level, 1) for level in ("ggml", None, *levels())] + [
        (None, threads) for threads in (2, 3, 5)
    ]
    made = {(level, threads): _backend(level, threads) for level, threads in wanted}
    yield lambda level, threads=1: made[level, threads]
    for backend in made.values():
        backend.close()


def _backend(level: str | None, threads: int) -> Backend:
    choice = KernelChoice(level=level) if level != "ggml" else KernelChoice.from_word("off")
    backend = Backend(threads=threads, max_nodes=256, kernels=choice)
    _compute_once(backend)
    return backend


@dataclass(frozen=True)
class Load:
    """Stores a matrix as a type in a file, `stored` one that is of the type already."""

    write: Callable[..., Any]
    stored: Callable[..., Any]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.write(*arguments, **options)


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Store a matrix as a type in a file; return its values as stored, and a loader for it."""
    opened = []

    def write(
        values: npt.NDArray[np.float32],
        kind: GGMLType,
        uses: Sequence[WeightUse] = (WeightUse.PRODUCT,),
    ) -> tuple[npt.NDArray[np.float64], Callable[[Any], Any]]:
        stored = quantize(values, kind)
        return write_stored(stored, kind, uses)

    def write_stored(
        stored: npt.NDArray[np.uint8],
        kind: GGMLType,
        uses: Sequence[WeightUse] = (WeightUse.PRODUCT,),
    ) -> tuple[npt.NDArray[np.float64], Callable[[Any], Any]]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("w", stored, raw_dtype=gguf.GGMLQuantizationType[kind.name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

        def bind(backend: Backend) -> Tensor:
            weights = Weights(read_gguf(path))
            opened.append(weights)
            for use in uses:
                tensor = weights.use("w", use)
            weights.load(backend)
            return tensor

        return exact(stored, kind), bind

    yield Load(write, write_stored)
    for weights in opened:
        weights.close()


@pytest.fixture
def multiply() -> Callable[..., Any]:
    """Return x multiplied by each weight, computed in one graph."""

    def multiply(
        backend: Backend,
        x: npt.NDArray[Any] | npt.NDArray[np.float32] | npt.NDArray[np.float64],
        *weights: Any,
    ) -> list[npt.NDArray[Any]] | npt.NDArray[Any]:
        context = backend.context(64)
        given = context.input("x", x.shape, GGMLType.F32)
        products = [context.output(given.linear(weight)) for weight in weights]
        found = backend.compute(context, [(given, x)], products).outputs
        context.close()
        return found if len(weights) > 1 else found[0]

    return multiply


@pytest.fixture
def products(level_backends: Callable[..., Any], multiply: Callable[..., Any]) -> Products:
    """For each level its name, and what multiplies by a weight that `load` has stored."""

    def products(bind: Callable[[Any], Any], at: Sequence[str] = levels()) -> Iterator[Product]:
        for level in at:
            backend = level_backends(level)
            weight = bind(backend)
            assert isinstance(weight.packed, PackedWeight) is (level != "ggml")
            yield level, partial(_multiply_by, multiply, backend, weight)

    return products


def _multiply_by(multiply: Any, backend: Backend, weight: Tensor, x: npt.NDArray[Any]) -> Any:
    return multiply(backend, x, weight)
