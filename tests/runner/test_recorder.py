"""What the run loop tells those who look at it."""

from __future__ import annotations

import msgspec
import pytest
from support.fake_drafts import RandomDrafts
from support.fake_graphs import FakeEngine, count_up
from support.waiting import wait_until

from tampu.errors import RunnerDiedError
from tampu.runner import recorder
from tampu.runner.recorder import MAX_REQUESTS, MAX_STEPS


def test_nothing_is_recorded_until_somebody_looks() -> None:
    with FakeEngine(count_up) as engine:
        engine.ask([2], max_tokens=4).events()
        assert engine.runner.stats.recorder is None
        first = engine.runner.observe()
        assert (first.interval_ms, first.steps, first.python_share) == (0.0, [], None)
        assert (first.prompt_tokens, first.generated_tokens) == (0, 0)


def test_steps_tell_who_was_in_them() -> None:
    with FakeEngine(count_up) as engine:
        engine.runner.observe()
        engine.ask([2, 3, 4], max_tokens=3).events()
        found = engine.runner.observe()
    parts = [part for step in found.steps for part in step.parts]
    told = [(part.request, part.start, part.tokens, part.is_prompt) for part in parts]
    assert told == [(1, 0, 3, True), (1, 3, 1, False), (1, 4, 1, False)]
    assert (found.prompt_tokens, found.generated_tokens) == (3, 3)
    assert found.interval_ms > 0
    assert [step.kind for step in found.steps] == ["batch"] * 3
    began = [step.began_ms for step in found.steps]
    assert began == sorted(began)
    assert found.python_share is not None
    assert 0 <= found.python_share <= 1


def test_steps_tell_which_drafts_were_right() -> None:
    drafts = RandomDrafts(count_up, seed=1)
    with FakeEngine(count_up, slots=2, context=128, batch=64, drafts=drafts) as engine:
        engine.runner.observe()
        asked = [engine.ask([2, 3 + which], max_tokens=60) for which in range(2)]
        for each in asked:
            each.events()
        engine.wait_until_idle()
        observed = engine.runner.observe()
        parts = [part for step in observed.steps for part in step.parts]
    assert observed.generated_tokens == 120
    for each in asked:
        usage, own = each.sequence.usage(), [p for p in parts if p.request == each.sequence.number]
        assert sum(part.drafts for part in own) == usage.drafted_tokens
        assert sum(part.accepted for part in own) == usage.accepted_tokens
        assert 0 < usage.accepted_tokens < usage.drafted_tokens
        assert all(part.accepted <= part.drafts < part.tokens for part in own if part.drafts)
        assert not any(part.drafts for part in own if part.is_prompt)


def test_a_snapshot_has_only_what_happened_since_the_last_one() -> None:
    with FakeEngine(count_up) as engine:
        engine.runner.observe()
        engine.ask([2], max_tokens=3).events()
        assert len(engine.runner.observe().steps) == 3
        assert engine.runner.observe().steps == []


def test_running_and_waiting_requests_are_told_apart() -> None:
    with FakeEngine(count_up, context=10_000) as engine:
        running, waiting = (engine.ask([2, 3]) for _ in range(2))
        wait_until(lambda: running.sequence.generated > 0, "no token")
        wait_until(lambda: engine.scheduler.waiting != [], "it does not wait")
        found = engine.runner.observe()
        [record] = found.requests
        assert (record.request, record.prompt_tokens, found.waiting) == (1, 2, 1)
        assert found.waits_ms == [found.longest_wait_ms]
        assert found.longest_wait_ms > 0
        for one in (running, waiting):
            engine.runner.cancel(one.sequence)


def test_a_request_that_gave_up_its_slot_waits_since_then() -> None:
    with FakeEngine(count_up, slots=2, context=5_000, batch=4_900, kv_unified=True) as engine:
        asked = [engine.ask([2 + n] * 2_000, max_tokens=2_000) for n in range(2)]
        last = asked[1].sequence
        wait_until(lambda: last.was_preempted, "none gave up its slot")
        engine.runner.call(lambda: setattr(last.times, "submitted", last.times.submitted - 10**18))
        assert all(each < 10**9 for each in engine.runner.observe().waits_ms)
        for one in asked:
            engine.runner.cancel(one.sequence)


def test_no_more_than_so_many_steps_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_FORGOTTEN_NS", 10**15)
    with FakeEngine(count_up, context=MAX_STEPS + 100) as engine:
        engine.runner.observe()
        engine.ask([2], max_tokens=MAX_STEPS + 50).events()
        found = engine.runner.observe()
    assert len(found.steps) == MAX_STEPS
    assert found.lost_steps == 50
    assert found.generated_tokens == MAX_STEPS + 50
    assert len(found.requests) <= MAX_REQUESTS


def test_recording_ends_when_nobody_looks_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeEngine(count_up) as engine:
        engine.runner.observe()
        engine.ask([2], max_tokens=3).events()
        assert engine.runner.stats.recorder is not None
        monkeypatch.setattr(recorder, "_FORGOTTEN_NS", -1)
        engine.ask([2], max_tokens=3).events()
        assert engine.runner.stats.recorder is None


def test_a_look_at_the_cache_is_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeEngine(count_up) as engine:
        monkeypatch.setattr(recorder, "_CACHE_NS", 10**18)
        assert engine.runner.observe().cache is not None
        assert engine.runner.observe().cache is None


def test_requests_that_share_a_beginning_share_a_node_of_the_tree() -> None:
    beginning = [2, 3, 4, 5, 6]
    with FakeEngine(count_up, slots=4, context=5000) as engine:
        asked = [engine.ask([*beginning, 10 + which]) for which in range(4)]
        wait_until(lambda: all(one.sequence.generated > 0 for one in asked), "no token")
        found = engine.runner.observe().cache
        for one in asked:
            engine.runner.cancel(one.sequence)
    assert found is not None
    [shared] = [node for node in found.tree if node.start == 0 and node.tokens]
    assert (shared.tokens, shared.cached, shared.sharing) == (5, 5, 4)
    leaves = [node for node in found.tree if node.requests]
    assert sorted(number for node in leaves for number in node.requests) == [1, 2, 3, 4]
    [cells] = found.cells
    assert {0, 2, 3, 4} <= {*cells.owners}  # those of the first are beside what is shared


def test_no_token_is_in_it() -> None:
    secret = 53
    with FakeEngine(lambda _: secret, context=100) as engine:
        engine.runner.observe()
        engine.ask([secret] * 7, max_tokens=20).events()
        found = msgspec.to_builtins(engine.runner.observe())

    def numbers(value: object) -> list[object]:
        if isinstance(value, dict):
            return [one for each in value.values() for one in numbers(each)]
        if isinstance(value, list):
            return [one for each in value for one in numbers(each)]
        return [value]

    assert secret not in numbers(found)


def test_a_loop_that_has_ended_says_so() -> None:
    with FakeEngine(count_up) as engine:
        pass
    with pytest.raises(RunnerDiedError, match="ended"):
        engine.runner.observe()
