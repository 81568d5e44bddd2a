"""What a leader tells of an overload: since when, where, and how much it skips."""

from __future__ import annotations

from collections import Counter, OrderedDict

from cron.api.members import OverloadView
from cron.job import Schedule
from cron.leader.overload import CALM_S, Overload
from cron.scheduler.backlog import BEHIND_S, Line
from cron.scheduler.due import SWEEP_S
from cron.scheduler.flows import FlowKey
from cron.scheduler.plan import View, plan
from cron.state import commands as c
from cron.state.outcome import Result, Verdict
from launcher.protocol.status import Reason
from tests.states import ended_rows
from tests.unit.queues_rig import QueuesRig
from tests.unit.state_rig import T0, job
from tests.unit.test_leader_term import reigning

SECOND = Schedule("@every 1s", every_s=1)


def behind(why: Reason = Reason.OVERLOAD, **jobs: int) -> list[Line]:
    """Lines of these tenants with so many jobs, not empty since T0, which are behind."""
    return [
        Line(
            FlowKey(tenant, "command", 5, None),
            OrderedDict.fromkeys(range(count)),
            since_s=T0,
            why=why,
        )
        for tenant, count in jobs.items()
    ]


def account(*verdicts: Verdict, reason: Reason = Reason.OVERLOAD) -> tuple[c.Account, Result]:
    run = c.Instants(T0 + 1, -1, False, reason, 4, T0 + 4)
    items = tuple(c.AccountLine((number,), 1, T0, T0 + 9, (), (run,)) for number in (1, 2))
    return c.Account(items), Result(Verdict.ACCEPTED, verdicts)


def test_a_leader_says_since_when_more_falls_due_than_can_begin_and_what_it_skips() -> None:
    overload = Overload("r1")
    overload.look([], T0)
    assert overload.note == ""
    overload.look(behind(acme=3, blue=9), T0 + BEHIND_S)
    overload.follow(*account(Verdict.ACCEPTED, Verdict.WRONG_HORIZON))
    overload.follow(*account(Verdict.ACCEPTED, Verdict.ACCEPTED, reason=Reason.PAUSED))
    skip = c.Skip((c.SkippedItem((1, T0, 0), Reason.OVERLOAD),))
    overload.follow(skip, Result(Verdict.ACCEPTED, (Verdict.ACCEPTED,)))
    overload.look(behind(acme=3, blue=9), T0 + 60)
    assert overload.note == (
        "overloaded since 2026-11-20T16:00:00Z: more falls due than can begin in queue command/5 of"
        " tenant blue and 1 more; 5 instants are skipped/overload"
    )
    where = "queue command/5 of tenant blue and 1 more"
    assert overload.view == OverloadView(since_s=T0, queue=where, skipped=5)


def test_an_overload_is_over_once_nothing_was_behind_for_a_while() -> None:
    overload = Overload("r1")
    overload.look(behind(acme=3), T0 + BEHIND_S)
    overload.look([], T0 + BEHIND_S + CALM_S - 1)
    assert "overloaded since" in overload.note
    overload.look([], T0 + BEHIND_S + CALM_S)
    assert overload.note == ""


def test_what_no_executor_can_run_is_no_overload() -> None:
    overload = Overload("r1")
    overload.look(behind(Reason.NO_EXECUTOR, acme=3), T0 + BEHIND_S)
    overload.follow(*account(Verdict.ACCEPTED, Verdict.ACCEPTED, reason=Reason.NO_EXECUTOR))
    assert overload.note == (
        "no executor can run what falls due in queue command/5 of tenant acme;"
        " 8 instants are skipped/no-executor"
    )
    assert overload.view is None
    overload.look([], T0 + BEHIND_S + 1)
    assert overload.note == ""


def test_what_fits_no_executor_is_told_apart_from_what_finds_no_slot() -> None:
    rig = QueuesRig(
        *(job(f"m{n}", schedule=SECOND, where="planet=mars", deadline_s=8) for n in range(80)),
        *(job(f"j{n}", schedule=SECOND, deadline_s=8) for n in range(80)),
    )
    for second in range(1, 40):  # what begins does not end: four slots are soon full
        now_s, heap = T0 + second, rig.to(second).indexes.due_heap
        view = View(
            rig.state,
            heap.take(now_s, limit=100),
            rig.queues,
            steady_ms=T0 * 1000,
            why_behind=heap.why_behind,
        )
        if commands := plan(view, rig.now_ms):
            rig.append(*commands)
    rows = [row for row in rig.rig.rows if row.ended_at_ms > (T0 + 2 * BEHIND_S) * 1000]
    mars = [row for row in rows if row.job.startswith("default/m")]
    assert {row.reason for row in mars} == {Reason.NO_EXECUTOR}
    assert any("fits planet=mars" in row.detail for row in mars)
    assert {row.reason for row in rows if row not in mars} == {Reason.OVERLOAD}


def test_rows_of_patient_jobs_leave_room_for_rows_of_others() -> None:
    """A burst of jobs of every minute kept a job of every second from any row while it lasted."""
    patient = [job(f"m{n}") for n in range(200)]
    rig = QueuesRig(job("often", schedule=SECOND), *patient)
    rig.queues.places.drop(1)  # nothing begins
    for second in range(60, 63):
        now_s = T0 + second
        due = rig.to(second).indexes.due_heap.take(now_s, limit=1_000)
        commands = plan(View(rig.state, due, rig.queues, steady_ms=T0 * 1000), rig.now_ms)
        rig.append(*commands)
        rows = Counter(rig.state.by_number[key[0]].name for key in rig.state.due)
        assert len(rows) == 201
    assert rows["default/often"] > 2


async def test_what_falls_due_without_end_is_told_and_keeps_its_rows_few() -> None:
    """No executor takes anything; the cell had a row for each instant of each job before."""
    async with reigning() as replica:
        await replica.put(*(job(f"j{n}", schedule=SECOND) for n in range(200)))
        state, leader = replica.state, replica.leader
        for _ in range(SWEEP_S):
            replica.clock.ms += 2_000
            now_s = replica.clock.ms // 1000
            await replica.until(lambda now_s=now_s: leader.indexes.due_heap.seen_s == now_s)
        await replica.until(lambda: "queue command/5 of tenant default" in leader.overload.note)
        assert 0 < leader.behind()[("command", 5, "default")] <= 200
        assert len(state.due) < 200  # of 24,000 instants
        await replica.until(
            lambda: min(one.horizon_s for one in state.jobs.values()) >= now_s - SWEEP_S - 2
        )
        waits = [one.number for one in state.jobs.values() if leader.awaits_row(one.number)]
        assert len(waits) > 100
        assert "no executor can run" in leader.awaits_row(waits[0])
        assert "command/5 of tenant default" in leader.awaits_row(waits[0])
        skipped = ended_rows(state.history)
        assert {row.reason for row in skipped} == {Reason.NO_EXECUTOR}
