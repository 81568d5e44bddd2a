"""A job whose schedule the leader cannot read holds up itself alone."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from cron.calendar import schedule as schedules
from cron.calendar.zones import zone
from cron.errors import ScheduleError
from cron.job import Catchup, Schedule
from cron.service.jobs import of_job
from cron.state.rows import RowKind
from tests.states import ended_rows
from tests.unit.state_rig import job
from tests.unit.test_leader_term import Replica, reigning

NEW_ZONE = "Mars/Olympus"
UNKNOWN = Schedule("* * * * *", "* * * * *", NEW_ZONE)
SECOND = Schedule("@every 1s", every_s=1)


def rows_of(replica: Replica, name: str) -> int:
    record = replica.state.jobs[name]
    tails = [row for row in ended_rows(replica.state.history) if row.job == name]
    return len(replica.state.open_of(record)) + sum(
        row.count for row in tails if row.kind is not RowKind.AMENDMENT
    )


async def test_a_job_of_an_unknown_zone_is_held_and_the_others_run() -> None:
    async with reigning() as replica:
        with capture_logs() as logs:
            await replica.put(job("strange", schedule=UNKNOWN), job("backup", schedule=SECOND))
            term = replica.state.epoch.term
            replica.clock.ms += 3_000
            await replica.until(lambda: rows_of(replica, "default/backup") >= 3)
        assert replica.failures == []
        assert replica.state.epoch.term == term
        record = replica.state.jobs["default/strange"]
        assert rows_of(replica, "default/strange") == 0
        assert NEW_ZONE in replica.leader.held_note
        told = [line for line in logs if line["event"] == "job.held"]
        assert [line["job"] for line in told] == ["default/strange"]
        assert record.job is not None
        view = of_job(record, record.job, None, replica.clock.ms)
        assert NEW_ZONE in view.held
        assert view.next_s == []


async def test_the_next_leader_is_not_stopped_either() -> None:
    async with reigning() as replica:
        await replica.put(job("strange", schedule=UNKNOWN))
        replica.cell.elect("r1")
        await replica.until(lambda: replica.leader.epoch is not None)
        await replica.put(job("backup", schedule=SECOND))
        replica.clock.ms += 2_000
        await replica.until(lambda: rows_of(replica, "default/backup") >= 2)
        assert NEW_ZONE in replica.leader.held_note


async def test_its_instants_get_rows_once_a_leader_knows_the_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"now": False}

    def zone_of(name: str) -> object:
        if name == NEW_ZONE and known["now"]:
            return zone("UTC")
        return zone(name)

    monkeypatch.setattr(schedules, "zone", zone_of)
    schedules._compile.cache_clear()
    async with reigning() as replica:
        await replica.put(job("strange", schedule=UNKNOWN, catchup=Catchup.ALL))
        replica.clock.ms += 180_000
        await replica.put(job("backup", schedule=SECOND))
        assert rows_of(replica, "default/strange") == 0
        known["now"] = True
        replica.cell.elect("r1")
        await replica.until(lambda: rows_of(replica, "default/strange") == 3)
        assert replica.leader.held_note == ""
    schedules._compile.cache_clear()


async def test_whatever_a_schedule_raises_stops_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    def zone_of(name: str) -> object:
        if name == NEW_ZONE:
            raise RuntimeError("a rule of a later version")
        return zone(name)

    monkeypatch.setattr(schedules, "zone", zone_of)
    async with reigning() as replica:
        await replica.put(job("strange", schedule=UNKNOWN), job("backup", schedule=SECOND))
        replica.clock.ms += 2_000
        await replica.until(lambda: rows_of(replica, "default/backup") >= 2)
        assert "a rule of a later version" in replica.leader.held_note


async def test_a_held_job_that_is_forgotten_within_a_turn_is_not_told_of() -> None:
    async with reigning() as replica:
        await replica.put(job("strange", schedule=UNKNOWN))
        replica.clock.ms += 1_000
        await replica.until(lambda: bool(replica.leader.held_note))
        del replica.state.by_number[replica.state.jobs["default/strange"].number]
        assert replica.leader.held_note == ""


def test_an_unknown_zone_is_still_refused_in_a_file() -> None:
    with pytest.raises(ScheduleError):
        schedules.check(UNKNOWN)
