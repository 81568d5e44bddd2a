"""`limit --waiting` for what people and programs ask for: triggers, backfills, redrives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cron.api.dead import DeadChange, DeadQuery
from cron.api.launches import BackfillRequest
from cron.api.limits import LimitChange
from cron.errors import LimitExceeded
from cron.job import Catchup, Schedule
from cron.launch_state import LaunchState
from cron.service.service import CellService
from cron.state import commands as c
from cron.state.archive import Stream
from cron.state.rows import Row, RowKind
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.batches import AttemptItem, BeginItem, begin_of
from tests.unit.state_rig import T0, job
from tests.unit.test_leader_term import Replica, reigning
from tests.unit.test_service_pauses import service

BACKUP = "default/backup"
MAIL = WorkSpec(argv=(), handler="mail.send", payload=b"1")


async def trigger(asked: CellService, request: str) -> bool:
    """Whether a trigger is accepted; nobody can show its launch here."""
    try:
        await asked.trigger(BACKUP, request, "anna")
    except LimitExceeded:
        return False
    except AttributeError:  # the service has no history to show the launch from
        return True
    return True


class Missed:
    """A history in which five instants were missed."""

    async def of_job(self, _job: object, since_s: int, until_s: int) -> list[Row]:
        return [
            Row(
                RowKind.ENDED, BACKUP, 1, T0 + 60 * minute, 0, 0, LaunchState.SKIPPED,
                Reason.MISSED, 2, T0 * 1000, T0 + 60 * minute, 1,
            )
            for minute in range(1, 6)
            if since_s < T0 + 60 * minute <= until_s
        ]  # fmt: skip


async def limited(replica: Replica, most: int, **fields: Any) -> CellService:
    """A cell without executors in which `most` launches of everything may wait."""
    await replica.put(job(deadline_s=86_400, **fields))
    asked = service(replica)
    await asked.set_limit(LimitChange(waiting_max=most, by="anna"))
    return asked


async def test_triggers_beyond_the_waiting_limit_are_refused_also_in_one_turn() -> None:
    async with reigning() as replica:
        asked = await limited(replica, 3)
        told = await asyncio.gather(*(trigger(asked, f"q{n}") for n in range(20)))
        assert told.count(True) == 3
        assert len(replica.state.due) == 3
        for n in range(20, 30):  # one after the other, in turns of their own
            assert not await trigger(asked, f"q{n}")
        assert len(replica.state.due) == 3


async def test_a_refused_trigger_names_limit_number_and_way_out() -> None:
    async with reigning() as replica:
        asked = await limited(replica, 1)
        assert await trigger(asked, "q1")
        with pytest.raises(LimitExceeded) as caught:
            await asked.trigger(BACKUP, "q2", "anna")
        assert "limit 1" in str(caught.value)
        assert "1 launch waits" in str(caught.value)
        assert "raftcron limit set --waiting" in caught.value.hint


async def test_a_repeated_request_is_answered_though_the_queue_is_full_by_now() -> None:
    async with reigning() as replica:
        asked = await limited(replica, 1)
        assert await trigger(asked, "q1")
        assert await trigger(asked, "q1"), "it was accepted before"
        assert not await trigger(asked, "q2")
        assert len(replica.state.due) == 1


async def test_a_trigger_is_accepted_again_once_what_waited_is_gone() -> None:
    async with reigning() as replica:
        asked = await limited(replica, 1)
        assert await trigger(asked, "q1")
        assert not await trigger(asked, "q2")
        (key,) = replica.state.due
        kill = c.Cancel((c.CancelItem(key, Reason.KILLED, "anna"),))
        await replica.leader.append(kill)
        assert await trigger(asked, "q3")
        assert len(replica.state.due) == 1


async def test_an_instant_that_falls_due_counts_the_triggers_before_it() -> None:
    async with reigning() as replica:
        asked = await limited(replica, 2)
        assert await trigger(asked, "q1")
        assert await trigger(asked, "q2")
        replica.clock.ms = (T0 + 60) * 1000
        await replica.until(lambda: replica.state.jobs[BACKUP].horizon_s >= T0 + 60)
        await replica.until(lambda: len(replica.state.due) == 2)
        (row,) = replica.state.history.tails[Stream.RUNS].all_rows()
        assert row.state is LaunchState.SKIPPED


async def test_a_backfill_beyond_the_waiting_limit_is_refused_whole() -> None:
    async with reigning() as replica:
        asked = await limited(replica, 3, catchup=Catchup.NONE)
        replica.clock.ms = (T0 + 310) * 1000
        await replica.until(lambda: replica.state.jobs[BACKUP].horizon_s >= T0 + 300)
        asked = service(replica, row_store=Missed())
        with pytest.raises(LimitExceeded, match="this would add 5"):
            await asked.backfill(BackfillRequest(job=BACKUP, from_s=T0 + 1, to_s=T0 + 301))
        assert not replica.state.due
        report = await asked.backfill(BackfillRequest(job=BACKUP, from_s=T0 + 1, to_s=T0 + 181))
        assert len(report.launches) == len(replica.state.due) == 3


async def test_a_redrive_leaves_the_letters_for_which_the_queue_has_no_room() -> None:
    async with reigning() as replica:
        minutes = range(1, 5)
        hourly = [Schedule(f"{n} * * * *", f"{n} * * * *") for n in minutes]
        mails = (job(one.text[0], schedule=one, deadline_s=86_400, work=MAIL) for one in hourly)
        await replica.put(*mails)
        asked = service(replica)
        await asked.set_limit(LimitChange(waiting_max=2, by="anna"))
        for minute in minutes:
            await die(replica, T0 + 60 * minute, minute)
        assert len(replica.state.dead) == 4
        change = DeadChange(query=DeadQuery(), by="anna")
        outcome = await asked.redrive(change)
        assert (len(outcome.launches), outcome.left) == (2, 2)
        assert (len(replica.state.due), len(replica.state.dead)) == (2, 2)
        with pytest.raises(LimitExceeded):
            await asked.redrive(change)
        assert len(replica.state.dead) == 2, "nothing is lost"


async def die(replica: Replica, at_s: int, number: int) -> None:
    """Make the launch of a job at an instant a dead letter: it begins, and fails."""
    replica.clock.ms = at_s * 1000
    key = (number, at_s, 0)
    await replica.until(lambda: key in replica.state.due)
    row = replica.state.due[key]
    joined = c.ExecutorJoined("e1", "l1", 4)  # it leaves soon: it is not connected
    executor = replica.state.executor_numbers + 1
    begin = begin_of((BeginItem(key, 1, row.revision, executor, row.deadline_ms),))
    end = AttemptItem.of(key, 1, LaunchState.FAILED, Reason.FATAL, 3, at_s * 1000, at_s * 1000)
    await replica.leader.append(joined, begin, c.Report((end,)))
