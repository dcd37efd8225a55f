"""The gated delta net against NumPy: its projections, gates, convolution and states."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import floats
from support.reference import delta_rule, rms_norm, silu
from support.states import row_arrays, state_rows, written_states

from tampu.errors import ModelFileError
from tampu.ml import Tensor
from tampu.ml.metadata import Metadata
from tampu.nn import DeltaHeads, GatedDeltaNet, Linear, RMSNorm, read_delta_heads
from tampu.nn.cache import Advance, History, States, Tensors
from tampu.nn.delta_net import (
    JointGates,
    JointProjections,
    SeparateGates,
    SeparateProjections,
)

Weights = dict[str, npt.NDArray[Any]]

WIDTH, KEYS, VALUES, FEATURES, KERNEL = 24, 2, 6, 16, 4
EPSILON = 1e-3
HEADS = DeltaHeads(
    keys=KEYS,
    values=VALUES,
    features=FEATURES,
    inner=VALUES * FEATURES,
    width=KERNEL,
    epsilon=EPSILON,
)
NEIGHBOURS = DeltaHeads(**{**vars(HEADS), "is_tiled": False})


class OneState:
    """A layer's cache for sequences that are read from one state to the next."""

    def __init__(self, sequences: int, states: States) -> None:
        self.sequences, self.states = sequences, states

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:
        """Compute all tokens as sequences of equal length."""
        split = tuple(each.reshape(self.sequences, -1, each.shape[1]) for each in inputs)
        y = advance(split, self.states)
        return y.reshape(-1, y.shape[-1])

    def update(self, keys: Tensor | None, values: Tensor | None) -> History:
        raise NotImplementedError


@pytest.fixture
def weights() -> Weights:
    inner = VALUES * FEATURES
    return {
        "project": floats(HEADS.channels, WIDTH, seed=1) / WIDTH**0.5,
        "gate": floats(inner, WIDTH, seed=2) / WIDTH**0.5,
        "beta": floats(VALUES, WIDTH, seed=3) / WIDTH**0.5,
        "alpha": floats(VALUES, WIDTH, seed=4) / WIDTH**0.5,
        "kernel": floats(HEADS.channels, KERNEL, seed=5),
        "decay": -np.exp(floats(VALUES, seed=6) - 2),
        "bias": floats(VALUES, seed=7),
        "norm": 1 + 0.2 * floats(FEATURES, seed=8),
        "output": floats(WIDTH, inner, seed=9) / inner**0.5,
    }


def linear(weight: Tensor) -> Linear:
    made = Linear()
    made.weight, made.bias = weight, None
    return made


def layer(w: dict[str, Tensor]) -> GatedDeltaNet:
    made = GatedDeltaNet()
    made.project = SeparateProjections()
    made.project.mixed, made.project.gate = linear(w["project"]), linear(w["gate"])
    if "both" in w:
        made.gates = JointGates()
        made.gates.both = linear(w["both"])
    else:
        made.gates = SeparateGates()
        made.gates.beta, made.gates.alpha = linear(w["beta"]), linear(w["alpha"])
    made.kernel, made.decay, made.decay_bias = w["kernel"], w["decay"], w["bias"]
    made.norm = RMSNorm()
    made.norm.weight = w["norm"]
    made.output = linear(w["output"])
    return made


def expected(
    w: Weights, x: npt.NDArray[Any], past: npt.NDArray[Any], state: npt.NDArray[Any], *, tiled: bool
) -> tuple[npt.NDArray[Any], ...]:
    """Return the outputs (sequences, tokens, width) and both states after them."""
    sequences, tokens, _ = x.shape
    window = np.concatenate([past, (x @ w["project"].T).swapaxes(1, 2)], 2)
    mixed = np.stack(
        [(window[:, :, t : t + KERNEL] * w["kernel"]).sum(-1) for t in range(tokens)], 1
    )
    heads = silu(mixed).reshape(sequences, tokens, -1, FEATURES)
    unit = heads / np.sqrt((heads**2).sum(-1, keepdims=True) + 1e-6)
    q, k, v = unit[:, :, :KEYS], unit[:, :, KEYS : 2 * KEYS], heads[:, :, 2 * KEYS :]
    if not tiled:
        q, k = (np.repeat(each, VALUES // KEYS, axis=2) for each in (q, k))
    log_decay = np.logaddexp(0, x @ w["alpha"].T + w["bias"]) * w["decay"]
    beta = 1 / (1 + np.exp(-(x @ w["beta"].T)))
    y, after = delta_rule(q, k, v, log_decay, beta, state)
    gate = silu(x @ w["gate"].T).reshape(y.shape)
    y = (rms_norm(y, w["norm"], EPSILON) * gate).reshape(sequences, tokens, -1)
    return y @ w["output"].T, window[:, :, tokens:], after


@pytest.mark.parametrize("heads", [HEADS, NEIGHBOURS], ids=["tiled", "neighbours"])
@pytest.mark.parametrize(("sequences", "tokens"), [(1, 1), (1, 9), (3, 1), (2, 4)])
def test_the_layer_is_that_of_numpy(
    compute: Callable[..., Any], weights: Weights, heads: DeltaHeads, sequences: int, tokens: int
) -> None:
    x = floats(sequences, tokens, WIDTH)
    past = floats(sequences, HEADS.channels, KERNEL - 1, seed=10)
    state = floats(sequences, VALUES, FEATURES, FEATURES, seed=11)

    def build(x: Tensor, *tensors: Tensor) -> list[Tensor]:
        rows = zip(heads.state.shapes, (tensors[:3], tensors[3:6]), strict=True)
        states = tuple(state_rows(shape, *each) for shape, each in rows)
        net = layer(dict(zip(weights, tensors[6:], strict=True)))
        y = net(x.reshape(-1, WIDTH), OneState(sequences, states), heads)
        return [y, *map(written_states, states)]

    found = compute(build, x, *row_arrays(past), *row_arrays(state), *weights.values())
    wanted = expected(weights, x, past, state, tiled=heads.is_tiled)
    np.testing.assert_allclose(found[0].reshape(x.shape), wanted[0], atol=2e-5)
    np.testing.assert_allclose(found[1], wanted[1], atol=2e-5)
    np.testing.assert_allclose(found[2], wanted[2], atol=2e-5)


def test_gates_of_one_projection_lie_in_turn_for_each_key_head(
    compute: Callable[..., Any],
) -> None:
    x, weight = floats(3, WIDTH), floats(2 * VALUES, WIDTH, seed=1)

    def build(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        gates = JointGates()
        gates.both = linear(weight)
        return gates(x, HEADS)

    beta, alpha = compute(build, x, weight)
    both = (x @ weight.T).reshape(3, KEYS, 2, VALUES // KEYS)
    np.testing.assert_allclose(beta, both[:, :, 0].reshape(3, VALUES), atol=1e-5)
    np.testing.assert_allclose(alpha, both[:, :, 1].reshape(3, VALUES), atol=1e-5)


def test_projections_of_one_matrix_lie_in_turn_for_each_key_head(
    compute: Callable[..., Any],
) -> None:
    each = VALUES // KEYS * FEATURES
    x, weight = floats(3, WIDTH), floats(KEYS * 2 * (FEATURES + each), WIDTH, seed=1)

    def build(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        projections = JointProjections()
        projections.all = linear(weight)
        return projections(x, HEADS)

    mixed, gate = compute(build, x, weight)
    ends = np.cumsum([FEATURES, FEATURES, each])
    parts = np.split((x @ weight.T).reshape(3, KEYS, -1), ends, axis=2)
    flat = [part.reshape(3, -1) for part in parts]
    np.testing.assert_allclose(mixed, np.concatenate(flat[:3], 1), atol=1e-5)
    np.testing.assert_allclose(gate, flat[3], atol=1e-5)


def metadata(**changes: int) -> Metadata:
    keys = {"group_count": 16, "time_step_rank": 32, "state_size": 128, "inner_size": 4096}
    keys |= {"conv_kernel": 4} | changes
    stated = {f"qwen35.ssm.{key}": value for key, value in keys.items()}
    norm = {"qwen35.attention.layer_norm_rms_epsilon": 1e-6}
    return Metadata({"general.architecture": "qwen35", **stated, **norm})


def test_the_shape_is_read_from_the_file() -> None:
    heads = read_delta_heads(metadata())
    assert (heads.keys, heads.values, heads.features, heads.width) == (16, 32, 128, 4)
    assert heads.state.shapes == ((8192, 3), (32, 128, 128))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"group_count": 12}, r"ssm\.time_step_rank.*32 value heads.*12 key heads"),
        ({"inner_size": 2048}, r"ssm\.inner_size.*2048 is not 32 heads of 128"),
        ({"conv_kernel": 1}, r"ssm\.conv_kernel"),
        ({"state_size": 0}, r"ssm\.state_size"),
    ],
)
def test_numbers_that_do_not_fit_name_their_key(changes: dict[str, int], key: str) -> None:
    with pytest.raises(ModelFileError, match=key):
        read_delta_heads(metadata(**changes))
