"""What ggml's backends for GPUs compute as one operation in a step of one token."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

import numpy as np
import pytest
from support.fusions import fused
from support.laboratory import Laboratory

from tampu.gguf_compat import read_model
from tampu.kvcache import AttentionKind, Cache, CacheSize, Segment
from tampu.ml import Backend, Weights
from tampu.ml.device_map import DeviceMap
from tampu.ml.devices import Device
from tampu.models import bind_model
from tampu.runner.graph_cache import GraphCache
from tampu.runner.step_inputs import StepInputs

pytestmark = [pytest.mark.parity, pytest.mark.slow]

STORED = "ROPE VIEW SET_ROWS"
EXPERTS = "ARGSORT VIEW GET_ROWS RESHAPE SOFT_MAX RESHAPE"
NORM, BIAS, SUMS = "RMS_NORM MUL", "MUL_MAT ADD", "ADD ADD"
ROTATED, ROTATED_STORED = "RMS_NORM MUL ROPE", "RMS_NORM MUL ROPE VIEW SET_ROWS"
GATED, EXPERTS_GATED = "MUL_MAT MUL_MAT GLU", "MUL_MAT_ID MUL_MAT_ID GLU"
BIASED_GATED, EXPERT_BIAS = "MUL_MAT_ID ADD_ID MUL_MAT_ID ADD_ID GLU", "MUL_MAT_ID ADD_ID"

# By recipe and backend: the patterns, in this many layers and with the last norm, and how many
# operations are left. The sum after the last layer's attention is of selected rows.
EXPECTED: Mapping[str, tuple[int, Mapping[str, tuple[Mapping[str, int], int]]]] = {
    "llama": (3, {
        "CUDA": ({NORM: 7, STORED: 3, BIAS: 5, GATED: 3}, 42),
        "Vulkan": ({NORM: 7, STORED: 3, BIAS: 5}, 48),
    }),
    "qwen2": (3, {
        "CUDA": ({NORM: 7, STORED: 3, BIAS: 14, GATED: 3}, 42),
        "Vulkan": ({NORM: 7, STORED: 3, BIAS: 14}, 48),
    }),
    "qwen3": (3, {
        "CUDA": ({NORM: 13, STORED: 3, BIAS: 5, GATED: 3}, 48),
        "Vulkan": ({NORM: 7, ROTATED: 3, ROTATED_STORED: 3, BIAS: 5}, 48),
    }),
    "qwen3moe": (3, {
        "CUDA": (
            {NORM: 13, STORED: 3, BIAS: 2, EXPERTS: 3, EXPERTS_GATED: 3, SUMS: 3}, 60
        ),
        "Vulkan": (
            {NORM: 7, ROTATED: 3, ROTATED_STORED: 3, BIAS: 2, EXPERTS: 3,
             "MUL_MAT_ID MUL": 3, SUMS: 3}, 57
        ),
    }),
    "gemma3_text": (7, {
        "CUDA": ({NORM: 29, STORED: 7, "RMS_NORM MUL ADD": 14, GATED: 7}, 118),
        "Vulkan": ({NORM: 29, ROTATED: 7, ROTATED_STORED: 7}, 132),
    }),
    "gptoss": (4, {
        "CUDA": (
            {NORM: 9, STORED: 4, BIAS: 20, EXPERTS: 4, BIASED_GATED: 4, EXPERT_BIAS: 4, SUMS: 4},
            73,
        ),
        "Vulkan": (
            {NORM: 9, STORED: 4, BIAS: 17, "MUL_MAT ADD ADD": 3, EXPERTS: 4, EXPERT_BIAS: 8,
             "MUL_MAT_ID ADD_ID MUL": 4, SUMS: 4}, 74
        ),
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_gpus_compute_neighbouring_operations_as_one(
    laboratory: Laboratory, gpu: Device, name: str
) -> None:
    """On stand-ins in the order in which graphs are built, as CUDA has it; on Vulkan in its own."""
    layers, expected = EXPECTED[name]
    backends = ["CUDA", "Vulkan"] if gpu.name == "GPU" else ["Vulkan"]
    device_map = DeviceMap((gpu,), (layers + 1) * (0,), embedding=0)
    with (
        closing(Backend(threads=1, max_nodes=4096, device_map=device_map)) as backend,
        closing(Weights(read_model(laboratory.file(name)))) as weights,
    ):
        model = bind_model(weights)
        shapes, size = model.cache_shapes(), CacheSize(slots=1, context=256, batch=64)
        cache = Cache(backend, shapes, size, key_type="f16", attention=AttentionKind.FUSED)
        weights.load(backend)
        with closing(cache), closing(GraphCache(backend, model, cache)) as graphs:
            cells = np.zeros((len(cache.specs), 1), np.int32)
            step = StepInputs(
                np.array([20], np.int32),
                np.array([0], np.int32),
                np.array([0], np.int32),
                [Segment(cells, 0)],
            )
            prepared = graphs.prepare(step)
            graphs.launch(prepared).result()
            assert backend.splits == 1
            for each in backends:
                found = fused(prepared.graph.context, each)
                assert (found.patterns, found.operations) == expected[each], each
