"""Routing to experts against NumPy, in each of the ways that models do it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import floats
from support.reference import softmax

from tampu.errors import ModelFileError, ShapeError
from tampu.ml import Tensor
from tampu.ml.metadata import Metadata
from tampu.nn import Gating, GatingFunction, read_gating
from tampu.nn.experts import route

SIGMOID = GatingFunction.SIGMOID
WAYS = {
    "softmax (Qwen 2)": Gating(3),
    "softmax, renormalized (Mixtral, Qwen 3, gpt-oss)": Gating(3, renormalize=True),
    "sigmoid (Llama 4)": Gating(2, SIGMOID),
    "sigmoid, renormalized and scaled": Gating(4, SIGMOID, renormalize=True, scale=2.5),
    "softmax in groups (DeepSeek V2)": Gating(3, scale=16.0, groups=4, top_groups=2),
    "sigmoid in groups (DeepSeek V3)": Gating(
        4, SIGMOID, renormalize=True, scale=2.5, groups=4, top_groups=2, group_scores=2
    ),
}


def expected(
    logits: npt.NDArray[np.float32], gating: Gating, bias: npt.NDArray[np.float32] | float = 0.0
) -> tuple[npt.NDArray[Any], Any]:
    """The experts of each token and their weights."""
    logits = logits.astype(np.float64)
    scores = 1 / (1 + np.exp(-logits)) if gating.function is SIGMOID else softmax(logits)
    ranks = scores + bias
    grouped = ranks.reshape(len(ranks), gating.groups, -1)
    totals = np.sort(grouped, -1)[..., -gating.group_scores :].sum(-1)
    worst = np.argsort(-totals, -1)[:, gating.top_groups :]
    np.put_along_axis(grouped, worst[..., None], -np.inf, 1)
    choice = np.argsort(-grouped.reshape(ranks.shape), -1)[:, : gating.top_k]
    weights = np.take_along_axis(scores, choice, 1)
    if gating.renormalize:
        weights = weights / weights.sum(-1, keepdims=True)
    return choice, weights * gating.scale


@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize("way", WAYS)
def test_experts_and_their_weights_are_those_of_numpy(
    compute: Callable[..., Any], way: str, tokens: int
) -> None:
    logits = floats(tokens, 16, seed=tokens)
    choice, weights = compute(lambda x: route(x, WAYS[way]), logits)
    experts, shares = expected(logits, WAYS[way])
    assert np.array_equal(choice, experts)
    np.testing.assert_allclose(weights[..., 0], shares, rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_score_bias_changes_the_choice_and_not_the_weights(
    compute: Callable[..., Any], way: str
) -> None:
    logits, bias = floats(9, 16), floats(16, seed=1)
    choice, weights = compute(lambda x, b: route(x, WAYS[way], b), logits, bias)
    experts, shares = expected(logits, WAYS[way], bias)
    assert np.array_equal(choice, experts)
    assert not np.array_equal(experts, expected(logits, WAYS[way])[0])
    np.testing.assert_allclose(weights[..., 0], shares, rtol=1e-5)


@pytest.mark.parametrize(
    "gating", [Gating(17), Gating(0), Gating(2, groups=3), Gating(2, groups=4, top_groups=5)]
)
def test_gating_that_does_not_fit_the_experts_is_refused(
    given: Callable[[npt.NDArray[Any]], Tensor], gating: Gating
) -> None:
    with pytest.raises(ShapeError):
        route(given(floats(2, 16)), gating)


def metadata(**changes: Any) -> Metadata:
    keys = {"expert_used_count": 4, "block_count": 6, **changes}
    return Metadata(
        {"general.architecture": "moe", **{f"moe.{key}": value for key, value in keys.items()}}
    )


@pytest.mark.parametrize(
    ("keys", "gating"),
    [
        ({}, Gating(4, SIGMOID, group_scores=2)),
        ({"expert_gating_func": 1}, Gating(4, group_scores=2)),
        ({"expert_gating_func": 3}, Gating(4, renormalize=True, group_scores=2)),
        (
            {"expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 8,
             "expert_group_used_count": 4},
            Gating(4, SIGMOID, renormalize=True, scale=2.5, groups=8, top_groups=4, group_scores=2),
        ),
        ({"expert_weights_scale": 0.0}, Gating(4, SIGMOID, group_scores=2)),
    ],
)  # fmt: skip
def test_a_file_says_how_experts_are_chosen(keys: dict[str, Any], gating: Gating) -> None:
    assert read_gating(metadata(**keys)) == gating


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_used_count", 0),
        ("expert_gating_func", 4),
        ("expert_group_count", 0),
        ("expert_group_used_count", 2),
        ("expert_weights_scale", -1.0),
        ("expert_weights_scale", math.nan),
    ],
)
def test_impossible_numbers_of_a_router_are_refused_by_name(key: str, value: float) -> None:
    with pytest.raises(ModelFileError, match=f"moe.{key}"):
        read_gating(metadata(**{key: value}))
