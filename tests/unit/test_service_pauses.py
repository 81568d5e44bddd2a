"""Jobs as the API tells them: which jobs go on, and when they are due next."""

from __future__ import annotations

from typing import Any

import pytest

from cron.api.jobs import PauseRequest, PauseView
from cron.errors import InvalidInput
from cron.job import Bounds, Schedule
from cron.service import replica as serving
from cron.service.jobs import of_job
from cron.service.service import CellService
from cron.state import commands as c
from launcher.protocol.status import Reason
from tests.unit.api_rig import Calls
from tests.unit.state_rig import T0, job, with_job
from tests.unit.test_leader_term import Replica, reigning
from tests.unit.test_scheduler_plan import follow

BACKUP = "default/backup"
HOUR_MS = 3_600_000


def service(replica: Replica, row_store: Any = None, clock: Any = None) -> Calls:
    one = serving.Replica(replica.leader, replica.applier, row_store, clock or replica.clock)
    return Calls(CellService(one))


async def test_resume_tells_apart_what_was_paused_what_no_longer_and_what_never() -> None:
    async with reigning() as replica:
        await replica.put(job("backup"), job("over"), job("never"))
        asked = service(replica)
        now_ms = replica.clock.ms
        await asked.pause(PauseRequest(pattern=BACKUP, until_ms=now_ms + 2 * HOUR_MS))
        await asked.pause(PauseRequest(pattern="default/over", until_ms=now_ms + 10))
        replica.clock.ms += 20
        report = await asked.resume("default/*", "ada")
        assert report.changed == [BACKUP]
        assert report.unchanged == ["default/never", "default/over"]
        assert all(record.paused is None for record in replica.state.jobs.values())


async def test_a_paused_job_is_due_next_when_its_pause_is_over() -> None:
    async with reigning() as replica:
        await replica.put(job("backup"))
        asked, now_ms = service(replica), replica.clock.ms
        record = replica.state.jobs[BACKUP]
        assert record.job is not None
        going = of_job(record, record.job, None, now_ms).next_s

        until_ms = going[1] * 1000
        await asked.pause(PauseRequest(pattern=BACKUP, until_ms=until_ms, reason="upgrade"))
        assert of_job(record, record.job, None, now_ms).next_s[0] == going[1]
        assert of_job(record, record.job, None, until_ms).next_s[0] > going[1]
        told = await asked.next(BACKUP, None, 2)
        assert (told.paused, told.pause_reason, told.paused_until_ms) == (True, "upgrade", until_ms)
        assert told.times_s == going[:2]

        await asked.pause(PauseRequest(pattern=BACKUP))
        assert of_job(record, record.job, None, now_ms).next_s == []


async def test_a_second_pause_tells_of_the_one_that_holds() -> None:
    async with reigning() as replica:
        await replica.put(job("backup"), job("free"))
        asked = service(replica)
        until_ms = replica.clock.ms + 2 * HOUR_MS
        first = PauseRequest(pattern=BACKUP, until_ms=until_ms, reason="upgrade", by="bob")
        await asked.pause(first)
        shorter = PauseRequest(pattern="default/*", until_ms=until_ms - HOUR_MS, by="ada")
        report = await asked.pause(shorter)
        assert report.changed == ["default/free"]
        assert report.pauses == [
            PauseView(job=BACKUP, until_ms=until_ms, by="bob", reason="upgrade")
        ]


async def test_each_job_skips_its_next_instant_alone() -> None:
    async with reigning() as replica:
        hourly = Schedule("0 * * * *", "0 * * * *")
        ended = Schedule("0 * * * *", "0 * * * *", bounds=Bounds(end_s=1))
        await replica.put(job("backup"), job("hourly", schedule=hourly), job("stopped"))
        await replica.put(job("over", schedule=ended))
        asked, now_ms = service(replica), replica.clock.ms
        await asked.pause(PauseRequest(pattern="default/stopped", by="bob"))
        jobs = {name: record for name, record in replica.state.jobs.items() if record.job}

        def coming(name: str) -> list[int]:
            record = jobs[name]
            assert record.job is not None
            return of_job(record, record.job, None, now_ms).next_s

        going = {name: coming(name) for name in jobs}
        request = PauseRequest(pattern="default/*", is_next=True, by="ada")
        report = await asked.pause(request)
        assert report.changed == [BACKUP, "default/hourly"]
        assert report.unchanged == ["default/over", "default/stopped"]
        assert {one.job: one.until_ms for one in report.pauses} == {
            BACKUP: going[BACKUP][0] * 1000 + 1,
            "default/hourly": going["default/hourly"][0] * 1000 + 1,
            "default/stopped": 0,
        }
        for name in report.changed:
            assert coming(name)[0] == going[name][1]
        again = await asked.pause(request)
        assert again.pauses == report.pauses, "to ask twice skips one"
        with pytest.raises(InvalidInput):
            PauseRequest(pattern=BACKUP, is_next=True, until_ms=now_ms + 1_000).check()


@pytest.mark.parametrize("second", [120, 124])
def test_the_instant_after_a_skipped_one_is_launched(second: int) -> None:
    """Also if nobody led at the instant that is skipped."""
    rig = with_job()
    rig.item(c.Pause((BACKUP,), "", (T0 + 60) * 1000 + 1, "ada"))
    if second == 120:
        follow(rig.to(60), 1)
    assert "begin 1@120#1 on 1" in follow(rig.to(second), 1)
    skipped = [(row.scheduled_s - T0, row.reason) for row in rig.rows]
    assert skipped == [(60, Reason.PAUSED)]
