"""The daemon behind the API: which function answers each row of `cron.api.table`, and when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from cron.api import table as t
from cron.api.launches import OutputQuery, OutputView, ShowRequest
from cron.api.members import ClockReport, ClockRequest, StatusReport, StatusRow
from cron.api.reading import Behind, current
from cron.api.rpc import Request, Rpc, Where
from cron.api.snapshots import SegmentPiece, SegmentRequest, SnapshotsRequest
from cron.errors import NotLeader
from cron.service import (
    backfill,
    catalog,
    dead,
    executors,
    gates,
    jobs,
    launches,
    limits,
    outputs,
    proofs,
    queues,
    resetting,
)
from cron.service.members import CellLog, ClusterStatus
from cron.service.replacing import Replacing
from cron.service.replica import Replica
from cron.service.snapshots import Saving

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")
Answer = Callable[[Replica, Any], Awaitable[Any]]


def _row(
    rpc: Rpc[Q, A], answer: Callable[[Replica, Q], Awaitable[A]]
) -> tuple[Rpc[Any, Any], Answer]:
    return rpc, answer


ANSWERS: Final = (
    _row(t.PUT_JOBS, catalog.put),
    _row(t.REMOVE_JOBS, catalog.remove),
    _row(t.PAUSE, jobs.pause),
    _row(t.RESUME, jobs.resume),
    _row(t.JOBS, jobs.listed),
    _row(t.TRIGGER, launches.trigger),
    _row(t.KILL, launches.kill),
    _row(t.BACKFILL, backfill.backfill),
    _row(t.HISTORY, launches.listed),
    _row(t.SHOW, launches.show),
    _row(t.WHY, proofs.why),
    _row(t.AUDIT, proofs.audit_jobs),
    _row(t.SET_LIMIT, limits.set_limits),
    _row(t.REMOVE_LIMIT, limits.remove),
    _row(t.LIMITS, limits.listed),
    _row(t.CLOSE_GATE, gates.close),
    _row(t.OPEN_GATES, gates.open_gates),
    _row(t.GATES, gates.listed),
    _row(t.DEAD, dead.listed),
    _row(t.REDRIVE, dead.redrive),
    _row(t.DROP_DEAD, dead.drop),
    _row(t.EXECUTORS, executors.listed),
    _row(t.QUEUES, queues.depths),
    _row(t.WAITS, queues.waits),
)
"""The calls that one replica answers from its State, history and leader."""


class CellService:
    """The Backend of one replica (see `cron.api.rpc`)."""

    def __init__(
        self,
        replica: Replica,
        *,
        log: CellLog,
        cluster_status: ClusterStatus,
        replacing: Replacing,
        saving: Saving,
    ) -> None:
        self._replica = replica
        self._answers = {rpc.name: answer for rpc, answer in ANSWERS}
        aside = jobs.Aside(replica.clock)
        drained = executors.DrainedExecutors(replica.applier)

        async def output(replica: Replica, asks: OutputQuery) -> OutputView:
            views = await launches.show(replica, ShowRequest(launch=asks.launch))
            return await outputs.read(replica.leader.pool, saving.outputs, views, asks)

        async def reset_clock(replica: Replica, asks: ClockRequest) -> ClockReport:
            await cluster_status.poll()  # a clock that was set right a moment ago counts
            return await resetting.reset(replica, log, asks)

        async def segment(_replica: Replica, asks: SegmentRequest) -> SegmentPiece:
            content, size = await saving.segment(asks.name, asks.offset, asks.limit)
            return SegmentPiece(content=content, size=size)

        async def status(_replica: Replica, _asks: Request) -> StatusReport:
            return StatusReport(rows=await cluster_status.status())

        async def own_status(_replica: Replica, _asks: Request) -> StatusRow:
            return cluster_status.own()

        async def verify(_replica: Replica, asks: SnapshotsRequest) -> Any:
            return saving.verify(asks.name, is_remote=asks.is_remote)

        for rpc, answer in (
            _row(t.NEXT, lambda replica, asks: jobs.next_times_of(replica, asks, aside)),
            _row(t.EXECUTOR, lambda replica, asks: executors.one(replica, asks, drained)),
            _row(t.DRAIN, lambda replica, asks: executors.drain(replica, asks, drained)),
            _row(t.OUTPUT, output),
            _row(t.SAVE_SNAPSHOT, lambda _replica, _asks: saving.save()),
            _row(t.SNAPSHOTS, lambda _replica, asks: saving.list(is_remote=asks.is_remote)),
            _row(t.VERIFY_SNAPSHOTS, verify),
            _row(t.FETCH_SEGMENT, segment),
            _row(t.REPLACE, lambda _replica, asks: replacing.replace(asks)),
            _row(t.RESET_CLOCK, reset_clock),
            _row(t.STATUS, status),
            _row(t.PEER_STATUS, own_status),
        ):
            self._answers[rpc.name] = answer

    async def answer(self, rpc: Rpc[Q, A], request: Q) -> A:
        """Return the answer to a checked request, if this replica may give it now.

        Raises:
            NotLeader, Unavailable: it may not. What else a call raises, its function says.
        """
        await self._admit(rpc)
        answer: A = await self._answers[rpc.name](self._replica, request)
        return answer

    async def _admit(self, rpc: Rpc[Any, Any]) -> None:
        """Return when a call may be answered from what is applied here: a change once this replica
        leads, a read once a majority has confirmed that it does, and at once what may be stale."""
        if rpc.where is Where.REPLICA:
            return
        wanted, leader = current(), self._replica.leader
        if rpc.where is Where.ANY and wanted.is_stale:
            fresh = leader.freshness
            wanted.behind = Behind(leader.replica_id, fresh.applied, fresh.known, fresh.age_ms)
            return
        if rpc.where is not Where.CHANGE:
            await leader.confirm()
        if leader.epoch is None:
            raise NotLeader(leader.leader_address())
