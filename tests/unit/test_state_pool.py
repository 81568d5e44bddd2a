"""Limits, gates and drains: what operators say of the pool."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cron.state import pool, pooling
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.pool import Gate, GateAction, Limits
from tests.unit.state_rig import T0, StateRig, with_job

EACH: pool.Scope = ("*", "", -1)


def set_limits(rig: StateRig, scope: pool.Scope, limits: Limits | None) -> Verdict:
    return rig.item(pool.SetLimits((pool.LimitItem(scope, limits),), "anna"))


def gate(until: int = 0, jobs: str = "") -> Gate:
    """A gate that is closed until `until` seconds after T0, or for good."""
    until_ms = (T0 + until) * 1000 if until else 0
    return Gate(0, GateAction.PAUSE, "why", "anna", 0, until_ms, jobs=jobs)


def close(rig: StateRig, until: int = 0) -> Verdict:
    return rig.answer(pool.CloseGate(gate(until))).verdict


# ---- limits


def test_a_tenant_has_no_limit_for_one_priority_of_all_pools() -> None:
    """A leader could not tell which launches that would be about."""
    rig = StateRig()
    with rig.unchanged():
        assert set_limits(rig, ("a", "", 3), Limits(concurrent=1)) is Verdict.BAD_LIMITS


def test_there_are_no_more_scopes_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "LIMITS_MAX", 2)
    rig = StateRig()
    for tenant in ("a", "b"):
        assert set_limits(rig, (tenant, "", -1), Limits(weight=1)) is Verdict.ACCEPTED
    with rig.unchanged():
        assert set_limits(rig, ("c", "", -1), Limits(weight=1)) is Verdict.TOO_MANY
    assert set_limits(rig, ("b", "", -1), Limits(weight=2)) is Verdict.ACCEPTED
    assert set_limits(rig, ("a", "", -1), None) is Verdict.ACCEPTED
    assert set_limits(rig, ("c", "", -1), Limits(weight=1)) is Verdict.ACCEPTED


# ---- gates


def test_there_are_no_more_gates_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "GATES_MAX", 2)
    rig = StateRig()
    close(rig, until=60)
    close(rig)
    with rig.unchanged():
        assert close(rig) is Verdict.TOO_MANY
    # what is over counts no more
    assert close(rig.to(60)) is Verdict.ACCEPTED
    assert list(rig.state.gates) == [2, 3]


# ---- drains


@dataclass(frozen=True)
class Drained:
    by: str
    at_ms: int


def drains(rig: StateRig) -> dict[int, Drained]:
    """Who is drained, by number."""
    return {
        number: Drained(one.drained_by, one.drained_ms)
        for number, one in rig.state.executors.items()
        if one.drained_by
    }


def drain(rig: StateRig, executor: str = "e1", *, by: str = "anna", is_over: bool = False) -> int:
    return rig.answer(pool.Drain(executor, by, is_over)).verdict


def test_an_executor_is_drained_with_every_ledger_that_it_has_had() -> None:
    rig = with_job()
    rig.join("e1", "l2")
    rig.join("e2", "l1")
    assert drain(rig.to(5)) == Verdict.ACCEPTED
    assert drains(rig) == dict.fromkeys((1, 2), Drained("anna", rig.at_ms))


def test_who_drained_it_first_stays_known() -> None:
    rig = with_job()
    drain(rig.to(5))
    rig.to(9)
    with rig.unchanged():
        assert drain(rig, by="bea") == Verdict.ALREADY
    assert drains(rig) == {1: Drained("anna", (T0 + 5) * 1000)}


def test_it_stays_drained_when_it_connects_again() -> None:
    rig = with_job()
    drain(rig)
    assert rig.join("e1", "l1") == 1
    assert list(drains(rig)) == [1]


# ---- all together


def full() -> StateRig:
    rig = with_job()
    set_limits(rig, EACH, Limits(1, 2, 3, 4, 5, 6, 7))
    set_limits(rig, ("a", "command", 3), Limits(weight=9))
    close(rig, until=90)
    rig.append(
        pool.CloseGate(Gate(0, GateAction.DROP, "r", "b", 0, 0, "command", "x", "a", "a/*", 3))
    )
    drain(rig)
    return rig


def test_all_of_it_is_in_the_image() -> None:
    state = full().state
    again = decode_state([encode_state(state)])
    assert again.limits == state.limits
    assert list(again.limits) == list(state.limits)
    assert again.gates == state.gates
    assert again.executors[1].drained_by == "anna"
    assert encode_state(again) == encode_state(state)
