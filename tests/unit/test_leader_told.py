"""What the leader logs of executors that fall silent, are cut off, or lose launches: a line for
each executor, with counts."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from launcher.pool.events import Reported
from launcher.pool.session import End
from launcher.protocol.reports import RowReport
from launcher.protocol.status import Status
from tests.unit.pool_rig import beat, rigged
from tests.unit.state_rig import job
from tests.unit.test_leader_term import Replica, greeting, reigning

JOBS = 3


async def with_launches(replica: Replica) -> Any:
    """Let three launches be begun on e1; return its session."""
    session = replica.pool.join(greeting("e1"), "")
    await replica.until(lambda: session.is_welcome)
    replica.pool.receive(session, beat(1, 0, replica.clock.ms))
    await replica.until(lambda: replica.pool.is_leased("e1", "l1"))
    await replica.put(*(job(f"j{n}", deadline_s=600) for n in range(JOBS)))
    due_ms, number = replica.clock.ms + 60_000 - replica.clock.ms % 60_000, 1
    while replica.clock.ms < due_ms:  # in steps: a turn that sees the lease over gives e1 up
        replica.clock.ms, number = min(replica.clock.ms + 10_000, due_ms), number + 1
        replica.pool.receive(session, beat(number, 0, replica.clock.ms))
        await replica.until(lambda: replica.pool.lease_ms(session) == replica.pool.lease.give_up_ms)
    await replica.until(lambda: len(replica.state.active) == JOBS)
    assert session.next_message() is not None  # its stream takes them
    while session.next_message() is not None:
        pass
    return session


def of(logs: list[Any], event: str) -> list[Any]:
    return [line for line in logs if line["event"] == event]


async def test_an_executor_that_was_cut_off_is_warned_of_with_what_is_in_doubt() -> None:
    """It was `executor.left`, `it ended its stream`, at info."""
    async with reigning() as replica:
        session = await with_launches(replica)
        with capture_logs() as logs:
            replica.pool.drop(session, End(grpc.StatusCode.CANCELLED, "the stream broke"))
            await replica.until(lambda: bool(of(logs, "executor.left")))
        (line,) = of(logs, "executor.left")
        assert (line["log_level"], line["executor"]) == ("warning", "e1")
        assert (line["error"], line["in_doubt"]) == ("the stream broke", JOBS)


async def test_launches_that_are_lost_at_the_end_of_a_lease_are_counted_in_one_warning() -> None:
    """117 were lost in one run without one warning."""
    async with reigning() as replica:
        session = await with_launches(replica)
        with capture_logs() as logs:
            replica.pool.drop(session, End(grpc.StatusCode.CANCELLED, "the stream broke"))
            replica.clock.ms += replica.pool.lease.give_up_ms
            await replica.until(lambda: not replica.state.executors)
        (line,) = of(logs, "launches.lost")
        assert (line["log_level"], line["executor"], line["count"]) == ("warning", "e1", JOBS)
        assert "lease ended" in line["error"]


async def test_launches_that_an_executor_knows_nothing_of_are_counted_in_one_warning() -> None:
    async with reigning() as replica:
        await with_launches(replica)
        facts = tuple(
            RowReport(row.begun_index, row.row, Status.INTERRUPTED, detail="it died")
            for row in replica.state.active.values()
        )
        with capture_logs() as logs:
            replica.leader.on_event(Reported("e1", "l1", tuple(map(RowReport.as_batch, facts))))
            await replica.until(lambda: not replica.state.active)
        (line,) = of(logs, "launches.lost")
        assert (line["log_level"], line["executor"], line["count"]) == ("warning", "e1", JOBS)


async def test_an_executor_that_leaves_in_order_is_no_warning() -> None:
    async with reigning() as replica:
        session = await with_launches(replica)
        with capture_logs() as logs:
            replica.pool.drop(session, End(grpc.StatusCode.OK, "it ended its stream"))
            await replica.until(lambda: bool(of(logs, "executor.left")))
        assert of(logs, "executor.left")[0]["log_level"] == "info"


@pytest.mark.parametrize(("in_order", "reason"), [(False, "broke"), (True, "ended its stream")])
async def test_a_stream_that_broke_is_told_from_one_that_was_ended(
    in_order: bool, reason: str
) -> None:
    """Whatever happened, it ended its stream."""
    async with rigged() as rig:
        async with rig.joined() as fake:
            if in_order:
                await fake.call.done_writing()
            else:
                fake.call.cancel()
            left = await rig.gone()
        assert reason in left.reason
        assert left.is_cut != in_order
