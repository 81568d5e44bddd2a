"""The API's client: typed calls to a cell, wherever its leader is. Synchronous, not thread-safe."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from cron import limits
from cron.api.pool_client import PoolCalls
from cron.api.reading import Behind
from cron.api.route import UNREACHED_MS, Request, Route
from cron.api.snapshot_views import SaveReport, SnapshotsReport, SnapshotView
from cron.api.translate import to_message, to_view
from cron.api.v1 import admin_pb2
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

if TYPE_CHECKING:
    from launcher.tls import Credentials

V = TypeVar("V", bound=msgspec.Struct)

ALL_JOBS: Final = JobsRequest()
TIMEOUT_MS: Final = 10_000
STATUS_TIMEOUT_MS: Final = UNREACHED_MS
MANY_TIMEOUT_MS: Final = 60_000
"""For a change that may be of very many jobs: 200,000 are removed in some 200 entries."""
MANY_BYTES: Final = 1 << 20
AUDIT_TIMEOUT_MS: Final = 4 * limits.AUDIT_MS_MAX
"""A read is asked elsewhere after a third of its time: that is longer than an audit takes."""


class Client(PoolCalls):
    """Calls to a cell; `servers` as `cron.api.address.parse_servers` returns them, `credentials` if
    the cell has certificates.

    Every method raises what the server raised, or Unavailable, NoQuorum (nothing happened) and
    OutcomeUnknown (something may have) after `timeout_ms`. Without one, 10 s, 3 s for `status`, and
    a minute for `audit` and for files that prune or are large.
    With `on_behind`, reads of what every replica has may be stale: any replica answers at once, and
    `on_behind` hears how far behind that answer is.
    """

    def __init__(
        self,
        servers: list[str],
        timeout_ms: int | None = None,
        credentials: Credentials | None = None,
        on_behind: Callable[[Behind], None] | None = None,
    ) -> None:
        self.is_stale = on_behind is not None
        self._route = Route(servers, credentials, on_behind)
        self._timeout_ms = timeout_ms or TIMEOUT_MS
        self._many_timeout_ms = timeout_ms or MANY_TIMEOUT_MS
        self._audit_timeout_ms = timeout_ms or AUDIT_TIMEOUT_MS
        self._status_timeout_ms = timeout_ms or STATUS_TIMEOUT_MS

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; idempotent."""
        self._route.close()

    # ---- changes

    def put_jobs(self, request: ApplyRequest) -> ApplyReport:
        """Apply crontabs and job files; a dry run changes nothing and may be asked again."""
        size = sum(len(file.content) for file in request.files)
        timeout_ms = self._many_timeout_ms if request.prune or size > MANY_BYTES else None
        asked = Request(
            method="PutJobs", message=to_message(request), is_change=not request.is_dry_run
        )
        (answer,) = self._route.ask(asked, timeout_ms or self._timeout_ms)
        return to_view(answer, ApplyReport)

    def remove_jobs(self, request: RemoveRequest) -> RemoveReport:
        """Remove jobs by name, all or none."""
        return self._one("RemoveJobs", to_message(request), RemoveReport, is_change=True)

    def trigger(self, job: str, request_id: str, by: str) -> LaunchView:
        """Launch a job now; the same launch for the same request id."""
        message = admin_pb2.TriggerRequest(job=job, request_id=request_id, by=by)
        return self._one("Trigger", message, LaunchView, is_change=True, is_repeatable=True)

    def pause(self, request: PauseRequest) -> PauseReport:
        """Pause the jobs that a pattern matches."""
        return self._one("Pause", to_message(request), PauseReport, is_change=True)

    def resume(self, pattern: str, by: str) -> PauseReport:
        """Resume the jobs that a pattern matches."""
        message = admin_pb2.ResumeRequest(pattern=pattern, by=by)
        return self._one("Resume", message, PauseReport, is_change=True)

    def backfill(self, request: BackfillRequest) -> BackfillReport:
        """Make past instants due again; a dry run changes nothing and may be asked again."""
        message = to_message(request)
        return self._one("Backfill", message, BackfillReport, is_change=not request.is_dry_run)

    def kill(self, launch: str, by: str) -> LaunchView:
        """Cancel a launch."""
        message = admin_pb2.KillRequest(launch=launch, by=by)
        return self._one("Kill", message, LaunchView, is_change=True)

    def reset_clock(self, request: ClockRequest) -> ClockReport:
        """Set the cell's time back to the leader's clock, or say what that would do."""
        is_change = not request.is_dry_run
        return self._one("ResetClock", to_message(request), ClockReport, is_change=is_change)

    def replace(self, request: ReplaceRequest) -> ReplaceReport:
        """Make room for a new disk under a replica's id."""
        return self._one("Replace", to_message(request), ReplaceReport, is_change=True)

    def save_snapshot(self, by: str) -> SaveReport:
        """Ask for a snapshot; `snapshots` tells when it is safe."""
        message = admin_pb2.SaveRequest(by=by)
        return self._one("SaveSnapshot", message, SaveReport, is_change=True, is_repeatable=True)

    # ---- reads

    def snapshots(self, *, is_remote: bool = False) -> SnapshotsReport:
        """Return the snapshots that there are."""
        message = admin_pb2.SnapshotsRequest(is_remote=is_remote)
        return self._one("Snapshots", message, SnapshotsReport)

    def verify_snapshots(self, name: str, *, is_remote: bool) -> list[SnapshotView]:
        """Have snapshots read and checked; that may take as long as the timeout."""
        message = admin_pb2.SnapshotsRequest(name=name, is_remote=is_remote)
        return [to_view(one, SnapshotView) for one in self._ask("VerifySnapshots", message)]

    def jobs(self, wanted: JobsRequest = ALL_JOBS) -> list[JobView]:
        """Return the jobs that fit all that is named, by name."""
        pages = self._ask("Jobs", to_message(wanted))
        return [to_view(one, JobView) for page in pages for one in page.jobs]

    def next_times(self, job: str, after_s: int | None, count: int) -> NextTimes:
        """Return the next times of a job after `after_s` (None: the leader's now), exclusive."""
        message = admin_pb2.NextRequest(job=job, after_s=after_s, count=count)
        return self._one("Next", message, NextTimes)

    def history(self, query: HistoryQuery) -> list[LaunchView]:
        """Return launches, newest first."""
        return self._launches("History", to_message(query))

    def show(self, launch: str) -> list[LaunchView]:
        """Return the attempts of a launch, newest last."""
        return self._launches("Show", admin_pb2.ShowRequest(launch=launch))

    def output(self, query: OutputQuery) -> OutputView:
        """Return a part of a launch's output."""
        return self._one("Output", to_message(query), OutputView)

    def why(self, job: str, at_s: int, is_nearest: bool = False) -> WhyReport:
        """Return what became of an instant, or of the newest one that is not after it."""
        message = admin_pb2.WhyRequest(job=job, at_s=at_s, is_nearest=is_nearest)
        return self._one("Why", message, WhyReport)

    def audit(self, job: str, since_ms: int) -> AuditReport:
        """Return what the ledger proves."""
        request = Request(
            method="Audit", message=admin_pb2.AuditRequest(job=job, since_ms=since_ms)
        )
        (answer,) = self._route.ask(request, self._audit_timeout_ms)
        return to_view(answer, AuditReport)

    def status(self) -> list[StatusRow]:
        """Return replicas and executors, as any replica sees them."""
        request = Request(method="Status", message=admin_pb2.StatusRequest())
        pages = self._route.ask(request, self._status_timeout_ms)
        return [to_view(row, StatusRow) for page in pages for row in page.rows]

    # ---- how all of them are asked

    def _ask(self, method: str, message: Any, **flags: bool) -> list[Any]:
        request = Request(method=method, message=message, **flags)
        return self._route.ask(request, self._timeout_ms)

    def _one(self, method: str, message: Any, view: type[V], **flags: bool) -> V:
        (answer,) = self._ask(method, message, **flags)
        return to_view(answer, view)

    def _launches(self, method: str, message: Any) -> list[LaunchView]:
        pages = self._ask(method, message)
        return [to_view(one, LaunchView) for page in pages for one in page.launches]
