"""Executors as people see them: what State knows of each, its session, and what runs there."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

import msgspec

from cron.api.executors import (
    DrainRequest,
    DuplicateIdView,
    ExecutorDetail,
    ExecutorQuery,
    ExecutorReport,
    ExecutorsReport,
    ExecutorView,
    GroupView,
)
from cron.api.launches import LaunchView
from cron.api.rpc import Request
from cron.errors import NotFound
from cron.executor_grants import Granted
from cron.job import COMMAND
from cron.leader.applier import StateApplier
from cron.scheduler.older_log import contradiction
from cron.service.replica import Replica
from cron.state.commands import Claim, ExecutorJoined, ExecutorLeft
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Outcome, Verdict
from cron.state.pool import Drain
from cron.state.rows import Part
from cron.state.state import ExecutorRecord, State
from cron.where import HOST_LABEL
from launcher.pool.pool import Pool
from launcher.pool.session import Session
from launcher.protocol.names import format_time

CONNECTED = "connected"
IN_DOUBT = "in-doubt"
LEFT = "left"
NOT_GRANTED_SHOWN = 3
"""Claims that a note names; the details of one executor have all."""
LEFT_KEPT = 10_000
"""Drained executors that are remembered, about half a KiB each: as many as a cell may have."""
LEDGER_FULL = (
    "its ledger is full: it gets no work until it may forget launches that a backup covers;"
    " `raftcron snapshot list` says whether backups go on"
)


async def listed(replica: Replica, _request: Request) -> ExecutorsReport:
    """Return all executors, by id; one that came back with another ledger is there twice."""
    pool = replica.leader.pool
    views = views_of(replica.state, replica.state.executors.values(), pool.sessions())
    return ExecutorsReport(executors=views, duplicate_ids=_duplicate_ids(pool))


async def one(replica: Replica, query: ExecutorQuery) -> ExecutorReport:
    """Return all that is known of one executor, or how it was when it left.

    Raises:
        NotFound: there is none of that id.
    """
    state, pool, name = replica.state, replica.leader.pool, query.executor
    records = {one.ledger: one for one in state.executors.values() if one.executor == name}
    session = pool.view(name)
    views = views_of(state, records.values(), [session] if session is not None else [])
    details = [detail(state, records[view.ledger], view, query.limit) for view in views]
    gone = replica.drained.of(name)
    if not details and gone is not None:
        details.append(ExecutorDetail(executor=gone))
    if not details:
        raise _unknown(name)
    details.sort(key=lambda one: one.executor.role != CONNECTED)
    duplicate_ids = [one for one in _duplicate_ids(pool) if one.executor == name]
    return ExecutorReport(
        details=details, duplicate_ids=duplicate_ids, now_ms=replica.clock.wall_ms()
    )


def _duplicate_ids(pool: Pool) -> list[DuplicateIdView]:
    recent = pool.duplicate_ids.recent()
    return [DuplicateIdView.of(duplicate_id) for duplicate_id in recent]


async def drain(replica: Replica, request: DrainRequest) -> ExecutorView:
    """Give an executor no more work, or work again. One that was drained and has left is as wanted,
    and is shown as it was.

    Raises:
        NotFound: there is none of that id.
    """
    command = Drain(request.executor, request.by or "somebody", request.is_over)
    _, results = await replica.leader.append(command)
    records = [one for one in replica.state.executors.values() if one.executor == request.executor]
    views = views_of(replica.state, records, replica.leader.pool.sessions())
    if results[0].verdict is Verdict.UNKNOWN_EXECUTOR or not views:
        gone = replica.drained.of(request.executor)
        if gone is not None and not request.is_over:
            return gone
        raise _unknown(request.executor)
    return next((view for view in views if view.role == CONNECTED), views[-1])


class DrainedExecutors:
    """The executors that were drained and have left, so that a script that drains one twice
    succeeds, and a misspelt id does not.

    Every replica follows the entries, so a new leader knows these executors too. A replica that
    started after an executor had left does not know it.
    """

    def __init__(self, applier: StateApplier) -> None:
        self._applier = applier
        self._drained: dict[int, ExecutorRecord] = {}  # by number, of State
        self._left: dict[str, ExecutorView] = {}  # by id, the oldest first
        applier.subscribe(self._applied)

    def of(self, executor: str) -> ExecutorView | None:
        """Return a drained executor as it was when it left, None where it is not known or has come
        back since."""
        return self._left.get(executor)

    def _applied(self, _index: int, outcome: Outcome) -> None:
        state = self._applier.state
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, Claim | Drain):
                # With a Claim, since State may be of a snapshot, and older than what was seen.
                records = state.executors.values()
                self._drained = {record.number: record for record in records if record.drained_by}
            elif isinstance(command, ExecutorJoined):
                self._left.pop(command.executor, None)
            elif isinstance(command, ExecutorLeft) and result.verdict is Verdict.ACCEPTED:
                record = self._drained.pop(command.number, None)
                if record is not None:
                    self._left.pop(record.executor, None)
                    self._left[record.executor] = _left(record, state.at_ms, command.outputs)
                    if len(self._left) > LEFT_KEPT:
                        del self._left[next(iter(self._left))]


def _left(record: ExecutorRecord, at_ms: int, outputs: int) -> ExecutorView:
    note = f"drained by {record.drained_by}, has left at {format_time(at_ms // 1000)}"
    if outputs:
        note += f"; outputs that object storage did not take stay on its disk: {outputs}"
    return ExecutorView(
        id=record.executor,
        role=LEFT,
        host=record.host,
        version=record.version,
        drained_by=record.drained_by,
        drained_ms=record.drained_ms,
        ledger=record.ledger,
        note=note,
    )


def _unknown(executor: str) -> NotFound:
    return NotFound(f"executor {executor} does not exist", "`raftcron executors` lists them")


def views_of(
    state: State, records: Iterable[ExecutorRecord], sessions: Iterable[Session]
) -> list[ExecutorView]:
    """Return executors as they are shown, by id and ledger, each with its session if it is
    connected, with what the cell grants them."""
    by_ledger = {(one.executor, one.ledger): one for one in sessions}
    grants = state.access.executor_grants()
    views = []
    for record in records:
        session = by_ledger.get((record.executor, record.ledger))
        offers = session.offers if session is not None else ()
        granted = grants.granted(record.executor, dict(record.labels), record.host, offers)
        reasons = (
            _why_no_work(session),
            _doubts(state, session),
            _not_granted(granted),
            _refuses(session),
        )
        labels = [one for one in sorted(granted.labels.items()) if one[0] != HOST_LABEL]
        view = ExecutorView.of(
            record,
            id=record.executor,
            role=IN_DOUBT,
            open=record.count_open(),
            labels=[f"{name}={value}" for name, value in labels],
            note="; ".join(filter(None, (_drained(record, session), *reasons))),
            not_granted=list(granted.refused),
            refuses_commands=_refuses_all(session, granted),
        )
        views.append(view if session is None else _connected(view, session, granted))
    return sorted(views, key=lambda view: (view.id, view.ledger))


def _refuses(session: Session | None) -> str:
    """Return which commands an executor refuses, whatever they are."""
    accounts = session.greeting.accounts if session is not None else None
    if accounts is None or accounts.own:
        return ""
    if accounts.runs_nothing:
        return (
            "commands are refused: it runs as root, and `users` of its configuration lists nobody"
        )
    return "commands without user= are refused: it runs as root, and `users` does not list root"


def _refuses_all(session: Session | None, granted: Granted) -> bool:
    """Return whether an executor has slots for commands and would start none."""
    if session is None or not session.greeting.slots or not granted.has_commands:
        return False
    accounts = session.greeting.accounts
    return accounts is not None and accounts.runs_nothing


def _doubts(state: State, session: Session | None) -> str:
    """Return what a connected executor says against the log and cannot prove."""
    if session is None:
        return ""
    text, _ = contradiction(state, session.executor, session.greeting.ordered)
    return f"it says, without a proof: {text}" if text else ""


def _not_granted(granted: Granted) -> str:
    if not granted.refused:
        return ""
    if not (granted.has_commands or any(offer.handlers for offer in granted.offers)):
        return "no work pool is granted to it: it gets no work"
    more = len(granted.refused) - NOT_GRANTED_SHOWN
    shown = ", ".join(granted.refused[:NOT_GRANTED_SHOWN]) + (
        f" and {more} more" if more > 0 else ""
    )
    return f"not granted: {shown}"


def _connected(view: ExecutorView, session: Session, granted: Granted) -> ExecutorView:
    return msgspec.structs.replace(
        view,
        role=CONNECTED,
        address=session.address,
        pid=session.greeting.pid,
        version=session.greeting.version,
        running=session.running,
        certificate_ends_ms=session.certificate_ends_ms,
        groups=[
            GroupView(
                group=offer.group,
                slots=offer.running_max,
                handlers=list(offer.handlers),
                ahead=offer.slots - offer.running_max,
                memory_limit=offer.memory_limiting.label,
            )
            for offer in granted.offers
            if offer.handlers
        ],
        silent_ms=session.silent_ms,
        clock_offset_ms=session.offset_ms,
        connected_since_ms=session.connected_since_ms,
        gets_work=session.gets_work and not view.drained_by,
        incarnation=session.greeting.incarnation,
        cpu_limit=session.greeting.cpu_limiting.label,
        memory_limit=session.greeting.memory_limiting.label,
    )


def _drained(record: ExecutorRecord, session: Session | None) -> str:
    if not record.drained_by:
        return ""
    since = format_time(record.drained_ms // 1000)
    rest = f"{record.count_open()} to finish" if record.batches else "finished"
    if session is not None and session.outputs_waiting:
        rest = f"{rest}, outputs to upload: {session.outputs_waiting}"
    return f"drained by {record.drained_by} since {since}, {rest}"


def _why_no_work(session: Session | None) -> str:
    """Return why an executor that is not drained gets no work, "" where it does."""
    if session is None:
        return "not connected; its launches are lost when its lease is over"
    if not session.is_leased:
        return "no answered heartbeat yet: it gets no work"
    if session.is_full:
        return LEDGER_FULL
    if session.is_silent:
        return "it does not answer; it gets no launches until it does"
    return "" if session.gets_work else "it gets no work: its clock is off, or it is silent"


def detail(state: State, record: ExecutorRecord, view: ExecutorView, limit: int) -> ExecutorDetail:
    """Return an executor with what is open on it: how much in each group of workers, and the
    `limit` launches that began first."""
    counts: dict[str, int] = {}  # by pool
    for row in record.launches():
        pool = _pool_of(state, row)
        counts[pool] = counts.get(pool, 0) + 1
    commands = counts.pop(COMMAND, 0)
    groups = [
        msgspec.structs.replace(
            group, open=sum(counts.get(handler, 0) for handler in group.handlers)
        )
        for group in view.groups
    ]
    first = nsmallest(limit, record.launches(), key=lambda row: (row.begun_at_ms, row.key))
    return ExecutorDetail(
        executor=msgspec.structs.replace(view, groups=groups),
        commands=commands,
        runs=[_run(state, row, record.number) for row in first],
    )


def _pool_of(state: State, row: LaunchRow) -> str:
    """The pool of a launch as it began."""
    job = row.job or state.by_number[row.number].job
    return job.pool if job is not None else ""


def _run(state: State, row: LaunchRow, executor: int) -> LaunchView:
    start = row.start_on(executor) or Part(executor, row.state)
    return LaunchView(
        launch=str(state.launch_name(row.key)),
        attempt=row.attempt,
        part=start.number if row.parts else 0,
        state=start.state.label,
        pool=_pool_of(state, row),
        begun_at_ms=row.begun_at_ms,
        started_at_ms=start.started_ms,
        reason=row.cancel.label,
    )
