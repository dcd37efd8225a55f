"""What is wrong with a cluster or its nodes, told in one line: `make ray-test`.

Ray's answers are made up, but for those of `connect`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError, NodeDiedError, RaySystemError
from support.ray_cluster import SETTINGS, free_port

from tampu.cluster.config import DeployedModel
from tampu.cluster.deploying import check_nodes, connect
from tampu.errors import ModelNotFoundError, SettingsError, TampuError
from tampu.version import __version__

NODE = {
    "Alive": True,
    "NodeID": "11" * 28,
    "NodeManagerAddress": "10.0.0.2",
    "Resources": {"CPU": 1.0},
}


class Answer:
    """A task of a node, with what `ray.get` returns of it or raises."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def options(self, **_: Any) -> Answer:
        return self

    def remote(self, *_: Any, **__: Any) -> Answer:
        return self


@pytest.fixture
def node_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let the only node of a made-up cluster answer with something, or an error."""

    def get(answer: Answer, timeout: float | None) -> Any:
        if isinstance(answer.found, Exception):
            assert timeout
            raise answer.found
        return answer.found

    def answers(found: Any) -> None:
        monkeypatch.setattr(
            ray, "nodes", lambda: [NODE, NODE | {"Alive": False, "NodeID": "22" * 28}]
        )
        monkeypatch.setattr(ray, "remote", lambda **_: lambda _: Answer(found))
        monkeypatch.setattr(ray, "get", get)

    return answers


@pytest.mark.parametrize(
    ("found", "kind", "told"),
    [
        (
            ("0.0.9", [], []),
            SettingsError,
            f"node 10.0.0.2 has tampu 0.0.9, and this is {__version__}",
        ),
        (GetTimeoutError("late"), SettingsError, "node 10.0.0.2 has not answered for 300 s"),
        (
            RaySystemError("No module named\n'tampu'"),
            SettingsError,
            r"node 10.0.0.2 cannot run tampu: install 'tampu[ray]' there (",
        ),
        (
            (__version__, [], ["does not have model 'x'", "and more"]),
            ModelNotFoundError,
            "node 10.0.0.2 does not have model 'x'",
        ),
    ],
)
def test_a_node_that_cannot_serve_is_one_line(
    node_answers: Callable[[Any], None], found: Any, kind: type[TampuError], told: str
) -> None:
    node_answers(found)
    with pytest.raises(kind, match=re.escape(told)) as caught:
        check_nodes([DeployedModel(model="x")], SETTINGS)
    assert "\n" not in str(caught.value)


def test_a_node_that_has_died_is_left_out(node_answers: Callable[[Any], None]) -> None:
    node_answers(NodeDiedError("died"))
    assert check_nodes([DeployedModel(model="x")], SETTINGS) == []


def test_a_node_that_answers_says_which_files_it_has(node_answers: Callable[[Any], None]) -> None:
    node_answers((__version__, ["x.gguf", "a.gguf"], []))
    assert check_nodes([DeployedModel(model="x")], SETTINGS) == ["a.gguf", "x.gguf"]


def test_no_cluster_on_this_machine_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*_: Any, **__: Any) -> None:
        raise ConnectionError("Could not find any running\nRay instance")

    monkeypatch.setattr(ray, "init", init)
    check_refusal("auto")


def test_no_cluster_at_an_address_is_one_line() -> None:
    check_refusal(f"127.0.0.1:{free_port()}")


def check_refusal(address: str) -> None:
    with pytest.raises(SettingsError, match=f"no Ray cluster at {address}: run ") as caught:
        connect(address)
    assert "\n" not in str(caught.value)
