"""The tensors of a file: where each lives, progress, cancelling, and files that are not sound."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import floats

from tampu.errors import LoadCancelledError, ModelFileError, OutOfMemoryError
from tampu.ml import Backend, GGMLType, Weights
from tampu.ml.buffer_types import WeightUse
from tampu.ml.gguf import read_gguf
from tampu.ml.library import gg


@pytest.fixture
def backend(plain_backend: Backend) -> Backend:
    """ggml alone: tests/ml/kernels has the tests of the package's own layouts."""
    return plain_backend


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Write tensors (name -> array, or array and type) to a file and declare them."""
    opened: list[Any] = []

    def make(**tensors: Any) -> Weights:
        path = tmp_path / f"{len(opened)}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for name, value in tensors.items():
            array, kind = value if isinstance(value, tuple) else (value, "F32")
            kind = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        opened.append(Weights(read_gguf(path)))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def packs(backend: Backend) -> None:
    """Whether this CPU's code has a packed layout for Q4_0."""
    if not backend.cpu.packed_buffer_types:
        pytest.skip("no packed layouts in this build")


def product(backend: Backend, weight: Any, x: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Return x multiplied by a weight."""
    context = backend.context(8)
    activations = context.input("x", x.shape, GGMLType.F32)
    y = context.output(activations.linear(weight))
    found = backend.compute(context, [(activations, x)], [y]).outputs[0]
    context.close()
    return found


def rows(backend: Backend, table: Any, indices: list[Any]) -> npt.NDArray[Any]:
    """Look up the rows of a table."""
    context = backend.context(8)
    index = context.input("rows", (len(indices),), GGMLType.I32)
    y = context.output(table.rows(index))
    found = backend.compute(context, [(index, np.array(indices, np.int32))], [y]).outputs[0]
    context.close()
    return found


def is_mapped(weights: Any, tensor: Any) -> Any:
    info = weights.file.tensors[tensor.name]
    return tensor.pointer.contents.data % 4096 == info.offset % 4096


def test_without_a_mapping_every_weight_is_copied(
    backend: Backend, weights: Callable[..., Any]
) -> None:
    matrix, table = floats(5, 32), floats(7, 6, seed=1)
    opened = weights(matrix=matrix, table=table, packed=(floats(8, 64), "Q4_0"))
    tensors = [opened.use("matrix", WeightUse.PRODUCT), opened.use("table", WeightUse.ROWS)]
    opened.use("packed", WeightUse.PRODUCT)
    opened.load(backend, mapped=False)
    assert opened.mapped_bytes == 0
    assert opened.packed_bytes >= 5 * 128 + 7 * 24
    assert opened.device_bytes.total() == 0
    assert np.array_equal(rows(backend, tensors[1], [3, 0]), table[[3, 0]])


# Declaring


def test_tensors_are_declared_before_they_have_memory(weights: Callable[..., Any]) -> None:
    opened = weights(matrix=floats(4, 32), cube=floats(2, 3, 4), packed=(floats(8, 64), "Q4_0"))
    matrix = opened.use("matrix", WeightUse.PRODUCT)
    assert (matrix.shape, matrix.type, matrix.name) == ((4, 32), GGMLType.F32, "matrix")
    assert opened.use("cube", WeightUse.ELEMENTS).shape == (2, 3, 4)
    assert opened.use("packed", WeightUse.PRODUCT).type is GGMLType.Q4_0
    assert not matrix.pointer.contents.data
    assert "matrix" in opened
    assert "other" not in opened


def test_a_missing_tensor_is_named(weights: Callable[..., Any]) -> None:
    with pytest.raises(ModelFileError, match=r"tensor blk\.7: missing from the file"):
        weights(matrix=floats(4, 32)).use("blk.7", WeightUse.ROWS)


def test_unused_tensors_are_named_in_the_files_order(weights: Callable[..., Any]) -> None:
    opened = weights(b=floats(4), a=floats(4), c=floats(4))
    assert opened.unused() == ["b", "a", "c"]
    opened.use("a", WeightUse.ELEMENTS)
    assert opened.unused() == ["b", "c"]


# Placing


def test_plain_weights_are_used_where_the_file_is_mapped(
    backend: Backend, weights: Callable[..., Any]
) -> None:
    matrix, table = floats(5, 32), floats(7, 6, seed=1)
    opened = weights(matrix=matrix, half=(floats(3, 32), "F16"), table=table, unused=floats(9))
    w, half, t = (
        opened.use("matrix", WeightUse.PRODUCT),
        opened.use("half", WeightUse.PRODUCT),
        None,
    )
    t = opened.use("table", WeightUse.ROWS)
    opened.load(backend)
    x = floats(2, 32, seed=2)
    assert all(is_mapped(opened, tensor) for tensor in (w, half, t))
    assert (opened.mapped_bytes, opened.packed_bytes) == (5 * 128 + 3 * 64 + 7 * 24, 0)
    np.testing.assert_allclose(product(backend, w, x), x @ matrix.T, rtol=1e-4, atol=1e-5)
    assert np.array_equal(rows(backend, t, [6, 0]), table[[6, 0]])


@pytest.mark.usefixtures("packs")
@pytest.mark.parametrize(
    ("shape", "kind", "uses", "is_packed"),
    [
        ((8, 64), "Q4_0", {WeightUse.PRODUCT}, True),
        ((24, 32), "Q4_0", {WeightUse.PRODUCT}, True),
        ((12, 64), "Q4_0", {WeightUse.PRODUCT}, False),  # not a multiple of 8 rows
        (
            (8, 64),
            "Q4_0",
            {WeightUse.PRODUCT, WeightUse.ROWS},
            False,
        ),  # tied: rows are looked up too
        ((8, 64), "Q4_0", {WeightUse.ROWS}, False),
        ((8, 64), "F16", {WeightUse.PRODUCT}, False),
        ((8, 64), "F32", {WeightUse.PRODUCT}, False),
        ((3, 8, 64), "Q4_0", {WeightUse.PRODUCT}, False),  # as the keys of latent attention
        ((3, 8, 64), "Q4_0", {WeightUse.EXPERTS}, True),
    ],
)
def test_a_weight_is_packed_if_it_is_only_multiplied_and_fits(
    backend: Backend,
    weights: Callable[..., Any],
    shape: tuple[int, ...],
    kind: str,
    uses: set[WeightUse],
    is_packed: bool,
) -> None:
    values = floats(*shape)
    opened = weights(w=(values, kind), other=floats(3))
    for use in uses:
        w = opened.use("w", use)
    opened.use("other", WeightUse.ELEMENTS)
    opened.load(backend)
    size = opened.file.tensors["w"].size_bytes
    assert opened.packed_bytes == (size if is_packed else 0)
    assert opened.mapped_bytes == 12 + (0 if is_packed else size)
    assert is_mapped(opened, w) is not is_packed
    if WeightUse.PRODUCT in uses:
        kind_ = gguf.GGMLQuantizationType[kind]
        stored = gguf.quants.dequantize(gguf.quants.quantize(values, kind_), kind_)
        x = floats(*shape[:-2], 3, shape[-1], seed=1)
        expected = x @ np.swapaxes(stored, -1, -2)
        scale = np.abs(expected).max()
        assert np.abs(product(backend, w, x) - expected).max() < 0.03 * scale


def test_weights_are_marked_as_weights(backend: Backend, weights: Callable[..., Any]) -> None:
    opened = weights(w=floats(4, 32))
    w = opened.use("w", WeightUse.PRODUCT)
    opened.load(backend)
    usage = gg.ggml_backend_buffer_get_usage(w.pointer.contents.buffer)
    assert usage == gg.GGML_BACKEND_BUFFER_USAGE_WEIGHTS


def test_a_file_without_used_tensors_loads(backend: Backend, weights: Callable[..., Any]) -> None:
    seen: list[Any] = []
    weights(w=floats(4, 32)).load(backend, progress=seen.append)
    assert seen[-1] == 1.0


# Progress and cancelling

MANY = {f"w{index}": (floats(8, 64, seed=index), "Q4_0") for index in range(6)}


@pytest.mark.parametrize("plain", [True, False])
def test_progress_only_grows_and_ends_at_one(
    backend: Backend, weights: Callable[..., Any], plain: bool
) -> None:
    opened = weights(**MANY, **({"norm": floats(64)} if plain else {}))
    for name in opened.unused():
        opened.use(name, WeightUse.ELEMENTS if name == "norm" else WeightUse.PRODUCT)
    seen: list[Any] = []
    opened.load(backend, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert all(0 <= part <= 1 for part in seen)
    assert opened.mapped_bytes + opened.packed_bytes == sum(
        info.size_bytes for info in opened.file.tensors.values()
    )


@pytest.mark.parametrize("allowed", [0, 1, 3])
@pytest.mark.usefixtures("packs")
def test_cancelling_ends_the_load_before_the_next_tensor(
    backend: Backend, weights: Callable[..., Any], allowed: int
) -> None:
    opened = weights(**MANY)
    for name in opened.unused():
        opened.use(name, WeightUse.PRODUCT)
    asked: list[int] = []
    seen: list[Any] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > allowed

    with pytest.raises(LoadCancelledError, match="cancelled"):
        opened.load(backend, progress=seen.append, cancelled=cancelled)
    assert 1.0 not in seen
    assert opened.packed_bytes <= allowed * 8 * 2 * 18


def test_a_load_without_packing_can_be_cancelled_too(
    backend: Backend, weights: Callable[..., Any]
) -> None:
    opened = weights(norm=floats(64))
    opened.use("norm", WeightUse.ELEMENTS)
    with pytest.raises(LoadCancelledError):
        opened.load(backend, cancelled=lambda: True)


def test_an_error_in_the_callers_progress_reaches_the_caller(
    backend: Backend, weights: Callable[..., Any]
) -> None:
    opened = weights(**MANY)
    for name in opened.unused():
        opened.use(name, WeightUse.PRODUCT)

    def progress(part: Any) -> None:
        if part > 0.3:
            raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        opened.load(backend, progress=progress)


# Files and memory that fail


def test_a_file_cut_between_its_header_and_its_load_is_refused(
    backend: Backend, weights: Callable[..., Any]
) -> None:
    opened = weights(matrix=floats(64, 64))
    opened.use("matrix", WeightUse.PRODUCT)
    path = opened.file.path
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match="file: became shorter"):
        opened.load(backend)


def test_a_file_emptied_between_its_header_and_its_load_is_refused(
    backend: Backend, weights: Callable[..., Any]
) -> None:
    opened = weights(matrix=floats(4, 4))
    opened.use("matrix", WeightUse.PRODUCT)
    opened.file.path.write_bytes(b"")
    with pytest.raises(ModelFileError, match="file: became shorter"):
        opened.load(backend)


def test_a_file_removed_between_its_header_and_its_load_is_named(
    backend: Backend, weights: Callable[..., Any]
) -> None:
    opened = weights(matrix=floats(4, 4))
    opened.file.path.unlink()
    with pytest.raises(ModelFileError, match="cannot be opened"):
        opened.load(backend)


@pytest.mark.seed("S6", "S41")
@pytest.mark.usefixtures("packs")
def test_no_memory_for_packed_weights_is_reported_with_the_number(
    backend: Backend, weights: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = weights(**MANY)
    for name in opened.unused():
        opened.use(name, WeightUse.PRODUCT)
    real = gg.ggml_backend_buft_alloc_buffer
    monkeypatch.setattr(
        gg, "ggml_backend_buft_alloc_buffer", lambda kind, size: None if size else real(kind, size)
    )
    with pytest.raises(OutOfMemoryError, match=r"no memory for weights on CPU_REPACK: \d+ bytes"):
        opened.load(backend)


def test_headers_that_find_no_memory_are_reported(
    weights: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = weights(w=floats(4)).file
    monkeypatch.setattr(gg, "ggml_init", lambda *_: None)
    with pytest.raises(OutOfMemoryError, match="headers of 1 tensors"):
        Weights(file)


def test_closing_frees_every_buffer_once(
    backend: Backend, weights: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = []
    opened = weights(**MANY, norm=floats(64))
    for name in opened.unused():
        opened.use(name, WeightUse.ELEMENTS if name == "norm" else WeightUse.PRODUCT)
    opened.load(backend)
    real = gg.ggml_backend_buffer_free
    monkeypatch.setattr(
        gg, "ggml_backend_buffer_free", lambda buffer: (freed.append(buffer), real(buffer))
    )
    opened.close()
    opened.close()
    assert len(freed) == len(set(freed)) >= 1


# ggml's log


def test_ggmls_own_lines_come_out_of_the_log(
    backend: Backend, weights: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    opened = weights(**MANY)
    for name in opened.unused():
        opened.use(name, WeightUse.PRODUCT)
    with caplog.at_level(logging.DEBUG, "tampu.ml"):
        opened.load(backend)
    assert all(record.levelno < logging.WARNING for record in caplog.records)
    assert all(not record.getMessage().endswith("\n") for record in caplog.records)
