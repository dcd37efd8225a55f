"""A model that dies again and again is left alone for a while; a request is asked once more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.fake_runner import FakeRunner, FakeStart, lines_of

from tampu.errors import RequestNotStartedError, RunnerDiedError
from tampu.server.serving.crash_loop import CRASH_WINDOW_S, CrashLoopBackoff, CrashLoopError
from tests.server.conftest import Site

pytestmark = pytest.mark.slow


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_three_crashes_within_a_minute_are_refused_and_older_ones_expire() -> None:
    clock = Clock()
    backoff = CrashLoopBackoff(clock=clock)
    for _ in range(2):
        backoff.record("m", "signal SIGSEGV")
        backoff.check("m", "m")
        clock.now_s += 10
    backoff.record("m", "signal SIGABRT")
    with pytest.raises(CrashLoopError, match=r"'m' crashed 3 times .* for 40 s; .*SIGABRT"):
        backoff.check("m", "m")
    backoff.check("other", "other")
    clock.now_s += CRASH_WINDOW_S - 20
    backoff.check("m", "m")
    backoff.record("m", "signal SIGSEGV")
    with pytest.raises(CrashLoopError, match="for 10 s"):
        backoff.check("m", "m")


def test_zero_disables_the_crash_limit() -> None:
    backoff = CrashLoopBackoff(max_crashes=0)
    for _ in range(9):
        backoff.record("m", "x")
        backoff.check("m", "m")


def ask(prompt: str, model: str = "m") -> tuple[str, str, dict[str, Any]]:
    body = {"model": model, "prompt": prompt, "raw": True}
    return ("POST", "/api/generate", {"json": body})


def test_crash_looping_model_is_refused_with_its_cause(site: Site) -> None:
    *crashed, refused, other = site.call(*[ask("a die")] * 3, ask("hello"), ask("hello", "base"))
    assert all(lines_of(one)[-1]["error"].endswith("SIGKILL") for one in crashed)
    assert refused.status_code == 500
    assert "crashed 3 times" in refused.json()["error"]
    assert "signal SIGKILL" in refused.json()["error"]
    assert len(site.start.runners) == 4
    assert lines_of(other)[-1]["done"]


class Dying(FakeRunner):
    """Has died without anybody knowing, when the first request comes."""

    async def run(self, _: object) -> AsyncIterator[None]:
        self.is_alive, self.cause = False, "signal SIGKILL"
        raise RequestNotStartedError("the process of model 'm' has ended: signal SIGKILL")
        yield


class DyingStart(FakeStart):
    """Its first models are dying."""

    def __init__(self, dying: Any) -> None:
        super().__init__()
        self.dying = dying

    async def __call__(self, entry: Any, options: Any) -> Any:
        await asyncio.sleep(0)
        kind = Dying if len(self.runners) < self.dying else FakeRunner
        self.runners.append((entry.name, kind(options)))
        return self.runners[-1][1]


def let_die(site: Site, count: int) -> None:
    """Make the first models of a site dying ones."""
    start: Any = site.start
    start.__class__, start.dying = DyingStart, count


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"prompt": "hello there", "raw": True, "stream": False}),
        ("/api/embed", {"input": "hello"}),
        ("/api/tokenize", {"text": "hello"}),
        ("/api/detokenize", {"tokens": [104]}),
    ],
)
def test_request_not_started_by_a_crashing_model_is_retried_once(
    site: Site, path: str, body: dict[str, Any]
) -> None:
    asked = ("POST", path, {"json": {"model": "m", **body}})
    let_die(site, 1)
    [answer] = site.call(asked)
    assert answer.status_code == 200
    assert len(site.start.runners) == 2


def test_request_is_not_retried_twice(site: Site) -> None:
    let_die(site, 2)
    [answer] = site.call(ask("hello"))
    assert (answer.status_code, len(site.start.runners)) == (500, 2)
    assert "SIGKILL" in answer.json()["error"]


def test_crash_loop_error_is_a_runner_died_error() -> None:
    assert issubclass(RequestNotStartedError, RunnerDiedError)
    assert issubclass(CrashLoopError, RunnerDiedError)
