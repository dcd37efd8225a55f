"""Which layers go to which device: as asked, by proportion, by memory; what is said if not."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny_gguf import write_gguf

from tampu.engine.fit import Machine, free_on, place, place_embedding, survey
from tampu.engine.memory import Footprint, WeightSizes, weight_sizes
from tampu.errors import OutOfMemoryError, RequestError
from tampu.kvcache import CacheSize
from tampu.ml.device_map import AUTOMATIC, DeviceMap, Offload
from tampu.ml.devices import Device
from tampu.nn import LayerShape
from tampu.store.model_info import read_model_info

MB = 2**20
BLOCKS = 8
CACHE = 2 * 4 * 1024 * 32 * 2  # bytes of a layer: keys and values, heads, cells, features, f16


@pytest.fixture
def footprint(tmp_path: Path) -> Callable[..., Any]:
    """A model of eight layers of 10 MiB, an output layer of 20; experts of 90 if wanted."""
    info = read_model_info(write_gguf(tmp_path / "m.gguf"))

    def make(experts: int = 0, context: int = 1024) -> Footprint:
        weights = WeightSizes(
            5 * MB, (10 * MB,) * BLOCKS + (20 * MB,), (experts * MB,) * BLOCKS + (0,)
        )
        return Footprint(
            info, [LayerShape(4, 32)] * BLOCKS, CacheSize(1, context, 64), ("f16", "f16"), weights
        )

    return make


def machine(*sizes: int, processor: int = 4096) -> Machine:
    devices = tuple(Device(n + 1, "CUDA", n, "gpu", "product") for n in range(len(sizes)))
    available = {each.label: size * MB for each, size in zip(devices, sizes, strict=True)}
    return Machine(devices, {**available, "CPU.0": processor * MB})


def names(device_map: DeviceMap) -> str:
    """The index of each layer's device, "-" for the processor's."""
    found = [device_map.of_layer(n) for n in range(BLOCKS + 1)]
    return "".join("-" if each is None else str(each.index) for each in found)


# As asked


@pytest.mark.seed("S75")
@pytest.mark.parametrize(
    ("count", "layers"),
    [(0, "---------"), (1, "-------0-"), (3, "-----000-"), (8, "00000000-"), (9, "000000000"),
     (99, "000000000")],
)  # fmt: skip
def test_the_last_layers_are_offloaded_with_the_output_layer_last(
    footprint: Callable[..., Any], count: int, layers: str
) -> None:
    assert names(place(footprint(), machine(1000), Offload(count))) == layers


@pytest.mark.seed("S75")
@pytest.mark.parametrize(
    ("count", "split", "layers"),
    [(9, (1, 1), "000001111"), (9, (2, 1), "000000111"), (8, (1, 3), "00111111-"),
     (4, (1, 1), "----0011-"), (9, (0, 1), "111111111"), (9, (1, 0), "000000000"),
     (9, (0.5, 0.5), "000001111")],
)  # fmt: skip
def test_layers_are_split_in_proportion(
    footprint: Callable[..., Any], count: int, split: tuple[float, ...], layers: str
) -> None:
    assert names(place(footprint(), machine(1000, 1000), Offload(count, split=split))) == layers


@pytest.mark.seed("S75")
@pytest.mark.parametrize(
    ("main", "layers"), [(0, "000000000"), (1, "111111111"), (None, "111111111")]
)
def test_the_main_device_is_filled_first_by_default_the_largest(
    footprint: Callable[..., Any], main: int | None, layers: str
) -> None:
    assert names(place(footprint(), machine(500, 600), Offload(main=main))) == layers


def test_layers_that_do_not_fit_the_main_device_go_to_the_next(
    footprint: Callable[..., Any],
) -> None:
    found = place(footprint(), machine(90, 90), Offload(9, main=1))
    assert names(found) == "111110000"


@pytest.mark.parametrize(
    ("asked", "match"),
    [(Offload(main=2), r"main_gpu 2 does not exist: the devices are CUDA\.0, CUDA\.1"),
     (Offload(split=(1, 1, 1)), r"tensor_split must have 2 numbers, .* not 3: .* CUDA\.0"),
     (Offload(split=(1,)), r"tensor_split must have 2 numbers, .* not 1: .* CUDA\.0, CUDA\.1"),
     (Offload(0, main=7), r"main_gpu 7 does not exist")],
)  # fmt: skip
def test_a_missing_device_is_refused(
    footprint: Callable[..., Any], asked: Offload, match: str
) -> None:
    with pytest.raises(RequestError, match=match):
        place(footprint(), machine(500, 500), asked)


@pytest.mark.parametrize(
    "options",
    [{"layers": -1}, {"cpu_experts": -1}, {"main": -1}, {"split": (1, -1)}, {"split": (0, 0)}],
)
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"num_gpu|main_gpu|tensor_split|n_cpu_moe"):
        Offload(**options)


def test_without_devices_everything_is_on_the_cpu(
    footprint: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert place(footprint(), machine(), AUTOMATIC).devices == ()
    assert not caplog.records
    assert place(footprint(), machine(), Offload(99, main=0)).devices == ()
    assert "no GPU found; running on the CPU" in caplog.text


@pytest.mark.parametrize(
    ("asked", "match"),
    [(Offload(main=1), r"main_gpu 1 does not exist: no GPU was found \(see `tampu devices`\)"),
     (Offload(split=(1, 1)), r"tensor_split must have 0 numbers, .* not 2: no GPU was found")],
)  # fmt: skip
def test_without_devices_one_that_is_named_is_refused(
    footprint: Callable[..., Any], asked: Offload, match: str
) -> None:
    with pytest.raises(RequestError, match=match):
        place(footprint(), machine(), asked)


def test_more_layers_than_the_model_has_are_all_of_them_and_the_log_says_so(
    footprint: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tampu")
    assert names(place(footprint(), machine(1000), Offload(BLOCKS + 1))) == "0" * (BLOCKS + 1)
    assert not caplog.records
    assert names(place(footprint(), machine(1000), Offload(99))) == "0" * (BLOCKS + 1)
    assert caplog.messages == ["num_gpu 99: the model has 9 layers, all are offloaded"]


# By memory


@pytest.mark.parametrize(
    ("memory", "layers"),
    [(1000, "000000000"), (120, "000000000"), (100, "00000000-"), (60, "---00000-"),
     (20, "-------0-"), (10, "---------")],
)  # fmt: skip
def test_as_many_layers_are_placed_as_fit(
    footprint: Callable[..., Any], memory: int, layers: str
) -> None:
    found = place(footprint(), machine(memory), AUTOMATIC)
    assert names(found) == layers
    needs = footprint().needs(found)
    if found.devices:
        assert needs["CUDA.0"].total <= memory * MB
        assert needs["CUDA.0"].cache == CACHE * (BLOCKS - layers[:8].count("-"))


def test_fewer_devices_are_preferred(footprint: Callable[..., Any]) -> None:
    assert names(place(footprint(), machine(300, 200, 400), AUTOMATIC)) == "222222222"
    assert set(names(place(footprint(), machine(80, 70, 10), AUTOMATIC))) == {"0", "1"}


@pytest.mark.parametrize(("memory", "kept"), [(1000, 0), (700, 2), (130, 8)])
def test_experts_stay_on_the_cpu_before_a_whole_layer_does(
    footprint: Callable[..., Any], memory: int, kept: int
) -> None:
    found = place(footprint(experts=90), machine(memory), AUTOMATIC)
    assert names(found) == "000000000"
    assert found.cpu_experts == frozenset(range(kept))


def test_layers_stay_on_the_cpu_if_keeping_all_experts_is_not_enough(
    footprint: Callable[..., Any],
) -> None:
    found = place(footprint(experts=90), machine(70), AUTOMATIC)
    assert names(found) == "--000000-"
    assert found.cpu_experts == frozenset(range(2, 8))


@pytest.mark.parametrize(
    ("memory", "asked", "kept"),
    [(1000, 3, 3), (1000, 99, 8), (130, 3, 8), (550, 1, 4), (550, 6, 6)],
)
def test_experts_of_the_first_layers_stay_on_the_cpu_if_asked(
    footprint: Callable[..., Any], memory: int, asked: int, kept: int
) -> None:
    found = place(footprint(experts=90), machine(memory), Offload(cpu_experts=asked))
    assert names(found) == "000000000"
    assert found.cpu_experts == frozenset(range(kept))
    whole = place(footprint(), machine(memory), Offload(cpu_experts=asked))
    assert not whole.cpu_experts  # the model has none


def test_experts_are_counted_from_the_first_layer_of_the_model(
    footprint: Callable[..., Any],
) -> None:
    found = place(footprint(experts=90), machine(1000), Offload(6, cpu_experts=4))
    assert names(found) == "--000000-"
    assert found.cpu_experts == frozenset({2, 3})


# What does not fit


@pytest.mark.seed("S41")
def test_the_error_has_the_need_of_each_device(footprint: Callable[..., Any]) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        place(footprint(), machine(40, 1000), Offload(9, split=(1, 1)))
    assert re.fullmatch(
        r"m\.gguf with a context of 1024 tokens in 1 slots does not fit on CUDA\.0: "
        r"weights 50 MiB, cache 3 MiB, graphs about 1 MiB; 40 MiB are available\. "
        r"Choose at most 6 layers on devices \(num_gpu\)",
        str(caught.value),
    )


@pytest.mark.seed("S41")
def test_the_error_suggests_a_shorter_context_and_a_smaller_cache(
    footprint: Callable[..., Any],
) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        place(footprint(context=65536), machine(200), Offload(9))
    text = str(caught.value)
    assert "on CUDA.0: weights 100 MiB, cache 256 MiB" in text
    fitting = int(re.search(r"a context of at most (\d+)", text)[1])
    found = place(footprint(context=fitting), machine(200), Offload(9))
    assert sum(index >= 0 for index in found.layers) == 9
    layers = int(re.search(r"at most (\d+) layers", text)[1])
    found = place(footprint(context=65536), machine(200), Offload(layers))
    assert sum(index >= 0 for index in found.layers) == layers
    with pytest.raises(OutOfMemoryError):
        place(footprint(context=65536), machine(200), Offload(layers + 1))


@pytest.mark.seed("S41")
def test_the_device_and_the_cpu_may_both_be_too_small(footprint: Callable[..., Any]) -> None:
    with pytest.raises(OutOfMemoryError, match=r"on CUDA\.0: .* are available, nor on CPU\.0: "):
        place(footprint(), machine(10, processor=10), Offload(4))
    with pytest.raises(OutOfMemoryError, match=r"fit on CPU\.0: "):
        place(footprint(), machine(30, processor=30), AUTOMATIC)


# What there is


class Found(Device):
    """A device of some free memory."""

    def memory(self) -> tuple[int, int]:
        return self.handle * MB, 2 * self.handle * MB


def test_integrated_gpus_are_used_only_without_others() -> None:
    integrated = Found(1000, "Vulkan", 0, "integrated-gpu", "product")
    discrete = Found(8000, "CUDA", 0, "gpu", "product")
    others = (Found(1, "BLAS", 0, "accelerator", "p"), Found(1, "CPU", 0, "cpu", "p"))
    assert survey([integrated, discrete, *others], 5).devices == (discrete,)
    assert survey([integrated, *others], 5).devices == (integrated,)
    assert survey(others, 5) == Machine((), {"CPU.0": 5})


def test_a_part_of_the_free_memory_is_reserved() -> None:
    small, large = (Found(size, "CUDA", n, "gpu", "p") for n, size in enumerate((1000, 20_000)))
    assert survey([small, large], 5).available == {
        "CUDA.0": 900 * MB, "CUDA.1": (20_000 - 457) * MB, "CPU.0": 5,
    }  # fmt: skip
    assert survey([large], 5, part=0.5).available["CUDA.1"] == (20_000 - 457) * MB // 2
    assert free_on([small, large]) == sum(
        survey([small, large], 0).available[device.label] for device in (small, large)
    )
    assert free_on([]) is None


def test_sizes_are_summed_by_layer() -> None:
    tensors = {
        "token_embd.weight": 1, "rope_freqs.weight": 2, "blk.0.attn_q.weight": 4,
        "blk.0.ffn_up_exps.weight": 8, "blk.1.attn_q.weight": 16, "output_norm.weight": 32,
        "v.blk.5.attn_q.weight": 64,
    }  # fmt: skip
    assert weight_sizes({**tensors, "output.weight": 128}) == WeightSizes(
        3, (4, 16, 224), (8, 0, 0), 1
    )
    tied = weight_sizes(tensors)
    assert (tied.first, tied.layers) == (2, (4, 16, 97))
    assert (tied.embedding, tied.is_tied) == (0, True)


def test_token_embeddings_count_where_they_are(footprint: Callable[..., Any]) -> None:
    model = footprint()
    model = replace(model, weights=replace(model.weights, embedding=3 * MB))
    found = machine(1000)
    layers = place(model, found, Offload(BLOCKS + 1))
    moved = place_embedding(layers, model, found, [])
    gpu = found.devices[0].label
    before, after = model.needs(layers), model.needs(moved)
    assert (before["CPU.0"].weights, after["CPU.0"].weights) == (5 * MB, 2 * MB)
    assert after[gpu].weights == before[gpu].weights + 3 * MB
    tight = machine(-(-before[gpu].total // MB) + 2)
    assert place_embedding(layers, model, tight, []) == layers
    tied = replace(model, weights=replace(model.weights, is_tied=True))
    assert place_embedding(layers, tied, found, []) == moved
