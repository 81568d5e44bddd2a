"""The daemon behind the API: which function answers each row of `cron.api.table`, and when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from cron.api import table as t
from cron.api.members import ClockReport, ClockRequest, StatusReport
from cron.api.reading import Behind, current
from cron.api.rpc import Request, Rpc, Where
from cron.api.snapshots import SegmentPiece, SegmentRequest, SnapshotsRequest
from cron.clock import Clock
from cron.errors import NotLeader
from cron.history.store import RowStore
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader
from cron.scheduler.why import AskQueued, asked
from cron.service.backfill import Backfills
from cron.service.catalog import Catalog
from cron.service.dead import DeadLetters
from cron.service.executors import Hosts
from cron.service.gates import Gates
from cron.service.jobs import Jobs
from cron.service.launches import Launches, LaunchReads
from cron.service.limits import ScopeLimits
from cron.service.members import ClusterStatus
from cron.service.outputs import Logs
from cron.service.proofs import Proofs
from cron.service.queues import QueueAnswers
from cron.service.replacing import Replacing
from cron.service.resetting import Resetting
from cron.service.snapshots import Saving

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


def _no_queues() -> None:
    """Say that there are no queues here."""


class Operations(msgspec.Struct, frozen=True):
    """What operators do to a cell beside its jobs, and see of it: `queued` gives the queues while
    the replica leads."""

    replacing: Replacing
    resetting: Resetting
    saving: Saving
    queued: AskQueued = _no_queues


class CellService:
    """The Backend of one replica (see `cron.api.rpc`)."""

    def __init__(
        self,
        *,
        leader: Leader,
        applier: StateApplier,
        row_store: RowStore,
        cluster_status: ClusterStatus,
        clock: Clock,
        zone: str,
        operations: Operations,
    ) -> None:
        self._leader = leader
        self._applier = applier
        self._cluster_status = cluster_status
        self._operations = operations
        self._history = LaunchReads(applier, row_store, clock, operations.saving.archive)
        self._proofs = Proofs(self._history)
        self._answers: dict[str, Callable[[Any], Awaitable[Any]]] = {}
        self._answer_about_jobs(row_store, clock, zone)
        self._answer_about_launches(row_store)
        self._answer_about_pool(clock)
        self._answer_about_cell()

    async def answer(self, rpc: Rpc[Q, A], request: Q) -> A:
        """Return the answer to a checked request, if this replica may give it now.

        Raises:
            NotLeader, Unavailable: it may not. What else a call raises, its function says.
        """
        await self._admit(rpc)
        answer: A = await self._answers[rpc.name](request)
        return answer

    async def _admit(self, rpc: Rpc[Any, Any]) -> None:
        """Return when a call may be answered from what is applied here: a change once this replica
        leads, a read once a majority has confirmed that it does, and at once what may be stale."""
        wanted = current()
        if rpc.where is Where.REPLICA:
            return
        if rpc.where is Where.ANY and wanted.is_stale:
            fresh = self._leader.freshness
            wanted.behind = Behind(
                self._leader.replica_id, fresh.applied, fresh.known, fresh.age_ms
            )
        else:
            if rpc.where is not Where.CHANGE:
                await self._leader.confirm()
            if self._leader.epoch is None:
                raise NotLeader(self._leader.leader_address())
        # Only a leader has connections: elsewhere all executors count as connected.
        leads = self._leader.epoch is not None
        connected = self._leader.executors.connected() if leads else self._applier.state.executors
        self._history.connected = frozenset(connected)
        self._history.queued = asked(self._operations.queued())
        self._proofs.awaits_row = self._leader.awaits_row

    def _add(self, rpc: Rpc[Q, A], answer: Callable[[Q], Awaitable[A]]) -> None:
        self._answers[rpc.name] = answer

    def _answer_about_jobs(self, row_store: RowStore, clock: Clock, zone: str) -> None:
        applier, catalog = self._applier, Catalog(self._leader, zone)
        jobs = Jobs(self._leader, applier, row_store, clock)
        self._add(
            t.PUT_JOBS, lambda asks: catalog.put(asks, applier.state, clock.wall_ms() // 1000)
        )
        self._add(t.REMOVE_JOBS, lambda asks: catalog.remove(asks, applier.state))
        self._add(t.PAUSE, jobs.pause)
        self._add(t.RESUME, jobs.resume)
        self._add(t.JOBS, jobs.listed)
        self._add(t.NEXT, jobs.next_times)

    def _answer_about_launches(self, row_store: RowStore) -> None:
        history, proofs = self._history, self._proofs
        launches = Launches(self._leader, self._applier, history)
        self._add(t.TRIGGER, launches.trigger)
        self._add(t.KILL, launches.kill)
        self._add(t.BACKFILL, Backfills(self._leader, self._applier, row_store).run)
        self._add(t.HISTORY, history.listed)
        self._add(t.SHOW, lambda asks: history.show(asks.launch))
        logs = Logs(self._leader.pool, history, self._operations.saving.outputs)
        self._add(t.OUTPUT, logs.read)
        self._add(t.WHY, lambda asks: proofs.why(asks.job, asks.at_s, is_nearest=asks.is_nearest))
        self._add(t.AUDIT, lambda asks: proofs.audit(asks.job, asks.since_ms))

    def _answer_about_pool(self, clock: Clock) -> None:
        leader, applier = self._leader, self._applier
        limits = ScopeLimits(leader, applier)
        self._add(t.SET_LIMIT, limits.set)
        self._add(t.REMOVE_LIMIT, limits.remove)
        self._add(t.LIMITS, limits.listed)
        gates = Gates(leader, applier, clock)
        self._add(t.CLOSE_GATE, gates.close)
        self._add(t.OPEN_GATES, gates.open)
        self._add(t.GATES, gates.listed)
        letters = DeadLetters(leader, applier)
        self._add(t.DEAD, letters.listed)
        self._add(t.REDRIVE, letters.redrive)
        self._add(t.DROP_DEAD, letters.drop)
        hosts = Hosts(leader, applier, clock)
        self._add(t.EXECUTORS, hosts.listed)
        self._add(t.EXECUTOR, hosts.one)
        self._add(t.DRAIN, hosts.drain)
        lines = QueueAnswers(applier, clock, self._operations.queued, leader.behind)
        self._add(t.QUEUES, lines.depths)
        self._add(t.WAITS, lambda asks: lines.waits(asks, leader.executors.connected()))

    def _answer_about_cell(self) -> None:
        saving, cluster_status = self._operations.saving, self._cluster_status
        resetting = self._operations.resetting

        async def reset_clock(request: ClockRequest) -> ClockReport:
            await cluster_status.poll()  # a clock that was set right a moment ago counts
            return await resetting.reset(request)

        async def segment(asks: SegmentRequest) -> SegmentPiece:
            content, size = await saving.segment(asks.name, asks.offset, asks.limit)
            return SegmentPiece(content=content, size=size)

        async def status(_request: Request) -> StatusReport:
            return StatusReport(rows=await cluster_status.status())

        async def own(_request: Request) -> Any:
            return cluster_status.own()

        async def verify(asks: SnapshotsRequest) -> Any:
            return saving.verify(asks.name, is_remote=asks.is_remote)

        self._add(t.SAVE_SNAPSHOT, lambda _request: saving.save())
        self._add(t.SNAPSHOTS, lambda asks: saving.list(is_remote=asks.is_remote))
        self._add(t.VERIFY_SNAPSHOTS, verify)
        self._add(t.FETCH_SEGMENT, segment)
        self._add(t.REPLACE, self._operations.replacing.replace)
        self._add(t.RESET_CLOCK, reset_clock)
        self._add(t.STATUS, status)
        self._add(t.PEER_STATUS, own)
