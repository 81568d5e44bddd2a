"""How many launches fall due in each minute of the next day."""

from __future__ import annotations

import msgspec
import pytest

from cron.job import Job, Schedule
from cron.service.crowd import MINUTES_AHEAD, SCHEDULES_MAX, Crowd, count_due
from cron.state import commands as c
from cron.state.state import JobRecord
from tests.unit.state_rig import T0, StateRig, job

BEGIN = T0 // 3600 * 3600


def declared(*jobs: Job) -> StateRig:
    rig = StateRig()
    rig.put(*jobs)
    return rig


def counted(rig: StateRig) -> list[int]:
    return count_due(rig.state.jobs.values(), BEGIN)


def test_jobs_count_in_the_minutes_in_which_they_fall_due() -> None:
    rig = declared(
        job("each-minute", schedule=Schedule("* * * * *", "* * * * *")),
        job("often", schedule=Schedule("@every 20s", every_s=20)),
        job("at-five", schedule=Schedule("5 * * * *", "5 * * * *")),
        job("also-at-five", schedule=Schedule("5 * * * *", "5 * * * *")),
    )
    assert counted(rig) == [6 if place % 60 == 5 else 4 for place in range(24 * 60)]


def test_what_a_pause_skips_does_not_count() -> None:
    rig = declared(job("a"), job("b"), job("c"))
    rig.append(c.Pause(("default/a",), "", 0, "ada"))
    rig.append(c.Pause(("default/b",), "", (BEGIN + 30 * 60) * 1000, "ada"))
    assert counted(rig) == [1] * 30 + [2] * (MINUTES_AHEAD - 30)


def test_heartbeats_of_the_cell_itself_do_not_count() -> None:
    beat = msgspec.structs.replace(job(), name="raftcron/heartbeat-ops")
    assert counted(declared(beat)) == [0] * MINUTES_AHEAD
    assert counted(declared(beat, job("a"))) == [1] * MINUTES_AHEAD


def test_more_schedules_than_are_looked_at_give_no_answer() -> None:
    (record,) = declared(job()).state.jobs.values()

    def like(every_s: int) -> JobRecord:
        other = job(schedule=Schedule(f"@every {every_s}s", every_s=every_s))
        return msgspec.structs.replace(record, job=other)

    periods = range(1_000, 1_000 + SCHEDULES_MAX)
    assert sum(count_due([like(one) for one in periods], BEGIN)) > 0
    assert count_due([like(one) for one in range(1_000, 1_001 + SCHEDULES_MAX)], BEGIN) == []


async def test_the_day_is_counted_once_in_ten_minutes_and_what_is_over_is_cut_off() -> None:
    rig = declared(job("a"))
    crowd = Crowd(lambda: rig.state)
    crowd.wait_s = 60
    assert await crowd.next_day(BEGIN * 1000) == [1] * MINUTES_AHEAD
    rig.put(job("b"))
    late_ms = BEGIN * 1000 + 9 * 60_000 + 59_999
    assert await crowd.next_day(late_ms) == [1] * (MINUTES_AHEAD - 9)
    assert await crowd.next_day(late_ms + 1) == [2] * MINUTES_AHEAD


def test_of_schedules_that_are_many_and_often_due_the_next_day_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cron.service.crowd.LOOKS_MAX", MINUTES_AHEAD)
    one = job("a", schedule=Schedule("* * * * *", "* * * * *"))
    assert counted(declared(one)) == [1] * MINUTES_AHEAD
    more = job("b", schedule=Schedule("0 0 * * *", "0 0 * * *"))
    assert len(counted(declared(one, more))) == 60


async def test_an_answer_does_not_wait_for_a_long_count() -> None:
    rig = declared(job("a"))
    crowd = Crowd(lambda: rig.state)
    crowd.wait_s = 0
    assert await crowd.next_day(BEGIN * 1000) == []
    crowd.wait_s = 60
    assert await crowd.next_day(BEGIN * 1000) == [1] * MINUTES_AHEAD
