"""Each path of the kernels can be switched off or be missing: ggml computes then, and as well."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.kernels import error, normal

from tampu.engine.engine import Engine
from tampu.ml import Backend, GGMLType
from tampu.ml.attention import flash_attention
from tampu.ml.buffer_types import WeightUse
from tampu.ml.kernels import KernelChoice, library
from tampu.ml.moe import expert_linear
from tampu.ml.quantize import quantize
from tampu.ml.tensor import Tensor
from tampu.settings.choices import KERNEL_GROUPS


@pytest.fixture
def compute(load: Any) -> Callable[[Any], Any]:
    """Compute a product, an experts' product and attention; return them, and whose each was."""

    def compute(backend: Backend) -> tuple[Any, list[Any], list[bool], npt.NDArray[np.float32]]:
        values, bind = load(normal(32, 256), GGMLType.Q8_0)
        stack = normal(3, 16, 256, seed=1)
        rows = quantize(stack.reshape(48, 256), GGMLType.Q8_0).reshape(3, 16, -1)
        stacked, bind_stack = load.stored(rows, GGMLType.Q8_0, [WeightUse.EXPERTS])
        weight, experts = bind(backend), bind_stack(backend)
        context = backend.context(64)
        x = context.input("x", (4, 1, 256), GGMLType.F32)
        choice = context.input("choice", (4, 2), GGMLType.I32)
        steps: list[Callable[[], Tensor]] = [
            lambda: x.linear(weight),
            lambda: expert_linear(x, experts, choice),
            lambda: flash_attention(x, x, x, None, 0.1),
        ]
        outputs, own = [], []
        for step in steps:
            before = len(context.custom)
            outputs.append(context.output(step()))
            own.append(len(context.custom) > before)
        data = normal(4, 1, 256, seed=2)
        chosen = np.array([[0, 1], [2, 0], [1, 2], [2, 1]], np.int32)
        found = backend.compute(context, [(x, data), (choice, chosen)], outputs).outputs
        context.close()
        exact = data.astype(np.float64)
        expected = [exact @ values.T, np.einsum("ti,tuoi->tuo", exact[:, 0], stacked[chosen])]
        return found, expected, own, data

    return compute


@pytest.mark.parametrize("word", KERNEL_GROUPS)
def test_each_kernel_path_has_its_switch(compute: Callable[[Any], Any], word: str) -> None:
    backend = Backend(threads=1, max_nodes=256, kernels=KernelChoice.from_word(word))
    found, expected, own, data = compute(backend)
    assert own == [word in ("on", path) for path in ("products", "experts", "attention")]
    for result, wanted in zip(found[:2], expected, strict=True):
        assert error(result, wanted) < 2e-2
    assert error(found[2].reshape(data.shape), data) < 1e-3  # each head sees its one cell
    backend.close()


def test_without_the_library_ggml_computes_all_and_one_line_says_so(
    compute: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "LIBRARY", "none.so")
    library._load.cache_clear()
    with caplog.at_level(logging.INFO, "tampu.ml"):
        backend = Backend(threads=1, max_nodes=256)
        _, _, own, _ = compute(backend)
    backend.close()
    library._load.cache_clear()
    assert own == [False] * 3
    (line,) = [record.getMessage() for record in caplog.records if "kernels" in record.getMessage()]
    assert "not used, ggml computes alone" in line


def test_a_cpu_without_a_level_uses_ggml_and_logs_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Bare:
        tampu_level_count = staticmethod(lambda: 1)
        tampu_level_name = staticmethod(lambda _: b"portable")

    monkeypatch.setattr(library, "_load", lambda _: Bare)
    with caplog.at_level(logging.INFO, "tampu.ml"):
        backend = Backend(threads=1, max_nodes=16)
    assert backend.kernels is None
    backend.close()
    monkeypatch.undo()
    (line,) = [record.getMessage() for record in caplog.records if "kernels" in record.getMessage()]
    assert "not used" in line


def test_the_built_in_model_answers_with_every_path_off() -> None:
    with Engine.load("demo", context=256, threads=1, kernels="off") as engine:
        answer = engine.chat([{"role": "user", "content": "What is 27 + 58?"}], temperature=0.0)
    assert "85" in answer.text
