"""The daemon behind the API: which function answers each row of `cron.api.table`, and when."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from cron.api import table as t
from cron.api.members import StatusReport
from cron.api.reading import Behind, current
from cron.api.rpc import Request, Rpc, Where
from cron.service import (
    access,
    alerts,
    backfill,
    calendars,
    catalog,
    dead,
    executor_grants,
    executors,
    gates,
    graphs,
    groups,
    job_revisions,
    jobs,
    launches,
    limits,
    outputs,
    overview,
    proofs,
    queues,
    removing,
    replacing,
    resetting,
    submitting,
    task_queues,
    task_views,
    tasks,
)
from cron.service.activity import Activity
from cron.service.intake import Intake
from cron.service.job_series import SeriesOfJobs
from cron.service.outcomes import Outcomes
from cron.service.replica import Replica
from cron.service.task_feed import TaskFeed
from cron.service.usual import UsualTimes

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")
R = TypeVar("R")


def _row(
    rpc: Rpc[Q, A], answer: Callable[[Replica, Q], Awaitable[A] | A]
) -> tuple[Rpc[Any, Any], Callable[[Replica, Any], Any]]:
    return rpc, answer


def _rows(
    rpc: Rpc[Q, list[R]], answer: Callable[[Replica, Q], AsyncIterator[R]]
) -> tuple[Rpc[Any, Any], Callable[[Replica, Any], Any]]:
    return rpc, answer


async def _status(replica: Replica, _request: Request) -> StatusReport:
    return StatusReport(rows=await replica.cluster_status.status())


ANSWERS: Final = (
    _row(t.PUT_JOBS, catalog.put),
    _row(t.REMOVE_JOBS, removing.remove),
    _row(t.PAUSE, jobs.pause),
    _row(t.RESUME, jobs.resume),
    _row(t.JOBS, jobs.listed),
    _row(t.JOB_PAGE, overview.job_page),
    _row(t.EXPORT_JOBS, job_revisions.export),
    _row(t.JOB_REVISIONS, job_revisions.revisions),
    _row(t.ROLL_BACK, job_revisions.roll_back),
    _row(t.NEXT, jobs.next_times_of),
    _row(t.TRIGGER, launches.trigger),
    _row(t.KILL, launches.kill),
    _row(t.BACKFILL, backfill.backfill),
    _row(t.HISTORY, launches.listed),
    _row(t.SHOW, launches.show),
    _row(t.OUTPUT, outputs.read),
    _row(t.WHY, proofs.why),
    _row(t.ACTIVITY, overview.activity),
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
    _row(t.ALERTS, alerts.listed),
    _row(t.APPLY_ALERTS, alerts.put),
    _row(t.TEST_ALERT, alerts.test),
    _row(t.MUTE_ALERTS, alerts.mute),
    _row(t.UNMUTE_ALERTS, alerts.unmute),
    _row(t.CALENDARS, calendars.listed),
    _row(t.APPLY_CALENDAR, calendars.put),
    _row(t.REMOVE_CALENDAR, calendars.remove),
    _row(t.EXECUTORS, executors.listed),
    _row(t.EXECUTOR, executors.one),
    _row(t.DRAIN, executors.drain),
    _row(t.GRANT_EXECUTOR, executor_grants.grant),
    _row(t.REVOKE_EXECUTOR, executor_grants.revoke),
    _row(t.EXECUTOR_GRANTS, executor_grants.listed),
    _row(t.QUEUES, queues.depths),
    _row(t.WAITS, queues.waits),
    _row(t.GRANT_ROLE, access.grant),
    _row(t.REVOKE_ROLE, access.revoke),
    _row(t.ROLES, access.roles),
    _row(t.CREATE_TOKEN, access.create_token),
    _row(t.TOKENS, access.tokens),
    _row(t.REVOKE_TOKENS, access.revoke_tokens),
    _row(t.REVOKE_CERTIFICATES, access.revoke_certificates),
    _row(t.REVOKED_CERTIFICATES, access.revoked_certificates),
    _row(t.CHANGES, access.changes),
    _row(t.SAVE_SNAPSHOT, lambda replica, _: replica.saving.save()),
    _row(t.SNAPSHOTS, lambda replica, asks: replica.saving.list(is_remote=asks.is_remote)),
    _rows(
        t.VERIFY_SNAPSHOTS,
        lambda replica, asks: replica.saving.verify(asks.name, is_remote=asks.is_remote),
    ),
    _row(t.FETCH_SEGMENT, lambda replica, asks: replica.saving.segment(asks)),
    _row(t.REPLACE, replacing.replace),
    _row(t.GROW, replacing.grow),
    _row(t.RESET_CLOCK, resetting.reset),
    _row(t.STATUS, _status),
    _row(t.SUBMIT, submitting.submit),
    _row(t.CANCEL, tasks.cancel),
    _row(t.RESCHEDULE, tasks.reschedule),
    _row(t.RESCHEDULE_MANY, tasks.reschedule_many),
    _row(t.RUN_NOW, tasks.run_now),
    _row(t.GET, task_views.get),
    _row(t.GET_MANY, tasks.get_many),
    _row(t.LIST, task_views.listed),
    _rows(t.WATCH, task_views.watch),
    _row(t.GET_GROUP, groups.get),
    _row(t.LIST_GROUPS, groups.listed),
    _row(t.TASK_GRAPH, graphs.graph),
    _row(t.CLOSE_GROUP, groups.close),
    _row(t.CANCEL_GROUP, groups.cancel),
    _row(t.PUT_QUEUES, task_queues.put),
    _row(t.LIST_QUEUES, task_queues.listed),
    _row(t.PEER_STATUS, lambda replica, _: replica.cluster_status.own()),
)


class CellService:
    """The Backend of one replica (see `cron.api.rpc`)."""

    def __init__(self, replica: Replica) -> None:
        self.replica = msgspec.structs.replace(
            replica,
            aside=jobs.Aside(replica.clock),
            drained=executors.DrainedExecutors(replica.applier),
            feed=TaskFeed(lambda: replica.applier.state),
            intake=Intake(replica.leader, replica.clock, lambda: replica.applier.state.access),
            activity=Activity(lambda: replica.applier.state, replica.row_store),
            job_series=SeriesOfJobs(lambda: replica.applier.state, replica.row_store),
            usual=UsualTimes(replica.row_store, replica.clock),
            outcomes=Outcomes(lambda: replica.applier.state, replica.row_store),
        )
        replica.applier.subscribe(self.replica.feed.follow)
        replica.applier.subscribe(self.replica.intake.follow)
        replica.applier.subscribe(self.replica.activity.follow)
        replica.applier.subscribe(self.replica.job_series.follow)
        replica.applier.subscribe(self.replica.outcomes.follow)
        self._answers = {rpc.name: answer for rpc, answer in ANSWERS}

    async def answer(self, rpc: Rpc[Q, A], request: Q) -> A:
        """Return the answer to a checked request, if this replica may give it now.

        Raises:
            NotLeader, Unavailable: it may not. What else a call raises, its function says.
        """
        await self._admit(rpc)
        answer: Any = self._answers[rpc.name](self.replica, request)
        result: A = await answer if inspect.isawaitable(answer) else answer
        return result

    async def _admit(self, rpc: Rpc[Any, Any]) -> None:
        """Return when a call may be answered from what is applied here: a change once this replica
        leads, a read once a majority has confirmed that it does, and at once what may be stale."""
        if rpc.where is Where.REPLICA:
            return
        wanted, leader = current(), self.replica.leader
        if rpc.where is Where.ANY and wanted.is_stale:
            fresh = leader.freshness
            wanted.behind = Behind(leader.replica_id, fresh.applied, fresh.known, fresh.age_ms)
            return
        if rpc.where is not Where.CHANGE:
            await leader.confirm()
        if elsewhere := leader.elsewhere():
            raise elsewhere
