"""How many replicas are wanted, with the values that Ray tells: `make ray-test`."""

from __future__ import annotations

from typing import Any

import pytest
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from tampu.cluster.autoscaling import replicas_by_slots


def context(requests: float, metrics: dict[str, dict[str, float]] | None, replicas: int = 1) -> Any:
    """What Ray tells of a deployment whose replicas should have eight slots."""
    unused: dict[str, Any] = dict.fromkeys(
        (
            "deployment_id", "running_replicas", "total_queued_requests", "raw_metrics",
            "last_scale_up_time", "last_scale_down_time", "current_time",
        )
    )  # fmt: skip
    return AutoscalingContext(
        deployment_name="m",
        app_name="tampu",
        current_num_replicas=replicas,
        target_num_replicas=replicas,
        total_num_requests=requests,
        aggregated_metrics=metrics,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=9,
        policy_state={},
        config=AutoscalingConfig(target_ongoing_requests=8),
        **unused,
    )


@pytest.mark.parametrize(
    ("requests", "metrics", "wanted"),
    [
        pytest.param(16, {"slots": {"a": 2.0}}, 8, id="fewer slots than wanted"),
        pytest.param(16, {"slots": {"a": 2.0, "b": 6.0}}, 4, id="the mean of several"),
        pytest.param(16, {"running_requests": {"a": 16.0}}, 2, id="none has told"),
        pytest.param(16, None, 2, id="nothing is told"),
        pytest.param(0, {"slots": {"a": 2.0}}, 0, id="no requests"),
    ],
)
def test_as_many_are_wanted_as_have_slots_for_all_requests(
    requests: float, metrics: dict[str, dict[str, float]] | None, wanted: float
) -> None:
    assert replicas_by_slots(context(requests, metrics)) == (wanted, {})
