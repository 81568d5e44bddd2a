"""Reads: by default of what a majority has, with --stale of what a replica has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cron.errors import LimitExceeded, NotLeader, Unavailable
from cron.leader.applier import StateApplier
from tests.fakes.memory_log import MemoryCell
from tests.unit.state_rig import job
from tests.unit.test_leader_term import NoHistory, Replica
from tests.unit.test_service_pauses import service

BACKUP = "default/backup"
READS: dict[str, tuple[Any, ...]] = {
    "next": (BACKUP, None, 3),
    "limits": (),
    "gates": (),
    "executors": (),
}


@asynccontextmanager
async def cut_off() -> AsyncIterator[Replica]:
    """A leader that has lost the others and does not know it yet."""
    cell = MemoryCell(("r1", "r2", "r3"))
    nothing: Any = NoHistory()
    others = [cell.log(name, StateApplier(nothing)) for name in ("r2", "r3")]
    replica = Replica(cell)
    await replica.log.start()
    for log in others:
        await log.start()
    cell.elect("r1")
    replica.leader.start()
    await replica.until(lambda: replica.leader.epoch is not None)
    await replica.put(job("backup"))
    cell.isolate("r1", believes=True)
    try:
        yield replica
    finally:
        await replica.leader.stop()
        for log in (replica.log, *others):
            await log.stop()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cron.leader.leader.CONFIRM_MS", 50, raising=False)


@pytest.mark.parametrize("read", READS)
async def test_a_leader_that_is_cut_off_does_not_answer_a_read(read: str) -> None:
    async with cut_off() as replica:
        assert replica.leader.epoch is not None, "it believes that it leads"
        asked = service(replica)
        with pytest.raises(Unavailable) as caught:
            await getattr(asked, read)(*READS[read])
        assert "--stale" in caught.value.hint


async def test_more_reads_than_may_wait_are_refused_at_once_and_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.fakes.memory_log.IN_FLIGHT_MAX", 3)
    async with cut_off() as replica:
        asked = service(replica)
        told = await asyncio.gather(*(asked.limits() for _ in range(5)), return_exceptions=True)
        assert [type(one) for one in told] == [Unavailable] * 3 + [LimitExceeded] * 2
        refused = told[-1]
        assert isinstance(refused, LimitExceeded)
        assert "try again" in refused.hint
        assert "--stale" in refused.hint


async def test_what_is_stale_is_answered_at_once_and_says_how_old_it_is() -> None:
    from cron.api.reading import STALE, reading

    async with cut_off() as replica:
        asked = service(replica)
        with reading(((STALE, "1"),)) as read:
            told = await asked.next(BACKUP, None, 3)
        assert len(told.times_s) == 3
        assert read.behind is not None
        assert (read.behind.replica, read.behind.age_ms) == ("r1", None)
        assert read.behind.index == replica.log.applied.index
        await replica.leader.stop()
        with reading(((STALE, "1"),)) as read:
            assert len((await asked.next(BACKUP, None, 3)).times_s) == 3
        with pytest.raises(NotLeader), reading(((STALE, "1"),)):
            await asked.executors()  # only a leader has connections


async def test_a_read_waits_for_what_was_committed_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a client was told is done, its next read shows, whatever replica it asks."""
    async with cut_off() as replica:
        replica.cell.heal()
        asked = service(replica)
        steps: list[str] = []
        barrier = replica.log.barrier

        async def noted(*, timeout_ms: int) -> Any:
            await asyncio.sleep(0)
            position = await barrier(timeout_ms=timeout_ms)
            steps.append("confirmed")
            return position

        monkeypatch.setattr(replica.log, "barrier", noted)
        replica.cell.elect("r1")
        await replica.until(lambda: replica.leader.epoch is not None)
        await asked.limits()
        assert steps[-1:] == ["confirmed"]
