"""Backfills: what of a period may be due again, and what must not be, whoever asks."""

from __future__ import annotations

from typing import Any

import pytest

from cron.api.launches import BackfillReport, BackfillRequest
from cron.errors import Conflict
from cron.job import Schedule
from cron.launch_state import LaunchState
from cron.scheduler.indexes import LeaderIndexes
from cron.service.backfill import backfill
from cron.service.replica import Replica
from cron.state.commands import Forget
from cron.state.outcome import Result
from cron.state.rows import Row, RowKind
from cron.state.state import State
from tests.states import ended_rows
from tests.unit.state_rig import T0, StateRig, job, with_job

JOB = "default/backup"


class FakeWorld:
    """A leader, an applier and a history on one rig; history may have lost rows."""

    def __init__(self, rig: StateRig) -> None:
        self.rig = rig
        self.forgotten: set[int] = set()

    @property
    def state(self) -> State:
        return self.rig.state

    @property
    def indexes(self) -> LeaderIndexes:
        return LeaderIndexes(self.state)

    async def submit(self, build: Any) -> tuple[int, tuple[Result, ...]]:
        outcome = self.rig.append(*build(self.rig.state, self.rig.at_ms))
        return self.rig.state.index, outcome.results

    async def of_job(self, job: str, from_s: int, to_s: int) -> list[Row]:
        rows = [row for row in ended_rows(self.rig.state.history) if row.job == job]
        return [
            row
            for row in sorted(rows, key=lambda row: (row.scheduled_s, row.attempt, row.ended_index))
            if row.ended_index not in self.forgotten and row.last_s > from_s
            if row.scheduled_s <= to_s
        ]

    async def run(self, *, dry: bool = False) -> BackfillReport:
        return await self.ask(from_s=T0 + 1, to_s=T0 + 181, is_dry_run=dry)

    async def ask(self, **asks: Any) -> BackfillReport:
        world: Any = self
        request = BackfillRequest(job=JOB, by="anna", **asks)
        return await backfill(Replica(world, world, world, world), request)


def three_instants() -> StateRig:
    """The first succeeded, the second was lost, the third skipped."""
    rig = with_job().to(180)
    rig.account(60, 120, 180)
    rig.begin(60)
    rig.finished(60)
    rig.begin(120)
    rig.launched(120)
    rig.lost(120)
    rig.skip(180)
    return rig


def names(*seconds: int) -> list[str]:
    state = with_job().state
    return [str(state.launch_name((1, T0 + second, 0))) for second in seconds]


async def test_what_did_not_succeed_is_due_again() -> None:
    world = FakeWorld(three_instants())
    assert (await world.run(dry=True)).launches == names(120, 180)
    assert not world.state.due
    assert (await world.run()).launches == names(120, 180)
    assert [row.attempt for row in world.state.due.values()] == [1, 0]


async def test_late_report_of_a_success_is_a_success() -> None:  # R9
    """A lost launch whose late report said that it had succeeded was run again."""
    rig = three_instants()
    rig.finished(120)
    assert [row.kind for row in rig.rows if row.scheduled_s == T0 + 120] == [
        RowKind.ENDED,
        RowKind.AMENDMENT,
    ]
    assert (await FakeWorld(rig).run()).launches == names(180)


async def test_late_report_of_a_failure_is_filled_back() -> None:  # R9
    rig = three_instants()
    rig.finished(120, state=LaunchState.FAILED, exit_code=1)
    assert (await FakeWorld(rig).run()).launches == names(120, 180)


async def test_what_history_does_not_know_is_not_run_again() -> None:  # promise 2
    """A replica without that part of history took "no row" for "never run", and ran it again."""
    world = FakeWorld(three_instants())
    world.forgotten = {row.ended_index for row in world.rig.rows if row.scheduled_s == T0 + 60}
    with pytest.raises(Conflict, match="not on this replica"):
        await world.run()
    assert not world.state.due


async def test_what_was_before_the_job_may_be_filled_back() -> None:
    rig = with_job()
    report = await FakeWorld(rig).ask(from_s=T0 - 119, to_s=T0 + 1)
    assert report.launches == names(-60, 0)
    assert (report.before, report.applied_s) == (2, T0)


async def test_the_plan_says_how_many_launches_are_older_than_the_job() -> None:
    rig = with_job().to(60)
    rig.account(60)
    rig.skip(60)
    world = FakeWorld(rig)
    for is_dry_run in (True, False):
        report = await world.ask(from_s=T0 - 119, to_s=T0 + 61, is_dry_run=is_dry_run)
        assert report.launches == names(-60, 0, 60)
        assert (report.before, report.applied_s) == (2, T0)
    late = await FakeWorld(three_instants()).run()
    assert (late.before, late.applied_s) == (0, 0)


async def test_a_period_before_an_edit_has_the_instants_that_it_had_then() -> None:
    """The new schedule was laid over the time of the old one: the job ran at instants that had
    never been any."""
    rig = with_job(schedule=Schedule("0 * * * *", "0 * * * *")).to(180)
    rig.account(to=180)
    rig.put(job())
    rig.to(240).account(240)
    rig.skip(240)
    report = await FakeWorld(rig).ask(from_s=T0 + 1, to_s=T0 + 241, is_dry_run=True)
    assert report.launches == names(240)


async def test_what_may_have_run_under_a_forgotten_job_is_not_repeated() -> None:
    """Nobody can know whether a launch ran whose rows and whose job are gone (promise 2)."""
    rig = with_job().to(60)
    rig.account(60)
    rig.skip(60)
    rig.put(removed=(JOB,))
    rig.to(120).append(Forget((1,), T0 + 60))
    rig.put(job())
    world = FakeWorld(rig)
    world.forgotten = {row.ended_index for row in rig.rows}  # retention has taken it
    with pytest.raises(Conflict, match="is forgotten"):
        await world.ask(from_s=T0 + 1, to_s=T0 + 61)
    report = await world.ask(from_s=T0 + 61, to_s=T0 + 121)
    assert report.launches == names(120), "nothing ran after that"
