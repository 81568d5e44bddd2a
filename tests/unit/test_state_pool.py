"""Limits, gates and drains: what operators say of the pool."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cron.state import commands as c
from cron.state import pool, pooling
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.pool import Gate, GateAction, Limits
from launcher.launch import LaunchState
from launcher.work import Epoch
from tests.unit.state_rig import T0, StateRig, but_place_and_time, with_job

EACH: pool.Scope = ("*", "", -1)


def set_limits(rig: StateRig, scope: pool.Scope, limits: Limits | None) -> Verdict:
    return rig.item(pool.SetLimits((pool.LimitItem(scope, limits),), "anna"))


def gate(until: int = 0, jobs: str = "") -> Gate:
    """A gate that is closed until `until` seconds after T0, or for good."""
    until_ms = (T0 + until) * 1000 if until else 0
    return Gate(0, GateAction.PAUSE, "why", "anna", 0, until_ms, jobs=jobs)


def close(rig: StateRig, until: int = 0) -> Verdict:
    return rig.answer(pool.CloseGate(gate(until))).verdict


def lift(rig: StateRig, *numbers: int) -> list[Verdict]:
    return rig.items(pool.LiftGates(numbers, "anna"))


# ---- limits


def test_limits_hold_from_now_on_until_they_are_changed_or_taken_away() -> None:
    rig = StateRig()
    assert set_limits(rig, EACH, Limits(concurrent=2)) is Verdict.ACCEPTED
    assert set_limits(rig, EACH, Limits(concurrent=3)) is Verdict.ACCEPTED
    assert rig.state.limits == {EACH: Limits(concurrent=3)}
    assert set_limits(rig, EACH, None) is Verdict.ACCEPTED
    assert rig.state.limits == {}


@pytest.mark.parametrize("limits", [Limits(concurrent=2), None])
def test_what_is_so_already_changes_nothing(limits: Limits | None) -> None:
    rig = StateRig()
    set_limits(rig, EACH, limits)
    with rig.unchanged():
        assert set_limits(rig, EACH, limits) is Verdict.ALREADY


def test_scopes_are_apart_and_answered_each() -> None:
    rig = StateRig()
    scopes = [EACH, ("", "", -1), ("a", "", -1), ("a", "command", -1), ("a", "command", 9)]
    items = tuple(pool.LimitItem(one, Limits(weight=n)) for n, one in enumerate(scopes))
    assert rig.items(pool.SetLimits(items)) == [Verdict.ACCEPTED] * 5
    assert [one.weight for one in rig.state.limits.values()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("priority", "fits"), [(-2, False), (-1, True), (9, True), (10, False)])
def test_there_are_ten_priorities_and_any(priority: int, fits: bool) -> None:
    rig = StateRig()
    verdict = set_limits(rig, ("", "command", priority), Limits(concurrent=1))
    assert verdict is (Verdict.ACCEPTED if fits else Verdict.BAD_LIMITS)
    assert len(rig.state.limits) == int(fits)


def test_a_tenant_has_no_limit_for_one_priority_of_all_pools() -> None:
    """A leader could not tell which launches that would be about."""
    rig = StateRig()
    with rig.unchanged():
        assert set_limits(rig, ("a", "", 3), Limits(concurrent=1)) is Verdict.BAD_LIMITS


@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_nothing_is_limited_below_nothing(name: str) -> None:
    rig = StateRig()
    with rig.unchanged():
        assert set_limits(rig, EACH, Limits(**{name: -1})) is Verdict.BAD_LIMITS
    assert set_limits(rig, EACH, Limits(**{name: 1})) is Verdict.ACCEPTED


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


def test_one_bad_item_spoils_no_other() -> None:
    rig = StateRig()
    bad = pool.LimitItem(("", "", 77), Limits(weight=1))
    good = pool.LimitItem(EACH, Limits(weight=1))
    assert rig.items(pool.SetLimits((bad, good))) == [Verdict.BAD_LIMITS, Verdict.ACCEPTED]


# ---- gates


def test_a_gate_gets_its_number_and_time_from_state() -> None:
    rig = StateRig()
    answer = rig.to(30).answer(pool.CloseGate(gate(jobs="billing/*")))
    assert (answer.verdict, answer.number) == (Verdict.ACCEPTED, 1)
    found = rig.state.gates[1]
    assert (found.number, found.since_ms, found.jobs) == (1, rig.at_ms, "billing/*")
    assert (found.reason, found.by) == ("why", "anna")


def test_numbers_of_gates_are_not_used_again() -> None:
    rig = StateRig()
    close(rig)
    lift(rig, 1)
    assert rig.answer(pool.CloseGate(gate())).number == 2
    again = decode_state([encode_state(rig.state)])
    assert (again.gate_numbers, list(again.gates)) == (2, [2])


def test_gates_are_lifted_each_once() -> None:
    rig = StateRig()
    close(rig)
    close(rig)
    assert lift(rig, 2, 2, 7) == [Verdict.ACCEPTED, Verdict.ALREADY, Verdict.ALREADY]
    assert list(rig.state.gates) == [1]


@pytest.mark.parametrize(("now", "holds"), [(0, True), (59, True), (60, False), (61, False)])
def test_a_gate_holds_until_its_time(now: int, holds: bool) -> None:
    rig = StateRig()
    close(rig, until=60)
    assert rig.state.gates[1].holds((T0 + now) * 1000) is holds


def test_a_gate_for_good_holds_always() -> None:
    assert gate().holds(1 << 62)


@pytest.mark.parametrize("now", [60, 61])
def test_a_gate_whose_time_is_over_is_not_closed(now: int) -> None:
    rig = StateRig()
    rig.to(now)
    with rig.unchanged():
        assert close(rig, until=60) is Verdict.BAD_TIMES


def test_closing_one_forgets_those_that_are_over() -> None:
    rig = StateRig()
    close(rig, until=60)
    close(rig, until=90)
    close(rig)
    rig.to(60)
    close(rig)
    assert list(rig.state.gates) == [2, 3, 4]


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


def test_a_refused_gate_opens_no_other() -> None:
    rig = StateRig()
    close(rig, until=60)
    rig.to(90)
    with rig.unchanged():
        assert close(rig, until=80) is Verdict.BAD_TIMES


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


def test_a_drain_ends_when_somebody_says_so() -> None:
    rig = with_job()
    before = but_place_and_time(rig.state)
    drain(rig)
    assert drain(rig, is_over=True) == Verdict.ACCEPTED
    del rig.state.revisions[1:]  # who drained it, and who said that it is over
    assert but_place_and_time(rig.state) == before
    with rig.unchanged():
        assert drain(rig, is_over=True) == Verdict.ALREADY


def test_nobody_in_particular_can_drain_too() -> None:
    rig = with_job()
    drain(rig, by="")
    assert drains(rig)[1].by == "somebody"
    assert drain(rig, by="") == Verdict.ALREADY


def test_nobody_drains_an_executor_that_there_is_not() -> None:
    rig = with_job()
    with rig.unchanged():
        assert drain(rig, "e9") == Verdict.UNKNOWN_EXECUTOR


def test_it_stays_drained_when_it_connects_again() -> None:
    rig = with_job()
    drain(rig)
    assert rig.join("e1", "l1") == 1
    assert list(drains(rig)) == [1]


def test_what_runs_on_a_drained_executor_ends_as_ever() -> None:
    rig = with_job()
    rig.to(60).account(60)
    rig.begin(60)
    drain(rig)
    rig.launched(60)
    assert rig.finished(60) is Verdict.ACCEPTED
    assert rig.answer(c.ExecutorLeft(1)).verdict is Verdict.ACCEPTED


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


def test_none_of_it_is_taken_from_who_does_not_lead() -> None:
    rig = full()
    commands = (
        pool.SetLimits((pool.LimitItem(EACH, None),)),
        pool.CloseGate(gate()),
        pool.LiftGates((1,)),
        pool.Redrive(()),
        pool.DropDead(()),
        pool.Drain("e1", "", is_over=True),
    )
    for command in commands:
        with rig.unchanged():
            outcome = rig.append(command, epoch=Epoch(1, 9, "r9"))
            assert outcome.verdict is Verdict.STALE_EPOCH


def test_a_change_of_the_pool_adds_no_row_and_moves_no_launch() -> None:
    rig = full()
    assert rig.rows == []
    rig.to(60).account(60)
    for command in (pool.LiftGates((1, 2)), pool.SetLimits((pool.LimitItem(EACH, None),))):
        assert rig.append(command).moved.keys() == []
    assert rig.row(60).state is LaunchState.DUE
