"""Launches that begin in the entry that ends others: whose slots they get, and whose not yet."""

from __future__ import annotations

from cron.launch_state import LaunchState
from cron.scheduler.plan import View, plan
from cron.state import commands as c
from cron.state.outcome import Verdict
from launcher.protocol.reports import BatchReport
from tests.batches import said_of
from tests.unit.queues_rig import QueuesRig as Rig
from tests.unit.queues_rig import queue, told
from tests.unit.state_rig import T0, job


def full() -> Rig:
    """All four slots are taken, and two launches wait."""
    rig = Rig(job())
    rig.to(10).account(*range(1, 7))
    assert len(rig.turn()) == 4
    return rig


def reported(rig: Rig, row: int, state: LaunchState, *started_ms: int) -> c.Report:
    """The end of a row of what began by the newest entry."""
    times = ([*(started_ms or (rig.now_ms,))], [rig.now_ms])
    return c.Report(rows=((1, BatchReport(rig.state.index, *said_of(state), [row], *times)),))


def turn(rig: Rig, report: c.Report) -> tuple[list[str], list[list[Verdict]]]:
    """A turn that has a report; what begins, and the verdicts of its entry."""
    commands = plan(View(rig.state, [], rig.queues, reports=[report]), rig.now_ms)
    return told(commands), rig.append(report, *commands)


def test_a_launch_gets_the_slot_of_one_whose_success_is_in_its_entry() -> None:
    rig = full()
    begun, verdicts = turn(rig, reported(rig, 1, LaunchState.SUCCEEDED))
    assert begun == ["begin 1@5#1"]
    assert not any(map(any, verdicts))
    assert sorted(key[1] - T0 for key in rig.state.active) == [1, 3, 4, 5]
    assert rig.agrees()


def test_a_launch_that_may_not_overlap_begins_in_the_entry_that_ends_the_one_before() -> None:
    rig = Rig(queue())
    rig.to(10).account(1, 2)
    assert rig.turn() == ["begin 1@1#1"]
    begun, verdicts = turn(rig, reported(rig, 0, LaunchState.SUCCEEDED))
    assert begun == ["begin 1@2#1"]
    assert not any(map(any, verdicts))
    assert rig.agrees()


def test_a_failure_frees_its_slot_when_it_is_applied() -> None:
    """What follows it is decided then: it may be tried again, and is first then."""
    rig = full()
    begun, _ = turn(rig, reported(rig, 1, LaunchState.FAILED))
    assert begun == []
    assert rig.agrees()
    assert rig.turn() == ["begin 1@5#1"]


def test_a_launch_whose_end_is_refused_keeps_its_slot() -> None:
    rig = full()
    begun, verdicts = turn(rig, reported(rig, 1, LaunchState.SUCCEEDED, 1, 2))
    assert begun == ["begin 1@5#1"]
    assert verdicts[0] == [Verdict.WRONG_STATE]
    assert rig.agrees()
    assert rig.turn() == []


def test_an_end_that_is_reported_twice_frees_one_slot() -> None:
    rig = full()
    twice = reported(rig, 1, LaunchState.SUCCEEDED).rows * 2
    begun, verdicts = turn(rig, c.Report(rows=twice))
    assert begun == ["begin 1@5#1"]
    assert verdicts[0] == [Verdict.ACCEPTED, Verdict.NOT_OPEN]
    assert rig.agrees()
