"""Models whose layers are on several devices: two stand-ins and the processor."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.devices import StandIn
from support.engines import GREEDY, rest
from support.fork_server import FORK_SERVER
from support.tiny_adapter import write_tiny_adapter
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import Tiny, tiny_weights, write_mixture, write_tiny

from tampu.engine import model_loader
from tampu.engine.engine import Engine
from tampu.engine.load_options import LoadOptions
from tampu.errors import ComputeError, OutOfMemoryError
from tampu.kvcache import CellRange
from tampu.ml import Backend
from tampu.ml.device_map import Offload
from tampu.ml.devices import Device
from tampu.ml.library import gg
from tampu.runner.graph_shape import GraphShape
from tampu.worker.main import load_model
from tampu.worker.protocol import Load

pytestmark = pytest.mark.slow

TEXT = "the cat is on the list and the dog is in the list"
SMALL: dict[str, Any] = {
    "context": 512,
    "slots": 2,
    "threads": 1,
    "batch": 64,
    "spec_type": "none",
}  # steps are counted
LAYERS = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("m") / "tiny.gguf", Tiny(layers=LAYERS, factors=True))


def answers(engine: Engine) -> tuple[Any, list[str], Any]:
    """What an engine says, one request alone, two at once, and a long prompt."""
    alone = engine.generate(TEXT, max_tokens=12, **GREEDY).tokens
    streams = [engine.stream(text, max_tokens=12, **GREEDY) for text in ("the", TEXT[4:])]
    both = ["".join(getattr(event, "text", "") for event in stream) for stream in streams]
    long = engine.generate([5, 6, 7] * 90, max_tokens=6, **GREEDY).tokens
    return alone, both, long


@pytest.fixture(scope="module")
def expected(path: Path) -> tuple[Any, npt.NDArray[np.float32]]:
    with Engine.load(path, offload=Offload(0), **SMALL) as engine:
        return answers(engine), engine.logits(TEXT)


def places(engine: Engine) -> str:
    """The device of each layer, "-" for the processor."""
    device_map = engine.runner.graphs.backend.device_map
    found = [device_map.of_layer(n) for n in range(LAYERS + 1)]
    return "".join("-" if each is None else str(each.index) for each in found)


@pytest.mark.seed("S75")
@pytest.mark.parametrize(
    ("offload", "layers"),
    [(Offload(0), "-----"), (Offload(1), "---0-"), (Offload(3), "-000-"), (Offload(5), "00000"),
     (None, "00000"), (Offload(main=1), "11111"), (Offload(5, split=(1, 1)), "00011"),
     (Offload(4, split=(1, 3)), "0111-")],
)  # fmt: skip
def test_offloaded_layers_are_on_their_devices_and_give_the_same_logits(
    path: Path,
    gpus: Sequence[StandIn | Device],
    expected: tuple[Any, npt.NDArray[np.float32]],
    offload: Offload | None,
    layers: str,
) -> None:
    with Engine.load(path, offload=offload, **SMALL) as engine:
        assert places(engine) == layers
        assert (engine.device_bytes > 0) == (layers != "-----")
        taken = [each.taken for each in gpus if isinstance(each, StandIn)]
        assert not taken or engine.device_bytes == sum(taken)
        assert not taken or [size > 0 for size in taken] == ["0" in layers, "1" in layers]
        assert answers(engine) == expected[0]
        error = np.abs(engine.logits(TEXT) - expected[1]).max() / np.abs(expected[1]).max()
        assert error < 0.02
        rest(engine)


@pytest.mark.seed("S39", "S40")
def test_no_device_memory_is_allocated_after_loading(
    path: Path, devices: tuple[StandIn, StandIn]
) -> None:
    with Engine.load(path, offload=Offload(3, split=(1, 1)), **SMALL) as engine:
        taken = [each.taken for each in devices]
        answers(engine)
        engine.generate([5] * 510, max_tokens=30, **GREEDY)  # the context overflows
        engine.logits([5] * 512)
        assert [each.taken for each in devices] == taken


@pytest.mark.parametrize(
    "options",
    [{"kernels": "off"}, {"kernels": "off", "flash_attention": False}, {"flash_attention": True},
     {"cache_type": "f32"}],
)  # fmt: skip
def test_attention_is_the_same_however_it_is_computed(
    path: Path,
    devices: tuple[StandIn, StandIn],
    expected: tuple[Any, npt.NDArray[np.float32]],
    options: dict[str, Any],
) -> None:
    assert devices
    with Engine.load(path, offload=Offload(3, split=(1, 1)), **SMALL, **options) as engine:
        assert answers(engine) == expected[0]


def operations(engine: Engine, tokens: int) -> Counter[str]:
    """Return how often each of ggml's operations is in the graph of a prompt."""
    graphs = engine.runner.graphs
    shape = GraphShape(tokens, (CellRange(0, 256),), 1, wants_logits=True)
    graph = graphs._builder.build(shape).context
    nodes = [gg.ggml_graph_node(graph.graph, n) for n in range(gg.ggml_graph_n_nodes(graph.graph))]
    found = Counter(gg.ggml_op_name(node.contents.op).decode() for node in nodes)
    graph.close()
    return found


@pytest.mark.parametrize(
    ("offloaded", "factors", "splits"),
    [(LAYERS + 1, False, 1), (LAYERS + 1, True, 1), (3, False, 3)],
)
def test_a_step_goes_to_a_device_once(
    tmp_path: Path, devices: tuple[StandIn, StandIn], offloaded: int, factors: bool, splits: int
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(layers=LAYERS, factors=factors))
    with Engine.load(path, offload=Offload(offloaded), **SMALL) as engine:
        assert devices[0].taken > 0
        for length in (1, 64):  # from 32 tokens on, ggml may send the CPU's layers to a GPU too
            engine.logits([5] * length)
            assert engine.runner.graphs.backend.splits == splits


@pytest.mark.parametrize("model", ["tiny", "demo"])
def test_what_a_greedy_token_copies_and_how_often_graphs_are_planned(
    path: Path, devices: tuple[StandIn, StandIn], model: str
) -> None:
    source = path if model == "tiny" else model
    with Engine.load(source, offload=Offload(99), **SMALL) as engine:
        assert devices[0].taken > 0
        counts, graphs = engine.runner.graphs.backend.counts, engine.runner.graphs

        def steps() -> int:
            return graphs.counts.built + graphs.counts.reused

        def alternate(begin: int) -> None:
            for first in range(begin, begin + 10):  # each reads a prompt, then one token after it
                engine.generate([first] * 40, max_tokens=2, **GREEDY)

        engine.runner.finish_warm_up()
        alternate(10)
        copied, plans, computed = counts.bytes_read, counts.plans, steps()
        built = graphs.counts.built
        alternate(30)
        assert steps() - computed == 20
        assert counts.bytes_read - copied == 20 * 12  # the token, its logit, and the sum of all
        assert counts.plans - plans == graphs.counts.built - built


@pytest.mark.parametrize(
    ("options", "copied"),
    [({"temperature": 0.0}, 12), ({"top_k": 1}, 12), ({}, 4 * (2 * 64 + 1)),
     ({"top_k": 200, "temperature": 3.0}, 4 * (2 * 256 + 1)),
     ({"top_k": 0}, None), ({"temperature": 0.0, "logprobs": True}, None),
     ({"repeat_penalty": 1.3}, None), ({"logit_bias": {5: -1.0}}, None), ({"format": "json"}, None),
     ({"top_n_sigma": 1.5}, None)],
)  # fmt: skip
def test_the_best_logits_give_the_tokens_that_all_of_them_give(
    path: Path,
    gpus: Sequence[StandIn | Device],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    copied: int | None,
) -> None:
    with Engine.load(path, offload=Offload(99), **SMALL) as engine:
        assert gpus
        assert engine.device_bytes > 0
        counts = engine.runner.graphs.backend.counts
        before = counts.bytes_read
        found = [ask(engine, seed, options) for seed in range(3)]
        tokens = sum(len(each) for each in found)
        row = 4 * engine.tokenizer.vocabulary_size
        assert counts.bytes_read - before == tokens * (copied or row)
    monkeypatch.setattr(model_loader, "CANDIDATES", ())
    with Engine.load(path, offload=Offload(99), **SMALL) as engine:
        assert [ask(engine, seed, options) for seed in range(3)] == found


def ask(engine: Engine, seed: int, options: dict[str, Any]) -> list[int]:
    """Return a sampled answer."""
    values = {"max_tokens": 8, "seed": seed, **options}
    return engine.generate(TEXT, ignore_eos="format" not in options, **values).tokens


def test_a_batch_returns_what_its_most_demanding_request_needs(
    path: Path, devices: tuple[StandIn, StandIn]
) -> None:
    with Engine.load(path, offload=Offload(99), **SMALL) as engine:
        assert devices[0].taken > 0
        wanted = [ask(engine, 1, {"top_k": k}) for k in (1, 0)]
        streams = [
            engine.stream(TEXT, max_tokens=8, seed=1, ignore_eos=True, top_k=k) for k in (1, 0)
        ]
        found = [[t for e in stream for t in getattr(e, "tokens", ())] for stream in streams]
    assert found == wanted


def test_nan_in_logits_is_found_though_they_are_not_copied(
    tmp_path: Path, gpus: Sequence[StandIn | Device]
) -> None:
    tiny = Tiny(layers=LAYERS)
    weights = tiny_weights(tiny)
    weights["output.weight"][7] = np.nan
    path = write_tiny(tmp_path / "nan.gguf", tiny, weights=weights)
    with Engine.load(path, offload=Offload(99), **SMALL) as engine:
        assert gpus
        assert engine.device_bytes > 0
        with pytest.raises(ComputeError, match="the largest logit is nan"):
            engine.generate(TEXT, max_tokens=2, **GREEDY)


def test_a_device_reads_the_cache_in_its_own_type(
    path: Path, devices: tuple[StandIn, StandIn]
) -> None:
    options: dict[str, Any] = {**SMALL, "flash_attention": True, "kernels": "off"}
    found = []
    for offload in (Offload(0), Offload(LAYERS + 1)):
        with Engine.load(path, offload=offload, **options) as engine:
            found.append([operations(engine, tokens)["CPY"] for tokens in (32, 64)])
    assert devices[0].taken == 0
    (few, many), on_device = found
    assert many == few + 2 * LAYERS  # the CPU's tiles take F32 only
    assert on_device == [few, few]


def test_devices_compute_batches_of_all_kinds_before_requests_do(
    path: Path, devices: tuple[StandIn, StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers compile their code when it is first needed."""
    assert devices
    computed: list[int] = []
    submit = Backend.submit

    def counted(self: Backend, context: Any, inputs: Any, outputs: Any) -> Any:
        computed.append(len(inputs[0][1]))
        return submit(self, context, inputs, outputs)

    monkeypatch.setattr(Backend, "submit", counted)
    for offload, sizes in (
        (Offload(0), []),
        (Offload(1), [1, 1, 64, 40, 12, 2]),
        (Offload(5), [1, 1, 1, 1, 1, 64, 40, 12, 2]),
    ):
        with Engine.load(path, offload=offload, **SMALL) as engine:
            assert computed == sizes[:1]
            engine.runner.finish_warm_up()
            assert computed == sizes
        computed.clear()


def test_tied_embeddings_are_on_the_device_of_the_output_layer(
    tmp_path: Path, devices: tuple[StandIn, StandIn]
) -> None:
    path = write_tiny(tmp_path / "tied.gguf", Tiny(layers=LAYERS, tied=True))
    with Engine.load(path, offload=Offload(0), **SMALL) as engine:
        wanted = answers(engine)
    with Engine.load(path, offload=Offload(LAYERS + 1), **SMALL) as engine:
        assert answers(engine) == wanted
        assert devices[0].taken > 0


def test_experts_stay_on_the_cpu_if_memory_is_short(
    tmp_path: Path, devices: tuple[StandIn, StandIn]
) -> None:
    path = write_mixture(tmp_path / "mixture.gguf", LAYERS)
    with Engine.load(path, offload=Offload(0), **SMALL) as engine:
        wanted = answers(engine)
    kept = []
    for memory in (16 * 2**20, 2_600_000, 2_000_000):
        devices[0].free = memory
        devices[1].free = 0
        with Engine.load(path, **SMALL) as engine:
            device_map = engine.runner.graphs.backend.device_map
            assert places(engine) == "00000"
            kept.append(len(device_map.cpu_experts))
            assert answers(engine) == wanted
    assert kept[0] == 0 < kept[1] < kept[2]


def test_as_many_layers_are_offloaded_as_fit(
    path: Path, devices: tuple[StandIn, StandIn], expected: tuple[Any, npt.NDArray[np.float32]]
) -> None:
    found = []
    for memory in (900_000, 1_000_000, 1_200_000):
        devices[0].free = devices[0].limit = memory
        devices[1].free = devices[1].limit = 0
        with Engine.load(path, **SMALL) as engine:
            found.append(places(engine).count("0"))
            assert answers(engine) == expected[0]
    assert found == sorted(set(found))


@pytest.mark.seed("S41")
def test_a_device_with_less_memory_than_reported_gets_fewer_layers(
    path: Path,
    devices: tuple[StandIn, StandIn],
    expected: tuple[Any, npt.NDArray[np.float32]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    devices[0].limit = 900_000
    devices[1].free = devices[1].limit = 0
    with caplog.at_level(logging.WARNING), Engine.load(path, **SMALL) as engine:
        assert answers(engine) == expected[0]
        assert places(engine).count("0") < LAYERS + 1
    assert "loading fewer layers on the devices" in caplog.text


@pytest.mark.seed("S6", "S41")
def test_layers_that_do_not_fit_are_refused_and_nothing_stays_allocated(
    path: Path, devices: tuple[StandIn, StandIn]
) -> None:
    for each in devices:
        each.free = each.limit = 500_000
    with pytest.raises(
        OutOfMemoryError, match=r"does not fit on GPU\.\d: weights .* are available"
    ):
        Engine.load(path, offload=Offload(LAYERS + 1), **SMALL)
    for each in devices:  # and what they don't have though they say so
        each.free = 2**30
    with pytest.raises(OutOfMemoryError, match="no memory"):
        Engine.load(path, offload=Offload(LAYERS + 1), **SMALL)


def test_a_cache_of_four_bits_is_as_exact_on_a_gpu(
    tmp_path: Path, gpus: Sequence[StandIn | Device]
) -> None:
    assert gpus
    tiny = Tiny(layers=LAYERS, embedding=64, head_dim=32)  # heads that fill a block of Q4_0
    path = write_tiny(tmp_path / "m", tiny)
    found = []
    for layers, cache in ((0, "f32"), (0, "q4_0"), (LAYERS + 1, "q4_0")):
        options = {**SMALL, "cache_type": cache, "flash_attention": True}
        with Engine.load(path, offload=Offload(layers), **options) as engine:
            found.append(engine.logits(TEXT))
    cpu, gpu = (np.linalg.norm(each - found[0]) for each in found[1:])
    assert 0 < gpu < 1.5 * cpu


@pytest.mark.parametrize("kind", ["shift", "adapter", "experts", "hybrid"])
def test_a_gpu_computes_what_the_cpu_computes(
    tmp_path: Path, gpus: Sequence[StandIn | Device], kind: str, arithmetic: str
) -> None:
    options = {**SMALL, "context": 64 if kind == "shift" else 512}
    plain = write_tiny(tmp_path / "m", Tiny(layers=LAYERS, embedding=64, head_dim=32))
    path = write_mixture(tmp_path / "mixture", LAYERS) if kind == "experts" else plain
    if kind == "hybrid":  # some views of its gates begin at 8 bytes
        path = write_tiny(tmp_path / "hybrid", tiny_hybrid(), weights=hybrid_weights())
    if kind == "adapter":
        options["adapters"] = [(write_tiny_adapter(tmp_path / "a", path), 0.5)]
    with Engine.load(path, offload=Offload(0), **options) as engine:
        wanted = engine.logits(TEXT)
        answer = engine.generate(TEXT, max_tokens=40, **GREEDY).tokens
    kept = 2 if kind == "experts" else 0
    with Engine.load(path, offload=Offload(LAYERS + 1, cpu_experts=kept), **options) as engine:
        first = gpus[0].device if isinstance(gpus[0], StandIn) else gpus[0]
        assert engine.placement.shares[0].name == first.label
        assert engine.placement.shares[-1].experts == tuple(range(kept))
        assert engine.device_bytes > 0
        errors = np.abs(engine.logits(TEXT) - wanted).max(axis=-1) / np.abs(wanted).max()
        # Rounded to F16, other scores of experts are the largest for some of the tokens.
        is_mixed = kind == "experts" and arithmetic == "f16"
        assert (np.median(errors) if is_mixed else errors.max()) < 0.02
        if kind == "shift":
            assert engine.generate(TEXT, max_tokens=40, **GREEDY).tokens == answer


def test_an_offloaded_vision_model_gives_the_same(gpus: Sequence[StandIn | Device]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    question = [{"role": "user", "content": "What is it?", "images": [image]}]
    options: dict[str, Any] = {"context": 256, "threads": 1, "batch": 64}
    with Engine.load("demo", offload=Offload(0), **options) as engine:
        wanted = engine.chat(question, max_tokens=12, temperature=0.0).tokens
    with Engine.load("demo", offload=Offload(99), **options) as engine:
        assert gpus
        assert engine.device_bytes > 0
        assert engine.chat(question, max_tokens=12, temperature=0.0).tokens == wanted


@pytest.mark.seed("S75")
def test_a_worker_reports_its_device_memory(path: Path, devices: tuple[StandIn, StandIn]) -> None:
    options = LoadOptions(context=64, threads=1, gpu_layers=LAYERS + 1, tensor_split=(1.0, 1.0))
    with load_model(Load(str(path), options), lambda _: None, lambda: False, FORK_SERVER) as loaded:
        assert 0 < loaded.facts.device_bytes == sum(each.taken for each in devices)
        assert loaded.facts.memory_bytes > loaded.facts.device_bytes
        assert min(each.taken for each in devices) > 0
    nowhere = LoadOptions(context=64, threads=1, gpu_layers=0)
    with load_model(Load(str(path), nowhere), lambda _: None, lambda: False, FORK_SERVER) as loaded:
        assert loaded.facts.device_bytes == 0


def test_a_model_without_mmap_gives_the_same(
    path: Path, expected: tuple[Any, npt.NDArray[np.float32]]
) -> None:
    with Engine.load(path, use_mmap=False, **SMALL) as engine:
        assert answers(engine) == expected[0]
