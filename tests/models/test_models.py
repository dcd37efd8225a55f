"""The architectures against NumPy, on tiny random models."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.graphs import integers
from support.reference import Reference
from support.running import TinyModel, load_tiny, relative_error
from support.tiny_model import Tiny, tiny_weights

from tampu.kvcache import AttentionKind, Segment
from tampu.ml import Backend, GGMLType
from tampu.ml.library import gg
from tampu.nn import Batch
from tampu.runner.step_inputs import StepInputs

FUSED, PLAIN, MIXED, _ = AttentionKind
TEXT = [1, 259, 286, 264, 7, 7, 300, 12, 286, 264, 299, 3, 310, 259, 286, 264, 288, 2, 17, 100]

FIRST = np.arange(20, dtype=np.int32)

LLAMA = Tiny(layers=2)
RECIPES = {
    "llama": LLAMA,
    "llama with equal heads": Tiny(kv_heads=4),
    "llama with heads unlike its embedding": Tiny(embedding=40, heads=4, head_dim=24),
    "llama with one head for all keys": Tiny(heads=6, kv_heads=1, head_dim=8),
    "llama with its embedding as its head": Tiny(tied=True),
    "llama with biases": Tiny(biases=True),
    "llama with RoPE factors": Tiny(factors=True),
    "llama with part of each head rotated": Tiny(keys={"rope.dimension_count": 8}),
    "llama without the number of key heads": Tiny(
        kv_heads=4, keys={"attention.head_count_kv": None}
    ),
    "llama without the rotary base": Tiny(keys={"rope.freq_base": None}),
    "llama without the head size": Tiny(head_dim=8, keys={"attention.key_length": None}),
    "mistral with a window": Tiny(keys={"attention.sliding_window": 5}),
    "qwen2": Tiny(architecture="qwen2", biases=True),
    "qwen3": Tiny(architecture="qwen3", query_norms=True, tied=True),
    "gemma3": Tiny(architecture="gemma3", layers=7, tied=True, rope_base=1e6),
    "gemma3 with another period": Tiny(
        architecture="gemma3", layers=3, tied=True, keys={"attention.sliding_window_pattern": 2}
    ),
}


@pytest.fixture
def load(backend: Backend, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made = []

    def load(tiny: Tiny = LLAMA, **options: Any) -> TinyModel:
        made.append(load_tiny(backend, tmp_path, tiny, **options))
        return made[-1]

    yield load
    for each in made:
        each.close()


@pytest.mark.seed("S24", "S25", "S26", "S72", "S73")
@pytest.mark.parametrize("kind", [FUSED, PLAIN])
@pytest.mark.parametrize("name", RECIPES)
def test_the_logits_are_those_of_numpy(
    load: Callable[..., Any], name: str, kind: AttentionKind
) -> None:
    tiny = RECIPES[name]
    expected = Reference(tiny)(TEXT)
    found = load(tiny, attention=kind).logits(TEXT)
    limit = 5e-3 if tiny.is_gemma else 1e-5  # ggml's GELU is a table in half precision
    assert relative_error(found, expected) < limit


@pytest.mark.seed("S26")
def test_the_output_projection_takes_heads_times_head_size(load: Callable[..., Any]) -> None:
    tiny = Tiny(embedding=40, heads=4, head_dim=24)
    assert tiny_weights(tiny)["blk.0.attn_output.weight"].shape == (40, 96)
    model = load(tiny).model
    assert model.layers[0].attention.output.weight.shape == (40, 96)
    assert model.options.head_dim == 24


# One result, whatever the way


@pytest.mark.seed("S73")
@pytest.mark.parametrize("name", ["llama", "mistral with a window", "gemma3"])
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_the_logits_do_not_depend_on_the_batches(
    load: Callable[..., Any], name: str, chunk: int
) -> None:
    model = load(RECIPES[name], attention=MIXED)
    whole = model.logits(TEXT)
    assert relative_error(model.logits(TEXT, chunk=chunk), whole) < 1e-4


@pytest.mark.seed("S73", "S74")
def test_the_logits_do_not_depend_on_flash_attention(load: Callable[..., Any]) -> None:
    text = TEXT * 5  # more than the fused operation computes row by row
    found = {kind: load(attention=kind).logits(text) for kind in AttentionKind}
    assert relative_error(found[FUSED], found[PLAIN]) < 1e-4
    assert relative_error(found[MIXED], found[PLAIN]) < 1e-4


@pytest.mark.parametrize(("cache_type", "limit"), [("f16", 5e-3), ("q8_0", 3e-2), ("q4_0", 0.4)])
def test_the_logits_depend_little_on_the_type_of_the_cache(
    load: Callable[..., Any], cache_type: str, limit: float
) -> None:
    tiny = Tiny(head_dim=32)
    exact = load(tiny).logits(TEXT)
    assert relative_error(load(tiny, cache_type=cache_type).logits(TEXT), exact) < limit


@pytest.mark.seed("S78")
@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("name", ["llama", "mistral with a window", "gemma3"])
def test_sequences_in_a_batch_do_not_attend_to_each_other(
    load: Callable[..., Any], name: str, kind: AttentionKind
) -> None:
    model = load(RECIPES[name], attention=kind)
    first, second = TEXT[:9], TEXT[11:]
    alone = [model.logits(first), model.logits(second)]
    cells = [range(20, 20 + len(first)), range(60, 60 - len(second), -1)]
    together = model.step([(first, cells[0], 0), (second, cells[1], 0)])
    for found, expected in zip(together, alone, strict=True):
        assert relative_error(found, expected) < 1e-4


@pytest.mark.seed("S79")
def test_logits_do_not_depend_on_the_cells_of_a_sequence(load: Callable[..., Any]) -> None:
    model = load(cells=1024)
    expected = model.logits(TEXT)
    scattered = np.random.default_rng(0).permutation(1024)[: len(TEXT)].tolist()
    model.step([(TEXT[:12], scattered[:12], 0)])
    (found,) = model.step([(TEXT, scattered, 12)])
    assert relative_error(found, expected[12:]) < 1e-4


def test_a_shared_prefix_is_read_by_both(load: Callable[..., Any]) -> None:
    model = load()
    expected = [model.logits([*TEXT[:10], *end]) for end in ([5, 6], [7, 8, 9])]
    model.step([(TEXT[:10], range(10), 0)])
    parts = [
        ([*TEXT[:10], 5, 6], [*range(10), 50, 51], 10),
        ([*TEXT[:10], 7, 8, 9], [*range(10), 52, 53, 54], 10),
    ]
    for found, alone in zip(model.step(parts), expected, strict=True):
        assert relative_error(found, alone[10:]) < 1e-4


def test_the_hidden_states_come_before_the_head(load: Callable[..., Any]) -> None:
    model = load()
    (hidden,) = model.step([(TEXT, range(len(TEXT)), 0)], logits=False)
    assert hidden.shape == (len(TEXT), 32)
    head = tiny_weights(LLAMA)["output.weight"]
    assert relative_error(hidden @ head.T, model.logits(TEXT)) < 1e-4


# Graphs are built from shapes


@pytest.mark.seed("S27", "S28", "S29", "S30")
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_a_graph_is_built_before_any_token_is_known(
    backend: Backend, load: Callable[..., Any], name: str
) -> None:
    loaded = load(RECIPES[name])
    context = backend.context()
    inputs = [context.input(label, (3,), GGMLType.I32) for label in ("t", "p", "o")]
    cells = np.stack([FIRST[:3]] * len(loaded.cache.specs))
    step = loaded.cache.step([Segment(cells, 0)])
    graph = loaded.cache.build(context, 3, step.views)
    hidden = loaded.model.hidden(Batch(inputs[0], inputs[1], inputs[2]), graph.layers)
    logits = context.output(loaded.model.head(hidden))
    assert not any(tensor.pointer.contents.data for tensor in inputs)
    for tokens in ([1, 5, 9], [2, 5, 300]):
        arrays = [integers(*tokens), FIRST[:3], FIRST[:3], *step.arrays]
        data = list(zip([*inputs, *graph.inputs], arrays, strict=True))
        found = backend.compute(context, data, [logits]).outputs[0]
        assert relative_error(found, loaded.logits(tokens)) < 1e-5
    context.close()


@pytest.mark.seed("S15")
def test_the_graph_of_a_text_has_no_image_operations(
    backend: Backend, load: Callable[..., Any]
) -> None:
    loaded = load(RECIPES["gemma3"])
    context = backend.context()
    inputs = [context.input("x", (3,), GGMLType.I32) for _ in range(3)]
    spans = next(loaded.cache.views_by_fill(3))
    graph = loaded.cache.build(context, 3, spans)
    context.output(
        loaded.model.head(loaded.model.hidden(Batch(inputs[0], inputs[1], inputs[2]), graph.layers))
    )
    count = gg.ggml_graph_n_nodes(context.graph)
    names = {
        gg.ggml_op_name(gg.ggml_graph_node(context.graph, i).contents.op).decode()
        for i in range(count)
    }
    assert names.isdisjoint({"IM2COL", "CONV_2D", "POOL_2D", "UPSCALE"})
    assert {"GET_ROWS", "MUL_MAT", "SET_ROWS"} <= names
    context.close()


@pytest.mark.parametrize("outputs", [[0], [4], [1, 3], [4, 0]])
def test_only_the_requested_rows_are_returned(load: Callable[..., Any], outputs: list[int]) -> None:
    loaded = load()
    expected = loaded.logits(TEXT[:5])
    step = StepInputs(
        integers(*TEXT[:5]), FIRST[:5], integers(*outputs), [Segment(FIRST[None, :5], 0)]
    )
    found = loaded.graphs.submit(step).result().outputs[0]
    assert relative_error(found, expected[outputs]) < 1e-5
