"""The limit on the time that drafts lose."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tampu.runner.draft_budget import DraftBudget


def test_a_new_one_allows_drafts() -> None:
    assert not DraftBudget().is_spent


def test_it_is_spent_by_half_a_step_and_grows_with_time() -> None:
    budget = DraftBudget()
    budget.add(1.6, 0.6, 1.0)
    assert budget.is_spent
    steps = 0
    while budget.is_spent:
        budget.add(1.0, 0.0, 1.0)
        steps += 1
    assert 5 <= steps <= 15


def test_what_was_won_pays_for_what_is_lost_but_not_for_more_than_a_step() -> None:
    budget = DraftBudget()
    for _ in range(100):
        budget.add(1.0, -0.5, 1.0)
    budget.add(1.0, 0.5, 1.0)
    assert not budget.is_spent
    budget.add(1.0, 0.6, 1.0)
    assert budget.is_spent


@given(st.lists(st.floats(-1, 1), max_size=400))
def test_no_more_than_two_hundredths_and_two_steps_are_lost(losses: list[float]) -> None:
    """Whatever drafts cost, up to a step each, as long as they are left out when it is spent."""
    budget, lost, passed = DraftBudget(), 0.0, 0.0
    for loss in losses:
        loss = 0.0 if budget.is_spent else loss
        budget.add(1.0 + loss, loss, 1.0)
        lost, passed = lost + loss, passed + 1.0 + loss
        assert lost <= 0.02 * passed + 2.0
