"""The API's server: gRPC in, the daemon's Backend behind it.

Everything from outside is bounded and brought into its canonical form here, before the Backend sees
it. Every refusal goes through `cron.api.status`; what is not a CronError is a bug: it is logged
whole and the client is told no more than that it happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

import grpc
import structlog

from cron import limits
from cron.api import checks
from cron.api.backend import Backend
from cron.api.pattern import parse_pattern
from cron.api.pool_server import PoolServicer
from cron.api.reading import reading, to_metadata
from cron.api.refusing import refuse
from cron.api.requests import (
    checked_apply,
    checked_backfill,
    checked_clock,
    checked_history,
    checked_jobs,
    checked_output,
    checked_pause,
    checked_removal,
    checked_replace,
)
from cron.api.snapshots import SnapshotsServicer
from cron.api.status import PEERS
from cron.api.translate import to_message
from cron.api.v1 import admin_pb2, admin_pb2_grpc
from cron.errors import CronError, InvalidInput

log = structlog.get_logger()

T = TypeVar("T")

PAGE_ROWS: Final = 200
"""Rows in one message of a stream: a few ms of the loop that also ticks."""

SERVER_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", limits.RPC_BYTES_MAX),
    ("grpc.max_send_message_length", limits.RPC_BYTES_MAX),
    # Without this a second daemon on the same port would quietly take half of the connections.
    ("grpc.so_reuseport", 0),
    # Watching streams say nothing for days. Executors ask by pings whether the replica is there,
    # and the replica whether they are; gRPC by itself takes such pings for an attack.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)

Context = grpc.aio.ServicerContext[Any, Any]


class AdminServicer(SnapshotsServicer, PoolServicer, admin_pb2_grpc.AdminServicer):
    """Answers for one replica. `peers` returns the client addresses of the cell's replicas."""

    def __init__(self, backend: Backend, peers: Callable[[], Sequence[str]] = tuple) -> None:
        self._backend = backend
        self._peers = peers
        self._changes: set[asyncio.Task[Any]] = set()

    # ---- changes. Methods are called as in the proto file, hence N802.

    async def PutJobs(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Apply crontabs and job files, all or none."""

        async def put() -> Any:
            return await self._backend.put_jobs(checked_apply(request))

        report = await self._change(context, put())
        # 100,000 changes take a second to translate: not on the loop that ticks.
        return await asyncio.to_thread(to_message, report)

    async def RemoveJobs(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Remove jobs by name, all or none."""

        async def remove() -> Any:
            return await self._backend.remove_jobs(checked_removal(request))

        return to_message(await self._change(context, remove()))

    async def Trigger(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Launch a job now."""

        async def trigger() -> Any:
            return await self._backend.trigger(
                checks.job_name(request.job),
                checks.request_id(request.request_id),
                checks.person(request.by),
            )

        return to_message(await self._change(context, trigger()))

    async def Pause(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Pause jobs."""

        async def pause() -> Any:
            return await self._backend.pause(checked_pause(request))

        return to_message(await self._change(context, pause()))

    async def Resume(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Resume jobs."""

        async def resume() -> Any:
            pattern = _named_pattern(request.pattern)
            return await self._backend.resume(pattern, checks.person(request.by))

        return to_message(await self._change(context, resume()))

    async def Backfill(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Make past instants due again."""

        async def backfill() -> Any:
            return await self._backend.backfill(checked_backfill(request))

        return to_message(await self._change(context, backfill()))

    async def Kill(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Cancel a launch."""

        async def kill() -> Any:
            launch = checks.launch_name(request.launch)
            return await self._backend.kill(launch, checks.person(request.by))

        return to_message(await self._change(context, kill()))

    async def Replace(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Make room for a new disk under a replica's id."""

        async def replace() -> Any:
            return await self._backend.replace(checked_replace(request))

        return to_message(await self._change(context, replace()))

    async def ResetClock(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Set the cell's time back to the leader's clock."""

        async def reset() -> Any:
            return await self._backend.reset_clock(checked_clock(request))

        return to_message(await self._change(context, reset()))

    # ---- reads

    async def Jobs(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        """List jobs, by name."""

        async def jobs() -> Any:
            return await self._backend.jobs(checked_jobs(request))

        views = await self._answer(context, jobs())
        for page in _pages(views):
            yield admin_pb2.JobPage(jobs=map(to_message, page))

    async def Next(self, request: Any, context: Context) -> Any:  # noqa: N802
        """List the next times of a job."""

        async def next_times() -> Any:
            after_s = request.after_s if request.HasField("after_s") else None
            if after_s is not None:
                checks.instant_s(after_s, "after")
            count = checks.between(request.count, 1, checks.NEXT_MAX, "number of times")
            return await self._backend.next_times(checks.job_name(request.job), after_s, count)

        return to_message(await self._answer(context, next_times()))

    async def History(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        """List launches, newest first."""

        async def history() -> Any:
            return await self._backend.history(checked_history(request))

        views = await self._answer(context, history())
        for page in _pages(views):
            yield admin_pb2.LaunchPage(launches=map(to_message, page))

    async def Show(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        """List the attempts of a launch, newest last."""

        async def show() -> Any:
            return await self._backend.show(checks.launch_name(request.launch))

        views = await self._answer(context, show())
        for page in _pages(views):
            yield admin_pb2.LaunchPage(launches=map(to_message, page))

    async def Output(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Return a part of a launch's output."""

        async def output() -> Any:
            return await self._backend.output(checked_output(request))

        return to_message(await self._answer(context, output()))

    async def Why(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Tell what became of an instant."""

        async def why() -> Any:
            at_s = checks.instant_s(request.at_s)
            return await self._backend.why(checks.job_name(request.job), at_s, request.is_nearest)

        return to_message(await self._answer(context, why()))

    async def Audit(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Check the ledger."""

        async def audit() -> Any:
            since_ms = checks.instant_ms(request.since_ms, "since")
            return await self._backend.audit(checks.job_name_or_all(request.job), since_ms)

        report = await self._answer(context, audit())
        return await asyncio.to_thread(to_message, report)

    async def Status(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Tell the state of the whole cell."""
        rows = await self._answer(context, self._backend.status())
        return admin_pb2.StatusPage(rows=map(to_message, rows))

    async def PeerStatus(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Tell the state of this replica."""
        return to_message(await self._answer(context, self._backend.peer_status()))

    # ---- how all of them are answered

    async def _change(self, context: Context, change: Awaitable[T]) -> T:
        """Answer a change, which goes on to its end even when the client gives up: half of an
        apply must not stay behind because somebody pressed Ctrl-C."""
        task: asyncio.Task[T] = asyncio.ensure_future(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            return await self._answer(context, asyncio.shield(task))
        except asyncio.CancelledError:
            task.add_done_callback(_log_abandoned)
            raise

    async def _answer(self, context: Context, answer: Awaitable[T]) -> T:
        """Return what the Backend answers, or end the call with what it refuses with."""
        try:
            with reading(context.invocation_metadata() or ()) as read:
                result = await answer
            if read.behind is not None:
                context.set_trailing_metadata(to_metadata(read.behind))
            return result
        except CronError as error:
            refused = error
        except Exception as error:  # the top of a request: a bug ends it, not the replica
            log.exception("request.failed", error=str(error))
            await context.abort(grpc.StatusCode.INTERNAL, "a bug ended the request; see the log")
        await self._refuse(context, refused)

    async def _refuse(self, context: Context, error: CronError) -> NoReturn:
        peers = self._peers()
        await refuse(context, error, ((PEERS, ",".join(peers)),) if peers else ())


def add_admin(
    server: grpc.aio.Server, backend: Backend, peers: Callable[[], Sequence[str]] = tuple
) -> None:
    """Add the API to a server that was made with SERVER_OPTIONS and is not started yet."""
    servicer = AdminServicer(backend, peers)
    admin_pb2_grpc.add_AdminServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]


def _named_pattern(text: str) -> str:
    """A pattern that is not empty: a change of all jobs has to be asked for."""
    if not text:
        raise InvalidInput("pattern is empty", "'*/*' is every job of every tenant")
    return parse_pattern(text)


def _pages(views: list[T]) -> list[list[T]]:
    return [views[n : n + PAGE_ROWS] for n in range(0, len(views), PAGE_ROWS)]


def _log_abandoned(task: asyncio.Task[Any]) -> None:
    """Tell what became of a change whose client had gone."""
    if not task.cancelled() and task.exception() is not None:
        log.warning("request.abandoned", error=str(task.exception()))
