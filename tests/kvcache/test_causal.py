"""Keys and values of a batch: rows written, cells read, and the tensors of both."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import floats, integers
from support.reference import softmax

from tampu.errors import OutOfMemoryError, RequestError, ShapeError
from tampu.kvcache import (
    AttentionKind,
    Cache,
    CacheSize,
    CellRange,
    KVCacheSpec,
    Segment,
    layer_bytes,
)
from tampu.kvcache.storage import PADDING
from tampu.ml import Backend, GGMLType
from tampu.ml.library import gg
from tampu.nn import LayerShape, attention

FUSED, PLAIN, MIXED, _ = AttentionKind
HEADS = LayerShape(2, 32)


def segment(cells: str, start: int) -> Segment:
    """Write the cells of a sequence as a text: "0 1 2" is its tokens' cells in order."""
    return Segment(np.array([[*map(int, cells.split())]] * 4, np.int32), start)


def rows_of(mask: Any) -> list[Any]:
    """Return a mask as text: a row for each token, x where it attends."""
    assert mask.dtype == np.float16
    assert set(np.unique(mask)) <= {np.float16(0), np.float16(-np.inf)}
    return ["".join("x" if cell == 0 else "." for cell in row) for row in mask]


# What a step needs


@pytest.fixture
def cache(backend: Backend) -> Iterator[Callable[..., Any]]:
    """Make caches; they are closed at the end."""
    made = []

    def make(
        shapes: list[Any] | tuple[LayerShape] = (HEADS,),
        cells: int = PADDING,
        type_name: str = "f32",
        attention: AttentionKind = FUSED,
    ) -> Cache:
        size = CacheSize(1, cells, cells)
        made.append(Cache(backend, list(shapes), size, key_type=type_name, attention=attention))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.seed("S72")
@pytest.mark.parametrize(
    ("segments", "start", "length"),
    [
        ([segment("0", 0)], 0, 256),
        ([segment("0 255", 0)], 0, 256),
        ([segment("0 256", 0)], 0, 512),
        ([segment("300 511", 0)], 256, 256),
        ([segment("3", 0), segment("700 1", 0)], 0, 768),
    ],
)
def test_the_range_of_cells_is_padded_so_that_graphs_are_reused(
    cache: Callable[..., Any], segments: list[Any], start: int, length: int
) -> None:
    assert cache(cells=1000).step(segments).views == (CellRange(start, length),)


@pytest.mark.parametrize(
    ("last", "cells", "length"),
    [
        (1023, 9000, 1024),
        (1024, 9000, 1280),
        (2100, 9000, 2560),
        (4099, 9000, 5120),
        (4099, 4352, 4352),
        (8300, 9000, 9216),
    ],
)
def test_the_range_of_several_sequences_has_fewer_lengths(
    cache: Callable[..., Any], last: int, cells: int, length: int
) -> None:
    made = cache(cells=cells)
    assert made.step([segment("3", 0), segment(f"{last}", 0)]).views == (CellRange(0, length),)
    alone = CellRange(0, (last // PADDING + 1) * PADDING)
    assert made.step([segment(f"3 {last}", 0)]).views == (alone,)
    plain = cache(cells=cells, attention=AttentionKind.PLAIN)
    assert plain.step([segment("3", 0), segment(f"{last}", 0)]).views == (alone,)


def test_with_a_window_only_visible_cells_are_read(cache: Callable[..., Any]) -> None:
    made = cache([LayerShape(1, 32, 2), LayerShape(1, 32)], cells=2000)
    assert made.step([segment("0 300 600", 2)]).views == (CellRange(256, 512), CellRange(0, 768))


@pytest.mark.parametrize(("asked", "cells"), [(1, 256), (256, 256), (257, 512), (1000, 1024)])
def test_the_number_of_cells_is_padded(cache: Callable[..., Any], asked: int, cells: int) -> None:
    assert [storage.cells for storage in cache(cells=asked).storages] == [cells]


@pytest.mark.parametrize(
    ("spec", "cells"),
    [
        (KVCacheSpec(), 3 * 4096),
        (KVCacheSpec(window=512), 3 * 1024 + 256),
        (KVCacheSpec(window=100), 3 * 512 + 256),
        (KVCacheSpec(chunk=1000), 3 * 2000 + 208 + 256 - 120),
        (KVCacheSpec(window=5000), 3 * 4096),
    ],
)
def test_a_window_needs_fewer_cells(spec: KVCacheSpec, cells: int) -> None:
    found = CacheSize(slots=3, context=4096, batch=208).cells(spec)
    assert found % PADDING == 0
    assert abs(found - cells) < PADDING


def test_a_steps_rows_are_the_cells_of_its_tokens(cache: Callable[..., Any]) -> None:
    arrays = cache().step([segment("0 1 7", 1), segment("5 3", 0)]).arrays
    assert len(arrays) == 2
    assert arrays[0].dtype == np.int64
    assert arrays[0].tolist() == [1, 7, 5, 3]
    assert arrays[1].shape == (4, 256)


def test_transposed_values_are_written_one_by_one(cache: Callable[..., Any]) -> None:
    shapes = [LayerShape(1, 2), LayerShape(2, 2), LayerShape(1, 4), LayerShape(1, 2)]
    arrays = cache(shapes, attention=PLAIN).step([segment("9 4", 0)]).arrays
    assert [array.shape for array in arrays] == [(2,), (4,), (8,), (2, 256)]
    assert arrays[1].tolist() == [9, 9 + 256, 4, 4 + 256]
    assert arrays[2].tolist() == [9 + 256 * i for i in range(4)] + [4 + 256 * i for i in range(4)]


def test_layers_with_the_same_window_share_rows_and_mask(cache: Callable[..., Any]) -> None:
    shapes = [LayerShape(1, 32, 2), LayerShape(1, 32, None), LayerShape(1, 32, 2)]
    made = cache(shapes)
    assert made.specs == [KVCacheSpec(window=2), KVCacheSpec()]
    arrays = made.step([segment("0 1 2", 0)]).arrays
    assert len(arrays) == 4
    assert [row[:3] for row in rows_of(arrays[1])] == ["x..", "xx.", ".xx"]
    assert [row[:3] for row in rows_of(arrays[3])] == ["x..", "xx.", "xxx"]


@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("shapes", [[HEADS], [LayerShape(1, 32, 2), HEADS]])
def test_the_arrays_of_a_step_match_the_inputs_of_a_graph(
    backend: Backend, cache: Callable[..., Any], kind: AttentionKind, shapes: list[LayerShape]
) -> None:
    made, context = cache(shapes, attention=kind), backend.context()
    step = made.step([segment("0 1", 0), segment("9", 0)])
    arrays = step.arrays
    graph = made.build(context, 3, step.views)
    assert [tensor.shape for tensor in graph.inputs] == [array.shape for array in arrays]
    assert [tensor.size_bytes for tensor in graph.inputs] == [array.nbytes for array in arrays]
    assert len(graph.layers) == len(shapes)
    context.close()


# Writing and view


class Steps:
    """Runs batches through one layer of a cache."""

    def __init__(self, backend: Backend, cache: Any, layer: int = 0) -> None:
        self.backend, self.cache, self.layer = backend, cache, layer
        self.shape = HEADS

    def __call__(self, keys: Any, values: Any, segments: Any, build: Any) -> list[npt.NDArray[Any]]:
        """Store keys and values (tokens, kv_heads, head_dim) and return what `build` computes."""
        context = self.backend.context()
        k = context.input("k", keys.shape, GGMLType.F32)
        v = context.input("v", values.shape, GGMLType.F32)
        step = self.cache.step(segments)
        graph = self.cache.build(context, len(keys), step.views)
        outputs = [context.output(tensor) for tensor in build(graph.layers[self.layer], k, v)]
        data = [(k, keys), (v, values), *zip(graph.inputs, step.arrays, strict=True)]
        found = self.backend.compute(context, data, outputs).outputs
        context.close()
        return found

    def store(
        self, keys: npt.NDArray[np.float32], values: npt.NDArray[np.float32], segments: list[Any]
    ) -> list[npt.NDArray[Any]]:
        """Return the keys and the values (kv_heads, history, head_dim) after storing."""

        def build(layer: Any, k: Any, v: Any) -> list[Any]:
            history = layer.update(k, v)
            assert history.is_transposed is (self.cache.attention is not FUSED)
            values = history.values.transpose(0, 2, 1) if history.is_transposed else history.values
            return [x.cast(GGMLType.F32) for x in (history.keys, values)]

        return self(keys, values, segments, build)


ERRORS = {"f32": 0, "f16": 2e-3, "q8_0": 3e-2, "q4_0": 0.5}
KINDS = [(FUSED, "f32"), (FUSED, "f16"), (FUSED, "q8_0"), (FUSED, "q4_0")]
KINDS += [(PLAIN, "f32"), (PLAIN, "f16"), (MIXED, "f16")]


@pytest.mark.seed("S72")
@pytest.mark.parametrize(("kind", "type_name"), KINDS)
def test_a_batch_reads_its_own_and_earlier_rows(
    backend: Backend, cache: Callable[..., Any], kind: AttentionKind, type_name: str
) -> None:
    steps = Steps(backend, cache(type_name=type_name, attention=kind))
    expected = {"keys": np.zeros((2, 256, 32)), "values": np.zeros((2, 256, 32))}
    batches = [
        ([segment("0 1 2", 0)], [0, 1, 2]),
        ([segment("0 1 2 9", 3), segment("255 4", 0)], [9, 255, 4]),
        ([segment("1 2", 0)], [1, 2]),  # cells that are used again
    ]
    for seed, (segments, cells) in enumerate(batches):
        k, v = floats(len(cells), 2, 32, seed=seed), floats(len(cells), 2, 32, seed=seed + 50)
        expected["keys"][:, cells] = k.transpose(1, 0, 2)
        expected["values"][:, cells] = v.transpose(1, 0, 2)
        keys, values = steps.store(k, v, segments)
        np.testing.assert_allclose(keys, expected["keys"], atol=ERRORS[type_name])
        np.testing.assert_allclose(values, expected["values"], atol=ERRORS[type_name])


def test_layers_do_not_share_their_rows(backend: Backend, cache: Callable[..., Any]) -> None:
    made = cache([HEADS, HEADS])
    first, second = Steps(backend, made, 0), Steps(backend, made, 1)
    k, v = floats(2, 2, 32), floats(2, 2, 32, seed=1)
    first.store(k, v, [segment("0 1", 0)])
    keys, _ = second.store(k * 2, v, [segment("0 3", 0)])
    assert np.array_equal(keys[:, 0], k[0] * 2)
    assert not keys[:, 1].any()


@pytest.mark.seed("S73", "S78")
@pytest.mark.parametrize("tokens", [1, 5, 70])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("kind", "type_name"), KINDS[:3] + KINDS[4:])
def test_attention_over_the_cache_is_softmax_attention(
    backend: Backend,
    cache: Callable[..., Any],
    kind: AttentionKind,
    type_name: str,
    window: int | None,
    tokens: int,
) -> None:
    made = cache([LayerShape(2, 32, window)], type_name=type_name, attention=kind)
    steps = Steps(backend, made)
    before, total = 4, 4 + tokens
    k, v = floats(total, 2, 32), floats(total, 2, 32, seed=1)
    q = floats(tokens, 4, 32, seed=2)
    cells = integers(*reversed(range(10, 10 + total)))
    steps.store(k[:before], v[:before], [Segment(cells[None, :before], 0)])

    def build(layer: Any, keys: Any, values: Any) -> list[Any]:
        queries = layer.context.host.from_floats(q, q.shape)
        view = queries.strided(q.shape, queries.strides[:-1], context=layer.context)
        return [attention(view, keys, values, layer, scale=0.2)]

    (found,) = steps(k[before:], v[before:], [Segment(cells[None], before)], build)
    ago = np.arange(before, total)[:, None] - np.arange(total)
    is_hidden = (ago < 0) | (ago >= (window or total))
    scores = np.einsum("thd,shd->hts", q, k.repeat(2, axis=1)) * 0.2
    mixed = np.einsum("hts,shd->thd", softmax(np.where(is_hidden, -np.inf, scores)), v.repeat(2, 1))
    assert found.shape == (tokens, 4 * 32)
    atol = {"f32": 1e-4, "f16": 1e-2, "q8_0": 5e-2}[type_name]
    np.testing.assert_allclose(found, mixed.reshape(tokens, -1), atol=atol)


# What cannot be


def test_an_unknown_type_is_refused_with_the_known_ones(cache: Callable[..., Any]) -> None:
    with pytest.raises(RequestError, match="'q5_1' is unknown; known: f16, f32, q8_0, q4_0"):
        cache(type_name="q5_1")


@pytest.mark.seed("S74")
@pytest.mark.parametrize("kind", [PLAIN, MIXED])
@pytest.mark.parametrize("type_name", ["q8_0", "q4_0"])
def test_a_quantized_cache_needs_flash_attention(
    cache: Callable[..., Any], kind: AttentionKind, type_name: str
) -> None:
    with pytest.raises(RequestError, match=f"{type_name} needs flash attention"):
        cache(type_name=type_name, attention=kind)


def test_heads_must_fill_whole_blocks_of_a_quantized_cache(cache: Callable[..., Any]) -> None:
    with pytest.raises(ShapeError, match="heads of 40 features do not fill Q8_0"):
        cache([LayerShape(4, 40)], type_name="q8_0")


@pytest.mark.parametrize(
    "layer",
    [
        LayerShape(2, 32, shared_layer=2),  # itself
        LayerShape(2, 32, shared_layer=7),
        LayerShape(2, 32, shared_layer=1),  # which shares another's
        LayerShape(1, 32, shared_layer=0),
        LayerShape(2, 32, 5, shared_layer=0),  # whose rows lie in other cells
    ],
)
def test_a_layer_shares_only_what_an_earlier_one_of_its_shape_stores(
    cache: Callable[..., Any], layer: LayerShape
) -> None:
    with pytest.raises(ShapeError, match=r"layer 2 cannot share the cache of layer \d"):
        cache([HEADS, LayerShape(2, 32, shared_layer=0), layer])


def test_a_layer_stores_only_its_requested_shape(
    backend: Backend, cache: Callable[..., Any]
) -> None:
    shapes = [HEADS, LayerShape(2, 32, shared_layer=0), LayerShape(1, 32, latent_rank=16)]
    context = backend.context()
    layers = cache(shapes).build(context, 2, [CellRange(0, 256)]).layers
    keys = context.input("k", (2, 2, 32), GGMLType.F32)
    single = context.input("k", (2, 1, 32), GGMLType.F32)
    for layer, wrong in zip(layers, [(keys, None), (keys, keys), (single, single)], strict=True):
        with pytest.raises(ShapeError, match="not those that it asked for"):
            layer.update(*wrong)
    context.close()


@pytest.mark.seed("S41")
def test_a_failed_allocation_leaves_nothing_allocated(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    live: list[Any] = []
    real_alloc, real_free = gg.ggml_backend_buft_alloc_buffer, gg.ggml_backend_buffer_free

    def alloc(kind: Any, size: int) -> int | None:
        if len(live) == 3:
            return None
        live.append(int(real_alloc(kind, size)))
        return live[-1]

    monkeypatch.setattr(gg, "ggml_backend_buft_alloc_buffer", alloc)
    monkeypatch.setattr(
        gg, "ggml_backend_buffer_free", lambda buffer: (live.remove(buffer), real_free(buffer))
    )
    with pytest.raises(OutOfMemoryError, match="no memory for a tensor"):
        Cache(backend, [HEADS, HEADS], CacheSize(1, 256, 256))
    assert live == []


def test_keys_of_the_wrong_shape_are_refused(backend: Backend, cache: Callable[..., Any]) -> None:
    context = backend.context()
    (layer,) = cache().build(context, 2, [CellRange(0, 256)]).layers
    right = context.input("k", (2, 2, 32), GGMLType.F32)
    for shape in [(3, 2, 32), (2, 1, 32), (2, 2, 16)]:
        wrong = context.input("k", shape, GGMLType.F32)
        with pytest.raises(ShapeError):
            layer.update(wrong, right)
        with pytest.raises(ShapeError):
            layer.update(right, wrong)
    context.close()


@pytest.mark.parametrize(
    ("type_name", "size"), [("f32", 1024), ("f16", 512), ("q8_0", 272), ("q4_0", 144), ("f8", 0)]
)
def test_the_size_of_a_cache_is_computed_in_advance(
    cache: Callable[..., Any], type_name: str, size: int
) -> None:
    shapes = [HEADS, HEADS]
    assert sum(layer_bytes(shapes, CacheSize(1, 256, 256), type_name)) == size * 256
    if size:
        made = cache(shapes, cells=PADDING, type_name=type_name)
        assert made.size_bytes >= size * PADDING
        made.close()
        made.close()
