"""Jobs as the API tells them: which jobs go on, and when they are due next."""

from __future__ import annotations

from typing import Any

from cron.api.jobs import PauseRequest, PauseView
from cron.service import replica as serving
from cron.service.jobs import of_job
from cron.service.service import CellService
from tests.unit.api_rig import Calls
from tests.unit.state_rig import job
from tests.unit.test_leader_term import Replica, reigning

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
