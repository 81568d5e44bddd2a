"""What the API's server asks of the daemon.

The server has read and bounded everything it passes on: job names are full (`tenant/job`), launch
names have their tenant and no attempt, patterns are those of `cron.api.pattern`. All methods run on
the daemon's event loop. A change that was begun is never cancelled half-way by the server, even
when the client has gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from cron.api.pool_backend import PoolBackend
from cron.api.snapshot_views import SaveReport, SnapshotsReport, SnapshotView
from cron.api.views import (
    ApplyReport,
    ApplyRequest,
    AuditReport,
    BackfillReport,
    BackfillRequest,
    ClockReport,
    ClockRequest,
    HistoryQuery,
    JobsRequest,
    JobView,
    LaunchView,
    NextTimes,
    OutputQuery,
    OutputView,
    PauseReport,
    PauseRequest,
    RemoveReport,
    RemoveRequest,
    ReplaceReport,
    ReplaceRequest,
    StatusRow,
    WhyReport,
)


class Backend(PoolBackend, Protocol):
    """The daemon behind the API.

    All but `status` and `peer_status` raise NotLeader on a replica that does not lead, with the
    leader's client address where it is known. Reads are as of a moment after the call. A change
    raises OutcomeUnknown where nobody can tell whether it will happen, and nothing else of
    Unavailable unless it certainly did not.
    """

    async def put_jobs(self, request: ApplyRequest) -> ApplyReport:
        """Return what applying the files changed (or would change).

        Raises:
            CrontabError: the files have errors, all of them are in it; nothing was changed.
            InvalidInput: it would remove more jobs than it may without `is_confirmed`.
            RevisionConflict: somebody else changed the jobs again and again meanwhile.
        """

    async def remove_jobs(self, request: RemoveRequest) -> RemoveReport:
        """Return the jobs that were removed, with the sources that they came from.

        Raises:
            UnknownJob: one of them does not exist; nothing was removed.
            RevisionConflict: somebody else changed the jobs again and again meanwhile.
            OutcomeUnknown: those of some sources were removed, or may be.
        """

    async def jobs(self, wanted: JobsRequest) -> list[JobView]:
        """Return the jobs that fit all that is named, by name.

        Raises:
            UnknownJob: the pattern is a plain name and there is no such job.
        """

    async def next_times(self, job: str, after_s: int | None, count: int) -> NextTimes:
        """Return the next `count` times after `after_s` (None: after now), exclusive.

        Raises:
            UnknownJob: there is no such job.
        """

    async def history(self, query: HistoryQuery) -> list[LaunchView]:
        """Return launches, open ones included, newest first.

        Raises:
            UnknownJob: a job is named that never was, or a pattern that matches none.
            LimitExceeded: more jobs fit than are looked through at once.
        """

    async def show(self, launch: str) -> list[LaunchView]:
        """Return all attempts of a launch, newest last.

        Raises:
            UnknownLaunch: there is no such launch.
        """

    async def output(self, query: OutputQuery) -> OutputView:
        """Return a part of what a launch wrote; at most `query.limit` bytes.

        Raises:
            UnknownLaunch: there is no such launch or attempt.
            ExecutorAway: its executor is not connected.
            NotNow: it has not begun, so there is none yet.
        """

    async def why(self, job: str, at_s: int, is_nearest: bool) -> WhyReport:
        """Return why a job did or did not run at an instant, or, with `is_nearest`, at the newest
        one that is not after it, if there is one.

        Raises:
            UnknownJob: there is no such job and never was.
        """

    async def trigger(self, job: str, request_id: str, by: str) -> LaunchView:
        """Return the launch made for this request id; the same one for the same id.

        Raises:
            UnknownJob: there is no such job.
        """

    async def pause(self, request: PauseRequest) -> PauseReport:
        """Return which jobs are paused now.

        Raises:
            UnknownJob: the pattern matches none.
        """

    async def resume(self, pattern: str, by: str) -> PauseReport:
        """Return which jobs go on now.

        Raises:
            UnknownJob: the pattern matches none.
        """

    async def backfill(self, request: BackfillRequest) -> BackfillReport:
        """Return which launches are due again (or would be).

        Raises:
            UnknownJob: there is no such job.
            TooManyTimes: more than limits.BACKFILL_MAX.
        """

    async def kill(self, launch: str, by: str) -> LaunchView:
        """Return the newest attempt after its cancellation was committed (rule R8).

        Raises:
            UnknownLaunch: there is no such launch.
            NotNow: it is over.
        """

    async def reset_clock(self, request: ClockRequest) -> ClockReport:
        """Set the cell's time back to the leader's clock, or say what that would do.

        Raises:
            NotNow, Conflict, NotLeader: nothing happened. OutcomeUnknown: a part may have.
        """

    async def replace(self, request: ReplaceRequest) -> ReplaceReport:
        """Return the incarnation of an id that waits for a new disk; its old disk is shut out.

        Raises:
            UnknownReplica: the cell has no such id.
            StillAlive: it is connected, and the request is not confirmed.
            NotNow: it leads, the others are no majority, or the members are just being changed.
            InvalidInput: an address cannot be used, or belongs to another replica.
        """

    async def save_snapshot(self, by: str) -> SaveReport:
        """Return where a snapshot is taken: it is asked for, `snapshots` tells when it is safe."""

    async def snapshots(self, *, is_remote: bool) -> SnapshotsReport:
        """Return the snapshots in object storage and, unless `is_remote`, on this disk.

        Raises:
            Unavailable: the store does not answer. Conflict: it refuses.
        """

    def verify_snapshots(self, name: str, *, is_remote: bool) -> AsyncIterator[SnapshotView]:
        """Yield each snapshot (or the one of this name) once all of it was read and checked.

        Raises:
            NotFound: there is none of this name. Unavailable, Conflict: as `snapshots`.
        """

    async def segment(self, name: str, offset: int, limit: int) -> tuple[bytes, int]:
        """Return a piece of a segment on this disk, and the size of all of it; any replica does.

        Raises:
            NotFound: it is not here.
        """

    async def status(self) -> list[StatusRow]:
        """Return all replicas and executors; any replica answers for all, within 1 s."""

    async def peer_status(self) -> StatusRow:
        """Return this replica alone, at once; what other replicas ask it for their `status`."""

    async def audit(self, job: str, since_ms: int) -> AuditReport:
        """Return what the ledger proves about a job ("": all) since a time (0: since ever).

        Raises:
            UnknownJob: there is no such job and never was.
        """
