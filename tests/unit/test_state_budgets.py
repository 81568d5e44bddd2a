"""Retry budgets: how many retries a tenant may be ahead of its successes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.job import Retry
from cron.state import pool
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from launcher.launch import LaunchState, Reason
from tests.unit.state_rig import T0, StateRig, job


def limited(rig: StateRig, budget: int, tenant: str = "default") -> None:
    limits = pool.Limits(retry_budget=budget)
    item = pool.LimitItem((tenant, "", -1), limits)
    assert rig.items(pool.SetLimits((item,), "anna")) == [Verdict.ACCEPTED]


def spend(
    rig: StateRig, number: int, state: LaunchState = LaunchState.FAILED, **fields: Any
) -> bool:
    """Run a launch of a job of its own; return whether it is tried again."""
    second = rig.at_ms // 1000 - T0
    rig.account(second, number=number)
    rig.begin(second, number=number)
    rig.finished(second, number=number, state=state, **fields)
    return rig.state.row((number, T0 + second, 0)) is not None


def tenants(*names: str) -> StateRig:
    """Jobs numbered from 1, by their full names."""
    rig = StateRig()
    usual = job(retry=Retry(tries=9, backoff_ms=1_000))
    rig.put(*(msgspec.structs.replace(usual, name=name) for name in names))
    rig.join()
    return rig


def test_a_tenant_out_of_retries_gets_dead_letters() -> None:
    rig = tenants("a/x")
    limited(rig, 2, "a")
    assert [spend(rig.to(n), 1) for n in (1, 2, 3)] == [True, True, False]
    (dead,) = rig.state.dead.values()
    assert (dead.reason, dead.state, dead.tries) == (Reason.BUDGET, LaunchState.FAILED, 1)


def test_ten_successes_earn_a_retry() -> None:
    rig = tenants("a/x")
    limited(rig, 1, "a")
    assert spend(rig.to(1), 1)
    for second in range(2, 11):
        spend(rig.to(second), 1, LaunchState.SUCCEEDED)
    assert not spend(rig.to(11), 1)
    spend(rig.to(12), 1, LaunchState.SUCCEEDED)
    assert rig.state.budgets == {}
    assert spend(rig.to(13), 1)


def test_successes_are_not_saved_up() -> None:
    rig = tenants("a/x")
    limited(rig, 1, "a")
    for second in range(1, 60):
        spend(rig.to(second), 1, LaunchState.SUCCEEDED)
    assert [spend(rig.to(n), 1) for n in (60, 61)] == [True, False]


def test_each_tenant_has_a_budget_of_its_own() -> None:
    rig = tenants("a/x", "b/x")
    limited(rig, 1, "*")
    assert [spend(rig.to(n), 1) for n in (1, 2)] == [True, False]
    assert spend(rig.to(3), 2)
    spend(rig.to(4), 1, LaunchState.SUCCEEDED)
    assert rig.state.budgets == {"a": 900, "b": 1000}


def test_a_tenants_own_limits_go_before_those_of_each_tenant() -> None:
    rig = tenants("a/x", "b/x")
    limited(rig, 1, "*")
    limited(rig, 2, "a")
    assert [spend(rig.to(n), 1) for n in (1, 2, 3)] == [True, True, False]
    assert [spend(rig.to(n), 2) for n in (4, 5)] == [True, False]


def test_limits_that_name_no_budget_bound_no_retries() -> None:
    rig = tenants("a/x")
    limited(rig, 0, "a")
    assert all(spend(rig.to(n), 1) for n in range(1, 30))
    assert rig.state.budgets == {}


@pytest.mark.parametrize("scope", [("", "", -1), ("a", "command", -1), ("a", "", 5)])
def test_only_limits_of_a_whole_tenant_have_budgets(scope: pool.Scope) -> None:
    rig = tenants("a/x")
    rig.append(pool.SetLimits((pool.LimitItem(scope, pool.Limits(retry_budget=1)),)))
    assert [spend(rig.to(n), 1) for n in (1, 2)] == [True, True]


def test_a_budget_holds_from_when_it_is_set_until_it_is_taken_away() -> None:
    rig = tenants("a/x")
    assert all(spend(rig.to(n), 1) for n in (1, 2, 3))
    limited(rig, 1, "a")
    assert [spend(rig.to(n), 1) for n in (4, 5)] == [True, False]
    rig.append(pool.SetLimits((pool.LimitItem(("a", "", -1), None),)))
    assert spend(rig.to(6), 1)


def test_snoozes_and_what_is_too_late_cost_no_budget() -> None:
    rig = tenants("a/x")
    limited(rig, 1, "a")
    assert spend(rig.to(1), 1, LaunchState.CANCELLED, reason=Reason.SNOOZE)
    assert not spend(rig.to(2), 1, retry_after_ms=3_600_000, reason=Reason.RETRY)
    assert rig.state.budgets == {}
    (dead,) = rig.state.dead.values()
    assert dead.reason is Reason.DEADLINE


def test_a_budget_is_in_the_image() -> None:
    rig = tenants("a/x")
    limited(rig, 1, "a")
    spend(rig.to(1), 1)
    again = decode_state([encode_state(rig.state)])
    assert again.budgets == rig.state.budgets == {"a": 1000}


@pytest.mark.parametrize("budget", [None, pool.Limits(), pool.Limits(weight=2)])
def test_a_budget_that_is_taken_away_leaves_no_debts(budget: pool.Limits | None) -> None:
    """A tenant that was given a budget again began with what it owed of the one before."""
    rig = tenants("a/x")
    limited(rig, 2, "a")
    assert [spend(rig.to(n), 1) for n in (1, 2, 3)] == [True, True, False]
    rig.append(pool.SetLimits((pool.LimitItem(("a", "", -1), budget),)), pool.ForgetDebts())
    assert rig.state.budgets == {}
    limited(rig, 2, "a")
    assert [spend(rig.to(n), 1) for n in (4, 5, 6)] == [True, True, False]


def test_debts_are_forgotten_only_of_whom_no_budget_bounds() -> None:
    rig = tenants("a/x", "b/x", "c/x")
    limited(rig, 2, "*")
    limited(rig, 2, "c")
    for number in (1, 2, 3):
        spend(rig.to(number), number)
    rig.append(pool.SetLimits((pool.LimitItem(("c", "", -1), None),)), pool.ForgetDebts())
    assert rig.state.budgets == {"a": 1000, "b": 1000, "c": 1000}  # that of each tenant holds
    limited(rig, 0, "b")
    rig.append(pool.ForgetDebts())
    assert rig.state.budgets == {"a": 1000, "c": 1000}
    rig.append(pool.SetLimits((pool.LimitItem(("*", "", -1), None),)), pool.ForgetDebts())
    assert rig.state.budgets == {}


def test_a_smaller_budget_forgets_nothing() -> None:
    rig = tenants("a/x")
    limited(rig, 9, "a")
    assert [spend(rig.to(n), 1) for n in (1, 2)] == [True, True]
    limited(rig, 1, "a")
    rig.append(pool.ForgetDebts())
    assert not spend(rig.to(3), 1)
    assert rig.state.budgets == {"a": 2000}
