"""Tasks that programs hand over, cancel, reschedule and run now: each has a verdict of its own."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final

import msgspec

from cron.access import names_within
from cron.api import tasks as api
from cron.api.checks import checked
from cron.errors import (
    CronError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotNow,
    OtherContent,
    QueueFull,
    RateExceeded,
    RevisionConflict,
    Unavailable,
    UnknownHandler,
    UnknownQueue,
)
from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.pace import in_turns
from cron.service import spilled
from cron.service.replica import Replica
from cron.service.task_views import check_queue, chosen, fits, state_of, unknown_task, view_of
from cron.state import tasks as t
from cron.state.commands import Command
from cron.state.outcome import Verdict
from cron.state.state import State
from launcher.protocol.names import short_job_name, split_job_name

SHOWN_MAX: Final = 1_000
"""Tasks that the report of a change shows; all are counted."""
BYTES_AT_ONCE: Final = 512 << 10
"""Payloads and labels that one command has: far below what fits into an entry of the log."""
FULL_MS: Final = 1_000
"""When to try again where a queue is full: nobody knows when it has room."""
SETTLING_RETRY_MS: Final = 500
RESTORED_RETRY_MS: Final = 5_000
"""When to try again where a restored cell finds out what ran."""
ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
_DONE: Final = frozenset({Verdict.ACCEPTED, Verdict.ALREADY})
_encode_content: Final = msgspec.msgpack.Encoder().encode


# ---- submit


class _Submitted(msgspec.Struct):
    """One submission on its way: checked, or with the error that it is refused with."""

    name: str
    asked: api.TaskSubmission | None = None
    spec: t.TaskSpec | None = None
    error: CronError | None = None
    retry_after_ms: int = 0
    verdict: int = Verdict.ACCEPTED
    on_disk: t.TaskRecord | None = None  # what is known under its name

    def refuse(self, error: CronError, retry_after_ms: int = 0) -> None:
        """Refuse it."""
        self.error, self.retry_after_ms = error, retry_after_ms


async def submit(replica: Replica, request: api.SubmitRequest) -> api.SubmitReport:
    """Hand over tasks; each has its own verdict. Calls at one time share an entry of the log."""
    items = [_checked(one) for one in request.tasks]
    good = [item for item in items if item.error is None]
    await asyncio.gather(*(_commit(replica, part, request) for part in _parts(good)))
    state, now_ms = replica.state, replica.clock.wall_ms()
    return api.SubmitReport(tasks=[_answer(state, item, now_ms) for item in items])


def _checked(asked: api.TaskSubmission) -> _Submitted:
    try:
        canonical = checked(asked)
    except (InvalidInput, LimitExceeded) as error:
        return _Submitted(asked.name[:200], error=error)
    return _Submitted(canonical.name, canonical)


def _parts(items: Sequence[_Submitted]) -> Iterator[list[_Submitted]]:
    """Yield submissions in parts that fit into an entry each."""
    part: list[_Submitted] = []
    size = 0
    for item in items:
        asked = item.asked
        payload = asked.payload if asked is not None else msgspec.UNSET
        item_bytes = 0 if payload is msgspec.UNSET else len(payload)
        item_bytes += t.label_bytes(asked.labels.items()) if asked is not None else 0
        if part and size + item_bytes > BYTES_AT_ONCE:
            yield part
            part, size = [], 0
        part.append(item)
        size += item_bytes
    if part:
        yield part


async def _commit(
    replica: Replica, items: Sequence[_Submitted], request: api.SubmitRequest
) -> None:
    """Append submissions; each that is appended has the verdict of State."""
    sent: list[_Submitted] = []
    is_within = names_within(request.within)

    def build(state: State, now_ms: int) -> list[Command]:
        for item in items:
            _admit(replica, state, item, now_ms)
            if is_within is not None:
                _check_handler(state, item, is_within)
        sent[:] = [item for item in items if item.error is None]
        specs = tuple(item.spec for item in sent if item.spec is not None)
        return [t.SubmitTasks(specs, request.by)] if specs else []

    try:
        _, results = await replica.leader.submit(build)
    except NotNow as error:  # a restored cell (rule R13)
        for item in items:
            item.refuse(Unavailable(str(error), error.hint), RESTORED_RETRY_MS)
        return
    except LimitExceeded as error:  # too many changes wait: the next entry takes them
        for item in items:
            item.refuse(error, FULL_MS)
        return
    for item, verdict in zip(sent, results[0].items if results else (), strict=True):
        item.verdict = verdict
    if replica.state.spilled.count:
        on_disk = [item for item in sent if item.verdict == Verdict.ON_DISK]
        again = [item for item in on_disk if not await _is_known_on_disk(replica, item)]
        if again:
            await _commit_again(replica, again, request.by)


async def _is_known_on_disk(replica: Replica, item: _Submitted) -> bool:
    """Look for a task on disk that has the name of a submission, and set its verdict if there is
    one. Otherwise the submission follows a task on disk, or has the hash of another one's name."""
    try:
        found = await spilled.read(replica, item.name)
    except Unavailable as error:
        item.refuse(error, FULL_MS)
        return True
    if found is None or item.spec is None:
        return False
    is_same = found.digest == item.spec.digest
    item.verdict = Verdict.ALREADY if is_same else Verdict.OTHER_CONTENT
    item.on_disk = found
    return True


async def _commit_again(replica: Replica, items: Sequence[_Submitted], by: str) -> None:
    """Append submissions once more, after the tasks on disk that they follow, or whose hashes they
    share, are back."""
    specs = tuple(item.spec for item in items if item.spec is not None)
    names = [name for spec in specs for name in (*spec.after, *spec.after_any)]
    try:
        await spilled.bring_back(replica, [item.name for item in items] + names)
        _, results = await replica.leader.append(t.SubmitTasks(specs, by))
    except (Unavailable, NotNow, LimitExceeded) as error:
        for item in items:
            item.refuse(error, FULL_MS)
        return
    for item, verdict in zip(items, results[0].items, strict=True):
        item.verdict = verdict


def _admit(replica: Replica, state: State, item: _Submitted, now_ms: int) -> None:
    """Make the spec of a submission, or refuse it at the door: what State would refuse anyway need
    not be in the log."""
    asked = item.asked
    if asked is None:
        return
    try:
        item.spec = _spec(asked, now_ms)
    except InvalidInput as error:
        item.refuse(error)
        return
    queue = state.queues.get(item.spec.queue)
    if (queue is not None and asked.key in queue.tasks) or state.spilled.find(item.name):
        return  # it is there already, whatever the queue takes by now
    handler = asked.handler or (queue.handler if queue is not None else "")
    if not handler:
        hint = "name a handler, or declare the queue with `raftcron queue apply`"
        text = f"queue {short_job_name(item.spec.queue)} does not exist"
        item.refuse(UnknownQueue(text, hint))
    elif not _is_expected(replica, queue, handler):
        if replica.intake.is_settling(state.executors):
            text = f"executors have not come to the new leader yet; handler {handler} is not known"
            item.refuse(Unavailable(text, "try again"), SETTLING_RETRY_MS)
            return
        hint = 'start a worker that serves it, or declare its queue with unknown-handler = "wait"'
        item.refuse(UnknownHandler(f"no worker serves handler {handler}", hint))
    elif queue is not None and queue.waiting >= queue.waiting_max:
        item.refuse(_full(queue), FULL_MS)
    elif queue is not None and (wait_ms := replica.intake.wait_ms(queue)):
        text = f"queue {short_job_name(queue.name)} takes {queue.rate_per_s:,} tasks a second"
        item.refuse(RateExceeded(text, f"try again in {wait_ms} ms"), wait_ms)


def _check_handler(state: State, item: _Submitted, is_within: Callable[[str], bool]) -> None:
    """Refuse a handler beyond the scope of whoever submits. A queue's own handler is that of the
    queue's name, or the one that an editor declared."""
    if item.spec is None or item.error is not None:
        return
    queue, handler = state.queues.get(item.spec.queue), item.spec.options.handler
    if not handler or (queue is not None and handler == queue.handler):
        return
    tenant, _ = split_job_name(item.spec.queue)
    if not is_within(f"{tenant}/{handler}"):
        short = short_job_name(item.spec.queue)
        text = f"handler {handler} is not that of queue {short}, and not within the caller's scope"
        item.refuse(NotAllowed(text, "leave the handler out, or have an editor declare the queue"))


def _is_expected(replica: Replica, queue: t.QueueRecord | None, handler: str) -> bool:
    """Return whether there is, was or may later be a worker for a handler."""
    if queue is not None and (queue.waits_for_handler or handler == queue.handler):
        # Workers restart. A queue that a task made had one when it was made.
        has_run = queue.running or queue.done or queue.failed
        if queue.waits_for_handler or not queue.source or has_run:
            return True
    return replica.intake.serves(handler)


def _full(queue: t.QueueRecord) -> QueueFull:
    text = f"queue {short_job_name(queue.name)} is full ({queue.waiting:,} waiting)"
    return QueueFull(text, "try again later, or declare a higher `waiting`")


def _spec(asked: api.TaskSubmission, now_ms: int) -> t.TaskSpec:
    """Return a submission as State takes it.

    Raises:
        InvalidInput: its time is too far ahead.
    """
    queue = f"{asked.tenant}/{asked.queue or asked.handler}"
    payload = b"" if asked.payload is msgspec.UNSET else bytes(asked.payload).strip()
    labels = tuple(sorted(asked.labels.items()))
    options = t.TaskOptions(
        handler=asked.handler,
        priority=asked.priority,
        tries=asked.tries,
        backoff_ms=asked.backoff_ms,
        deadline_s=-(-asked.deadline_ms // 1000),
        timeout_s=-(-asked.timeout_ms // 1000),
        collection=asked.collection,
        on_lost=OnLost[asked.on_lost.upper()] if asked.on_lost else -1,
        labels=labels,
        traceparent=asked.traceparent,
    )
    # The time as it was said: a delay that is repeated is the same content at a later time.
    at_ms = api.iso_ms(asked.at) if asked.at else asked.at_ms
    content = (
        asked.queue,
        api.canonical_payload(payload) if payload else b"",
        at_ms,
        asked.delay_ms,
        msgspec.structs.replace(options, traceparent="") if asked.traceparent else options,
    )
    digest = hashlib.blake2b(_encode_content(content), digest_size=16).digest()
    return t.TaskSpec(queue, asked.key, asked.due_ms(now_ms), payload, digest, options)


def _answer(state: State, item: _Submitted, now_ms: int) -> api.SubmitVerdict:
    task = item.on_disk or state.tasks.get(item.name) if item.error is None else None
    is_new = item.verdict == ACCEPTED
    if item.error is None and (task is None or not (is_new or item.verdict in _DONE)):
        _refuse(state, item, task)
    if item.error is not None or task is None:
        return api.SubmitVerdict(
            task=item.name, error=_error(item.error), retry_after_ms=item.retry_after_ms
        )
    return api.SubmitVerdict(
        task=task.name,
        state=state_of(state, task, now_ms),
        scheduled_at=api.show_iso_ms(task.at_ms),
        at_ms=task.at_ms,
        is_new=is_new,
        revision=task.revision,
    )


def _refuse(state: State, item: _Submitted, task: t.TaskRecord | None) -> None:
    """Say what State's verdict means."""
    short = short_job_name(item.name)
    verdict = Verdict(item.verdict)
    if verdict is Verdict.OTHER_CONTENT and task is not None and item.spec is not None:
        item.refuse(
            OtherContent(
                f"task {short} has other content: its digest is {task.digest.hex()},"
                f" the one of this call is {item.spec.digest.hex()}",
                "use another key for another task",
            )
        )
    elif verdict is Verdict.QUEUE_FULL and item.spec is not None:
        item.refuse(_full(state.queues[item.spec.queue]), FULL_MS)
    elif verdict is Verdict.ON_DISK:
        item.refuse(spilled.no_room(item.name), FULL_MS)
    elif verdict is Verdict.TOO_MANY:
        text = (
            f"the cell has no room for task {short}: too many tasks, payloads (half of them may be"
            " of one tenant), queues or groups"
        )
        item.refuse(LimitExceeded(text, "try again later"), FULL_MS)
    else:
        item.refuse(InvalidInput(f"task {short} is refused: {verdict.label}"))


def _error(error: CronError | None) -> api.TaskError:
    if error is None:
        return api.TaskError("error", "the task was there, and is forgotten")
    return api.TaskError(error.code, str(error), error.hint)


# ---- changes of known tasks


async def cancel(replica: Replica, request: api.CancelRequest) -> api.TasksReport:
    """Cancel tasks by name, or all that a filter means and are not over; or say which would be.

    Raises:
        UnknownTask, NotNow: the only task that is named is not there, or over.
        UnknownQueue: the filter names a queue that is not there.
    """
    if request.filter is None:
        return await _cancel_named(replica, request)
    state, count, shown = replica.state, 0, list[str]()
    check_queue(state, request.filter)
    async for names in _meant(replica, request.filter):
        done = names
        if not request.is_dry_run:
            verdicts = zip(names, await _cancel_all(replica, names, request.by), strict=True)
            done = [name for name, verdict in verdicts if verdict in _DONE]
        count += len(done)
        shown += done[: SHOWN_MAX - len(shown)]
    tasks = [task for name in shown if (task := state.tasks.get(name)) is not None]
    now_ms = replica.clock.wall_ms()
    views = [view_of(state, task, now_ms) for task in tasks]
    return api.TasksReport(count=count, tasks=views, truncated=count > len(shown))


async def _meant(replica: Replica, wanted: api.TaskFilter) -> AsyncIterator[list[str]]:
    """Yield the names of the tasks that a filter means and that are not over, in portions: those on
    disk, those in memory, and those that went to disk meanwhile."""
    state = replica.state
    fit, newest = fits(state, wanted, replica.clock.wall_ms()), state.history.spills
    async for names in _meant_on_disk(replica, wanted, fit, 0, newest):
        yield names
    names = [
        task.name
        async for task in in_turns(chosen(state, wanted))
        if not task.is_over and fit(task)
    ]
    for first in range(0, len(names), SHOWN_MAX):
        yield names[first : first + SHOWN_MAX]
    async for names in _meant_on_disk(replica, wanted, fit, newest, state.history.spills):
        yield names


async def _meant_on_disk(
    replica: Replica,
    wanted: api.TaskFilter,
    fit: Callable[[t.TaskRecord], bool],
    after: int,
    upto: int,
) -> AsyncIterator[list[str]]:
    """Yield the names of tasks on disk that fit, of the segments with these numbers."""
    for segment in list(replica.state.history.spilled.values()):
        is_meant = after < segment.number <= upto
        if is_meant and spilled.may_have(segment, wanted.queue):
            async for _, tasks in spilled.tasks_of(replica, segment):
                names = [task.name for _, task in tasks if fit(task)]
                if names:
                    yield names


async def _cancel_all(replica: Replica, names: Sequence[str], by: str) -> list[Verdict]:
    return await spilled.change(replica, names, lambda some, _now_ms: t.CancelTasks(some, by))


async def _cancel_named(replica: Replica, request: api.CancelRequest) -> api.TasksReport:
    if request.is_dry_run:
        found = [await spilled.read(replica, name) for name in request.names]
        verdicts = [
            Verdict.UNKNOWN_TASK
            if task is None
            else (Verdict.ENDED if task.is_over else Verdict.ACCEPTED)
            for task in found
        ]
    else:
        verdicts = await _cancel_all(replica, request.names, request.by)
    return _named_report(replica, request.names, verdicts, "cancel")


async def run_now(replica: Replica, request: api.TaskNames) -> api.TasksReport:
    """Make tasks due that wait; those that are due already stay as they are.

    Raises:
        UnknownTask, NotNow: the only task that is named is not there, or over.
    """
    by = request.by
    verdicts = await spilled.change(
        replica, request.names, lambda some, _now_ms: t.RunTasks(some, by)
    )
    return _named_report(replica, request.names, verdicts, "run")


def _named_report(
    replica: Replica, names: Sequence[str], verdicts: Sequence[Verdict], what: str
) -> api.TasksReport:
    """Return what a change did to tasks that were named. A task that is cancelled already is no
    error for whoever cancels it again."""
    state, done = replica.state, list[str]()
    refused: list[tuple[str, CronError]] = []
    for name, verdict in zip(names, verdicts, strict=True):
        task = state.tasks.get(name)
        if verdict in _DONE:
            done.append(name)
        elif verdict is Verdict.ON_DISK:
            refused.append((name, spilled.no_room(name)))
        elif verdict is Verdict.UNKNOWN_TASK or task is None:
            refused.append((name, unknown_task(name)))
        elif what != "cancel" or task.state is not LaunchState.CANCELLED:
            label = task.state.label if task.is_over else verdict.label
            text = f"task {short_job_name(name)} is over: {label}"
            refused.append((name, NotNow(text, f"nothing is left to {what}")))
    if refused and len(names) == 1:
        raise refused[0][1]
    return _report(replica, done, refused)


def _report(
    replica: Replica, names: Sequence[str], refused: Sequence[tuple[str, CronError]]
) -> api.TasksReport:
    state, now_ms = replica.state, replica.clock.wall_ms()
    shown = [state.tasks[name] for name in names[:SHOWN_MAX] if name in state.tasks]
    return api.TasksReport(
        count=len(names),
        tasks=[view_of(state, task, now_ms) for task in shown],
        truncated=len(names) > SHOWN_MAX,
        errors=[api.RefusedTask(name, _error(error)) for name, error in refused],
    )


async def reschedule(replica: Replica, request: api.RescheduleRequest) -> api.TaskView:
    """Give a task that waits another time, priority or payload.

    Raises:
        UnknownTask: there is no such task. NotNow: it has begun or is over. RevisionConflict: it
            was changed meanwhile. InvalidInput, LimitExceeded: the time or payload cannot be.
    """
    name, payload = request.name, request.payload

    def build(_names: tuple[str, ...], now_ms: int) -> Command:
        item = t.RescheduleItem(
            name,
            request.revision,
            request.due_ms(now_ms) if request.has_time else -1,
            request.priority,
            None if payload is msgspec.UNSET else bytes(payload).strip(),
        )
        return t.RescheduleTasks((item,), request.by)

    (verdict,) = await spilled.change(replica, (name,), build)
    if verdict is Verdict.ON_DISK:
        raise spilled.no_room(name)
    state, short = replica.state, short_job_name(name)
    task = state.tasks.get(name)
    if verdict is Verdict.UNKNOWN_TASK or task is None:
        raise unknown_task(name)
    if verdict is Verdict.ENDED:
        raise NotNow(f"task {short} is over: {task.state.label}", "submit another one")
    if verdict is Verdict.WRONG_STATE:
        raise NotNow(f"task {short} has its launch already", "cancel it, or let it run")
    if verdict is Verdict.STALE_REVISION:
        text = f"task {short} has revision {task.revision}, not {request.revision}"
        raise RevisionConflict(text, "look at it again")
    if verdict is Verdict.TOO_MANY:
        raise LimitExceeded("the cell has no room for more payloads", "try again later")
    if verdict is not Verdict.ACCEPTED:
        raise InvalidInput(f"task {short} is not changed: {verdict.label}")
    return view_of(state, task, replica.clock.wall_ms())
