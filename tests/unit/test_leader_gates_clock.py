"""A gate that lets launches wait holds the clocks of their deadlines."""

from __future__ import annotations

from typing import Any

import pytest

from cron.job import Catchup
from cron.scheduler.gates import shown_deadline_ms
from cron.state.pool import HELD_MS_MAX, GateAction, LiftGates
from tests.batches import BeginItem, begin_of
from tests.unit.queues_rig import QueuesRig
from tests.unit.state_rig import T0, job

DEADLINE_S = 60
WEEK_S = HELD_MS_MAX // 1000


def waiting(**fields: Any) -> QueuesRig:
    """The launch of 60 waits at gate 1, which was closed at 50."""
    rig = QueuesRig(job(**{"deadline_s": DEADLINE_S, "catchup": Catchup.LAST} | fields))
    rig.to(50).close()
    rig.to(60).account(60)
    assert rig.turn() == []
    return rig


def opened(rig: QueuesRig, at_s: float) -> QueuesRig:
    rig.to(at_s).append(LiftGates((1,), "anna"))
    return rig


def turns(rig: QueuesRig, from_s: int, to_s: int) -> list[str]:
    """All that is decided in a turn every five seconds."""
    words = []
    for second in range(from_s, to_s, 5):
        rig.to(second)
        words += rig.turn()
    return words


def test_a_launch_behind_a_gate_outlasts_its_deadline_and_begins_when_that_opens() -> None:
    """It was skipped at its deadline."""
    rig = waiting()
    assert turns(rig, 65, 3_600) == []
    opened(rig, 3_600)
    assert rig.turn() == ["begin 1@60#1"]
    row = rig.rig.row(60)
    assert row.not_after_ms == rig.now_ms + 5_000
    # It has what was left of its time: all of it, since it came due behind the gate.
    assert row.deadline_ms == rig.now_ms + DEADLINE_S * 1000


def test_a_launch_has_as_much_time_left_as_when_the_gate_was_closed() -> None:
    rig = QueuesRig(job(deadline_s=DEADLINE_S))
    rig.to(60).account(60)
    rig.to(100).close()  # 20 s are left
    assert turns(rig, 100, 500) == []
    opened(rig, 500)
    row = rig.rig.row(60)
    assert shown_deadline_ms(rig.state, row, rig.state.by_number[1], rig.now_ms) == (
        (T0 + 520) * 1000
    )
    rig.queues.places.drop(1)  # nobody has room
    assert turns(rig, 501, 520) == []
    rig.to(521)
    assert rig.turn() == ["skip 1@60 deadline"]


def test_what_was_over_before_a_gate_was_closed_is_over() -> None:
    rig = QueuesRig(job(deadline_s=DEADLINE_S))
    rig.to(60).account(60)
    rig.to(130).close()
    assert rig.turn() == ["skip 1@60 deadline"]


def test_a_gate_that_opens_by_itself_holds_clocks_until_then() -> None:
    rig = QueuesRig(job(deadline_s=DEADLINE_S))
    rig.to(50).close(until_ms=(T0 + 1_000) * 1000)
    rig.to(60).account(60)
    assert turns(rig, 60, 1_000) == []
    rig.to(1_001)
    assert rig.turn() == ["begin 1@60#1"]


def test_time_behind_several_gates_counts_once() -> None:
    rig = waiting()
    rig.to(70).close()
    assert turns(rig, 70, 500) == []
    opened(rig, 500)
    assert turns(rig, 500, 800) == []
    rig.to(800).append(LiftGates((2,), "anna"))
    assert rig.turn() == ["begin 1@60#1"]
    assert rig.rig.row(60).deadline_ms == (T0 + 800 + DEADLINE_S) * 1000


def test_of_a_job_that_wants_one_of_what_was_missed_the_newest_outlasts_its_deadline() -> None:
    """Else all that came due in a night would begin at once in the morning."""
    rig = waiting()
    rig.to(120).account(120)
    assert rig.turn() == ["skip 1@60 deadline"]
    opened(rig, 900)
    assert rig.turn() == ["begin 1@120#1"]


def test_of_a_job_that_wants_all_that_was_missed_all_wait() -> None:
    rig = waiting(catchup=Catchup.ALL)
    rig.to(120).account(120)
    assert rig.turn() == []
    opened(rig, 900)
    assert rig.turn() == ["begin 1@60#1", "begin 1@120#1"]


def test_a_gate_that_drops_holds_no_clock() -> None:
    rig = QueuesRig(job(deadline_s=DEADLINE_S))
    rig.to(60).account(60)
    number = rig.close(action=GateAction.DROP, jobs="default/nothing-*")
    rig.append(LiftGates((number,), "anna"))
    rig.to(121)
    assert rig.turn() == ["skip 1@60 deadline"]


def test_a_new_leader_knows_how_long_gates_held_a_launch() -> None:
    rig = waiting()
    opened(rig, 900)
    rig.to(910)
    rig.lead()
    assert rig.turn() == ["begin 1@60#1"]
    assert rig.rig.row(60).deadline_ms == (T0 + 900 + DEADLINE_S) * 1000


def test_clocks_are_held_for_a_week_at_most() -> None:
    rig = waiting()
    rig.to(60 + WEEK_S)
    assert rig.turn() == []
    rig.to(60 + WEEK_S + DEADLINE_S + 1)
    assert rig.turn() == ["skip 1@60 deadline"]


def test_what_was_refused_after_it_began_keeps_the_rest_of_its_time() -> None:
    rig = waiting(catchup=Catchup.ALL)
    opened(rig, 900)
    assert rig.turn() == ["begin 1@60#1"]
    rig.to(901).refuse(60)
    rig.to(902)
    assert rig.turn() == ["begin 1@60#2"]
    assert rig.rig.row(60).deadline_ms == (T0 + 900 + DEADLINE_S) * 1000


@pytest.mark.parametrize("more_s", [DEADLINE_S + 1, 10 * WEEK_S])
def test_no_deadline_is_put_off_by_more_than_a_launch_has_that_comes_due(more_s: int) -> None:
    rig = waiting()
    opened(rig, 900)
    late_ms = rig.now_ms + more_s * 1000
    item = BeginItem((1, T0 + 60, 0), 1, rig.state.by_number[1].revision, 1, late_ms, (), late_ms)
    rig.append(begin_of((item,)))
    assert rig.state.active[item.key].deadline_ms == rig.now_ms + DEADLINE_S * 1000
