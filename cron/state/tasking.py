"""How commands about tasks and queues change State, and how a task gets its job and its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

import msgspec

from cron.job import Job, OnLost, Retry, Schedule
from cron.launch_state import LaunchState
from cron.limits import (
    ATTEMPTS_MAX,
    DEADLINE_S_MAX,
    GROUPS_MAX,
    LABEL_CHARS_MAX,
    LABELS_MAX,
    PAYLOAD_BYTES_MAX,
    PREDECESSORS_KEPT,
    PREDECESSORS_MAX,
    QUEUES_MAX,
    RESULT_BYTES_MAX,
    RESULTS_BYTES_MAX,
    TASK_AHEAD_MS_MAX,
    TASK_LABELS_BYTES_MAX,
    TASK_PAYLOADS_BYTES_MAX,
    TASK_TEXT_CHARS_MAX,
    TASKS_REMEMBERED_MAX,
    TASKS_SPILLED_MAX,
    TASKS_WAITING_MAX,
    TENANT_PAYLOADS_BYTES_MAX,
    TIMEOUT_S_MAX,
)
from cron.scopes import PRIORITIES
from cron.state import launches, letters
from cron.state import tasks as t
from cron.state.chains import Hold, Predecessor, results_of, work_bytes
from cron.state.commands import Cancel, CancelItem
from cron.state.context import Context
from cron.state.groups import GroupRecord
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Result, Verdict
from cron.state.retries import after_doubt
from cron.state.rows import Part, Row, RowKind
from cron.state.spilling import unknown
from cron.state.state import JobRecord, Span, State
from launcher.protocol.names import SCHEDULED_S_MAX, TASK_MARK, is_task_name
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
DUE: Final = LaunchState.DUE
LOST: Final = LaunchState.LOST
SUCCEEDED: Final = LaunchState.SUCCEEDED
DIGEST_BYTES: Final = 16
EARLY_FORMAT: Final = 12
"""The format from which the row of a task that ended before its time says by which it is listed."""
_BACKOFF_MS_MAX: Final = 31 * 86_400_000
_RATE_MAX: Final = 1_000_000
_ON_LOST_MAX: Final = max(OnLost)
_ONCE: Final = Schedule("")
"""The schedule of a task's job, which is never due by itself."""


# ---- commands of programs


def submit(context: Context, command: t.SubmitTasks) -> Result:
    """Take tasks; a verdict for each. One that is known is answered and not repeated."""
    by = sys.intern(command.by[:TASK_TEXT_CHARS_MAX])  # equal ones of many tasks are kept once
    defaults = defaults_said(command.defaults)
    items = tuple([submit_one(context, spec, by, defaults) for spec in command.tasks])
    return Result(ACCEPTED, items, number=context.state.task_numbers)


def submit_one(
    context: Context, spec: t.TaskSpec, by: str, defaults: t.TaskOptions = t.NO_OPTIONS
) -> Verdict:
    """Take a task, or answer why not; nothing has changed then. `defaults` are those of its queue,
    if it makes one."""
    state = context.state
    tasks, options, at_ms = state.tasks, spec.options, context.at_ms
    queue = state.queues.get(spec.queue)
    if queue is not None and spec.key in queue.tasks:
        is_same = queue.tasks[spec.key].digest == spec.digest
        return Verdict.ALREADY if is_same else Verdict.OTHER_CONTENT
    if state.spilled.count and state.spilled.find(f"{spec.queue}{TASK_MARK}{spec.key}"):
        return Verdict.ON_DISK
    is_sound, own = _kept(options, options.handler if queue is None else queue.handler)
    if not is_sound or not _is_sound(spec):
        return Verdict.BAD_TASK
    if spec.at_ms > at_ms and spec.at_ms > _latest_ms(context):
        return Verdict.BAD_TIMES
    is_tied = bool(spec.group or spec.after or spec.after_any)
    if is_tied and (refusal := _refusal_of_ties(state, spec)) is not ACCEPTED:
        return refusal
    weight = len(spec.payload) + t.label_bytes(options.labels)
    tenant = t.tenant_of(spec.queue) if queue is None else queue.tenant
    if (refusal := _refusal_of_room(state, tenant, weight)) is not ACCEPTED:
        return refusal
    if queue is None:
        if not spec.options.handler:
            return Verdict.UNKNOWN_QUEUE
        if len(state.queues) >= QUEUES_MAX:
            return Verdict.TOO_MANY
        queue = t.QueueRecord(spec.queue, spec.options.handler, defaults, revision=context.index)
        state.queues[queue.name] = queue
    elif queue.waiting >= queue.waiting_max:
        return Verdict.QUEUE_FULL
    number = state.task_numbers = state.task_numbers + 1
    task = t.TaskRecord(
        number,
        queue.name,
        spec.key,
        max(spec.at_ms, at_ms),
        spec.payload,
        spec.digest,
        None if own is None else queue.shared(own),
        context.index,
        at_ms,
        by,
        timed_ms=at_ms if spec.is_delay else 0,
    )
    if is_tied:
        _tie(context, task, spec)
        tasks.put(task)
    else:
        tasks.add(task, queue, weight)
    context.moved_tasks[number] = None
    return ACCEPTED


def _refusal_of_ties(state: State, spec: t.TaskSpec) -> Verdict:
    """Return why a task can neither join its group nor follow what it names; ACCEPTED if it can."""
    names = (*spec.after, *spec.after_any)
    is_too_long = len(names) > PREDECESSORS_MAX
    if is_too_long or len(dict.fromkeys(names)) < len(names):
        return Verdict.BAD_TASK
    group = state.groups.get(spec.group)
    if group is not None and group.is_closed:
        return Verdict.GROUP_CLOSED
    is_new = bool(spec.group) and group is None
    if is_new and not is_task_name(spec.group, "k"):
        return Verdict.BAD_TASK
    if is_new and len(state.groups) >= GROUPS_MAX:
        return Verdict.TOO_MANY
    for name in names:
        known = state.tasks.get(name) if TASK_MARK in name else state.groups.get(name)
        if known is None:
            is_on_disk = TASK_MARK in name and state.spilled.find(name) is not None
            return Verdict.ON_DISK if is_on_disk else Verdict.UNKNOWN_PREDECESSOR
        if isinstance(known, GroupRecord) and not known.is_closed:
            return Verdict.GROUP_OPEN
    if state.holds.edges + len(names) > PREDECESSORS_KEPT:
        return Verdict.TOO_MANY
    return ACCEPTED


def _tie(context: Context, task: t.TaskRecord, spec: t.TaskSpec) -> None:
    """Have a new task join its group, which is made if it is not there, and follow others."""
    state = context.state
    if spec.group:
        group = state.groups.get(spec.group)
        if group is None:
            group = GroupRecord(spec.group, context.at_ms, task.by)
            state.groups.add(group)
        task.group = group.name
    if spec.after or spec.after_any:
        after, after_any = (
            tuple([_predecessor(state, name) for name in names])
            for names in (spec.after, spec.after_any)
        )
        state.holds.put(Hold(task.number, after, after_any))


def _predecessor(state: State, name: str) -> Predecessor:
    if TASK_MARK in name:
        return state.tasks[name].number
    return state.groups[name].name


def _refusal_of_room(state: State, tenant: str, weight: int) -> Verdict:
    """Return why a tenant may hand over no task with so many bytes; ACCEPTED if it may."""
    if state.piles and letters.keeps_all(state) and state.piles.is_full(tenant):
        return Verdict.PILE_FULL
    if state.tasks.waiting >= TASKS_WAITING_MAX or not _has_room(state.tasks, tenant, weight):
        return Verdict.TOO_MANY
    return ACCEPTED


def _has_room(tasks: t.TaskTable, tenant: str, more: int) -> bool:
    """Whether the cell, and a tenant, may have so many more bytes of payloads."""
    if tasks.payload_bytes + more > TASK_PAYLOADS_BYTES_MAX:
        return False
    return tasks.tenant_bytes.get(tenant, 0) + more <= TENANT_PAYLOADS_BYTES_MAX


def _latest_ms(context: Context) -> int:
    """Return the latest time for which a task may be submitted. Later than the last year there are
    no names of launches."""
    return min(context.at_ms + TASK_AHEAD_MS_MAX, SCHEDULED_S_MAX * 1000)


def _is_sound(spec: t.TaskSpec) -> bool:
    """Whether name, digest and payload are within their limits."""
    return (
        is_task_name(spec.queue, spec.key)
        and len(spec.digest) == DIGEST_BYTES
        and len(spec.payload) <= PAYLOAD_BYTES_MAX
    )


@lru_cache(maxsize=256)
def _kept(options: t.TaskOptions, handler: str) -> tuple[bool, t.TaskOptions | None]:
    """Return whether options are within their limits, and what a task of a queue with this handler
    keeps of them: None where all are the default ones. The tasks of a program have few of them."""
    own = msgspec.structs.replace(options, handler="") if options.handler == handler else options
    return _are_sound(options), None if own == t.NO_OPTIONS else own


def defaults_said(options: t.TaskOptions | None) -> t.TaskOptions:
    """Return what a command says of the queues that it makes; nothing where it cannot be."""
    return options if options is not None and _are_sound(options) else t.NO_OPTIONS


def _are_sound(options: t.TaskOptions) -> bool:
    """Whether options are within their limits."""
    texts = [options.handler, options.collection, options.traceparent]
    texts += [text for label in options.labels for text in label]
    return (
        -1 <= options.priority < PRIORITIES
        and 0 <= options.tries <= ATTEMPTS_MAX
        and 0 <= options.backoff_ms <= _BACKOFF_MS_MAX
        and 0 <= options.deadline_s <= DEADLINE_S_MAX
        and 0 <= options.timeout_s <= TIMEOUT_S_MAX
        and -1 <= options.on_lost <= _ON_LOST_MAX
        and len(options.labels) <= LABELS_MAX
        and t.label_bytes(options.labels) <= TASK_LABELS_BYTES_MAX
        and all(len(text) <= LABEL_CHARS_MAX for text in texts)
    )


def cancel(context: Context, command: t.CancelTasks) -> Result:
    """End tasks that wait, and cancel the launches of others (rule R8); a verdict for each."""
    by = command.by[:TASK_TEXT_CHARS_MAX]
    return _each(context, command.names, lambda task: _cancel(context, task, by))


def _cancel(context: Context, task: t.TaskRecord, by: str) -> Verdict:
    if task.is_over:
        return Verdict.ENDED
    if task.is_waiting:
        end_waiting(context, task, Part(0, LaunchState.CANCELLED, Reason.CANCELLED), by)
        return ACCEPTED
    record = context.state.by_number[task.job]
    keys = [row.key for row in record.open.values()]
    items = tuple(CancelItem(key, Reason.KILLED, by) for key in keys)
    result = launches.cancel(context, Cancel(items))
    context.moved_tasks[task.number] = None
    return Verdict(result.items[0]) if result.items else Verdict.ENDED


def give_up_waiting(context: Context, task: t.TaskRecord, end: Part) -> None:
    """End a task that waits, by nobody's will: its launch, which never began, is a dead letter."""
    if not letters.keeps_all(context.state):
        end_waiting(context, task, end)
        return
    record = make_ready(context, task)
    (row,) = record.open.values()
    context.end(row, end)
    context.state.forget_lost(row.key, row.attempt)  # no late report is about what never began
    changes = {"state": end.state, "reason": end.reason, "ended_ms": context.at_ms}
    context.put_task(context.state.tasks_by_number[task.number], **changes)
    after_doubt(context, record, row, end)


def end_waiting(context: Context, task: t.TaskRecord, end: Part, by: str = "") -> None:
    """End a task that never had a launch; it gets a row of history as a launch would."""
    scheduled_s = listed_s = task.at_ms // 1000
    if context.state.format >= EARLY_FORMAT:
        listed_s = min(scheduled_s, context.at_ms // 1000)
    context.record(
        Row(
            kind=RowKind.ENDED,
            job=task.name,
            revision=context.state.catalog,
            scheduled_s=scheduled_s,
            trigger=0,
            attempt=0,
            state=end.state,
            reason=end.reason,
            ended_index=context.index,
            ended_at_ms=context.at_ms,
            last_s=listed_s,
            by=by,
            due_at_ms=task.at_ms,
            note=end.note,
        )
    )
    changes = {"state": end.state, "reason": end.reason, "ended_ms": context.at_ms}
    context.put_task(task, **changes, payload=b"")
    context.over_tasks.append(task.number)


def reschedule(context: Context, command: t.RescheduleTasks) -> Result:
    """Give tasks that wait another time, priority or payload; a verdict for each."""
    items = [
        unknown(context.state, item.name) if task is None else _reschedule(context, task, item)
        for item in command.items
        for task in (context.state.tasks.get(item.name),)
    ]
    return Result(ACCEPTED, tuple(items))


def _reschedule(context: Context, task: t.TaskRecord, item: t.RescheduleItem) -> Verdict:
    if task.is_over:
        return Verdict.ENDED
    if item.revision not in (0, task.revision):
        return Verdict.STALE_REVISION
    if not task.is_waiting:
        return Verdict.WRONG_STATE
    at_ms = task.at_ms if item.at_ms < 0 else max(item.at_ms, context.at_ms)
    if at_ms > _latest_ms(context):
        return Verdict.BAD_TIMES
    payload = task.payload if item.payload is None else item.payload
    if len(payload) > PAYLOAD_BYTES_MAX or not -1 <= item.priority < PRIORITIES:
        return Verdict.BAD_TASK
    tasks, more = context.state.tasks, len(payload) - len(task.payload)
    if more > 0 and not _has_room(tasks, t.tenant_of(task.queue), more):
        return Verdict.TOO_MANY
    own = task.own
    if item.priority >= 0:
        own = msgspec.structs.replace(task.options, priority=item.priority)
        own = context.state.queues[task.queue].shared(own)
    timed_ms = task.timed_ms
    if item.at_ms >= 0:
        timed_ms = context.at_ms if item.is_delay else 0
    context.put_task(task, at_ms=at_ms, payload=payload, own=own, timed_ms=timed_ms)
    return ACCEPTED


def run(context: Context, command: t.RunTasks) -> Result:
    """Make tasks due that wait; a verdict for each, ALREADY for one that is due."""
    return _each(context, command.names, lambda task: _run(context, task))


def _run(context: Context, task: t.TaskRecord) -> Verdict:
    if task.is_over:
        return Verdict.ENDED
    if not task.is_waiting or task.at_ms <= context.at_ms:
        return Verdict.ALREADY
    context.put_task(task, at_ms=context.at_ms, timed_ms=context.at_ms)
    return ACCEPTED


def _each(
    context: Context, names: Iterable[str], change: Callable[[t.TaskRecord], Verdict]
) -> Result:
    state = context.state
    items = [
        unknown(state, name) if task is None else change(task)
        for name in names
        for task in (state.tasks.get(name),)
    ]
    return Result(ACCEPTED, tuple(items))


# ---- commands of the leader


def ready(context: Context, command: t.ReadyTasks) -> Result:
    """Give tasks that are due a job each, with a launch that is due; a verdict for each."""
    by_number = context.state.tasks.by_number
    items = [
        Verdict.UNKNOWN_TASK if task is None else _ready(context, task)
        for task in map(by_number.get, command.numbers)
    ]
    return Result(ACCEPTED, tuple(items))


def _ready(context: Context, task: t.TaskRecord) -> Verdict:
    if task.is_over:
        return Verdict.ENDED
    if task.job:
        return Verdict.ALREADY
    if task.at_ms > context.at_ms or context.state.holds.holds_back(task.number):
        return Verdict.NOT_DUE
    make_ready(context, task)
    return ACCEPTED


def make_ready(context: Context, task: t.TaskRecord) -> JobRecord:
    """Give a task that waits its job, and that a launch that is due; return the job's record."""
    state, scheduled_s = context.state, task.at_ms // 1000
    job = job_of(task, state.queues[task.queue], results_of(state, task.number))
    state.job_numbers += 1
    record = JobRecord(
        number=state.job_numbers,
        name=task.name,
        source="",
        revision=state.catalog,
        horizon_s=scheduled_s,
        job=job,
        spans=[Span(state.catalog, scheduled_s - 1, 0, _ONCE)],
        task=task.number,
    )
    state.put_record(record)
    state.tasks.add_bytes(t.tenant_of(task.queue), work_bytes(job.work))
    context.put_task(task, job=record.number, payload=b"")
    context.open_due(
        record,
        LaunchRow(
            number=record.number,
            scheduled_s=scheduled_s,
            trigger=0,
            state=DUE,
            deadline_ms=task.at_ms + job.deadline_s * 1000,
            revision=record.revision,
            due_at_ms=max(task.at_ms, 1),
        ),
    )
    return record


def job_of(
    task: t.TaskRecord, queue: t.QueueRecord, results: tuple[tuple[str, str], ...] = ()
) -> Job:
    """Return the job that a task becomes: what its own options leave open is as its queue says.
    `results` are those of the tasks that it follows."""
    own = options_of(task, queue)
    on_lost = OnLost(own.on_lost)
    return Job(
        task.name,
        _ONCE,
        WorkSpec(
            (),
            handler=handler_of(task, queue),
            payload=task.payload,
            timeout_ms=own.timeout_s * 1000,
            guarded=on_lost is OnLost.RETRY,
            priority=own.priority,
            results=results,
            labels=own.labels,
            traceparent=own.traceparent,
        ),
        on_lost=on_lost,
        deadline_s=own.deadline_s,
        retry=Retry(own.tries, own.backoff_ms),
        collection=own.collection,
    )


def options_of(task: t.TaskRecord, queue: t.QueueRecord) -> t.TaskOptions:
    """Return how a task runs: as it says, else as its queue does."""
    return t.with_defaults(task.options, t.defaults_of(queue))


def handler_of(task: t.TaskRecord, queue: t.QueueRecord) -> str:
    """Return the handler that runs a task."""
    return task.options.handler or queue.handler


def priority_of(task: t.TaskRecord, queue: t.QueueRecord) -> int:
    """Return the priority of a task, 0 (first) to 9."""
    own, default = task.options.priority, queue.defaults.priority
    return own if own >= 0 else default if default >= 0 else t.PRIORITY_USUAL


def on_lost_of(task: t.TaskRecord, queue: t.QueueRecord) -> OnLost:
    """Return what becomes of a task whose fate cannot be known."""
    own = task.options.on_lost
    return OnLost(max(own if own >= 0 else queue.defaults.on_lost, 0))


def deadline_s_of(task: t.TaskRecord, queue: t.QueueRecord) -> int:
    """Return how long after its time a task may begin, in seconds."""
    return task.options.deadline_s or queue.defaults.deadline_s or DEADLINE_S_MAX


def forget(context: Context, command: t.ForgetTasks) -> Result:
    """Forget tasks that have been over for as long as their queues remember them; a verdict for
    each."""
    by_number = context.state.tasks.by_number
    items = [
        Verdict.UNKNOWN_TASK if task is None else _forget(context, task)
        for task in map(by_number.get, command.numbers)
    ]
    return Result(ACCEPTED, tuple(items))


def _forget(context: Context, task: t.TaskRecord) -> Verdict:
    state = context.state
    queue = state.queues[task.queue]
    if task.job or not task.is_over:
        return Verdict.STILL_OPEN
    if task.number in state.holds.followed:
        return Verdict.STILL_OPEN
    if task.ended_ms + queue.remember_s * 1000 > context.at_ms:
        return Verdict.BAD_TIMES
    state.tasks.drop(task)
    context.moved_tasks[task.number] = None
    let_go(state, queue)
    return ACCEPTED


def let_go(state: State, queue: t.QueueRecord) -> None:
    """Forget a queue that nobody declares once it has no tasks."""
    if not queue.source and not queue.tasks and not queue.spilled:
        del state.queues[queue.name]


# ---- queues


def put_queues(context: Context, command: t.PutQueues) -> Result:
    """Add, change and remove the queues that one source declares, all or nothing."""
    verdict = _check(context, command)
    state = context.state
    if verdict is not ACCEPTED:
        return Result(verdict, number=state.queues_revision)
    state.queues_revision += 1
    for spec in command.queues:
        queue = state.queues.setdefault(spec.name, t.QueueRecord(spec.name, spec.handler))
        for name in t.DECLARED:
            setattr(queue, name, getattr(spec, name))
        queue.source, queue.revision = command.source, context.index
    for name in command.removed:
        queue = state.queues[name]
        queue.source, queue.revision = "", context.index
        let_go(state, queue)
    return Result(ACCEPTED, number=state.queues_revision)


def _check(context: Context, command: t.PutQueues) -> Verdict:
    """Whether the whole change may happen."""
    queues = context.state.queues
    if command.base != context.state.queues_revision:
        return Verdict.STALE_REVISION
    names = [*(spec.name for spec in command.queues), *command.removed]
    if len(dict.fromkeys(names)) < len(names):
        return Verdict.REPEATED
    if not command.source or not all(map(_is_queue, command.queues)):
        return Verdict.BAD_TASK
    if any(name not in queues for name in command.removed):
        return Verdict.UNKNOWN_QUEUE
    known = [queues[name] for name in names if name in queues]
    if any(queue.source not in ("", command.source) for queue in known):
        return Verdict.WRONG_SOURCE
    is_over = len(queues) + sum(name not in queues for name in names) > QUEUES_MAX
    return Verdict.TOO_MANY if is_over else ACCEPTED


def _is_queue(spec: t.QueueSpec) -> bool:
    numbers = (spec.waiting_max, spec.rate_per_s, spec.burst, spec.remember_s)
    most = (TASKS_WAITING_MAX + TASKS_SPILLED_MAX, _RATE_MAX, _RATE_MAX, t.REMEMBER_S_MAX)
    return (
        is_task_name(spec.name, "k")
        and 0 < len(spec.handler) <= LABEL_CHARS_MAX
        and all(0 <= number <= bound for number, bound in zip(numbers, most, strict=True))
        and spec.remember_s >= t.REMEMBER_S
        and _are_sound(spec.defaults)
    )


# ---- after an entry


def drop_jobs(context: Context) -> None:
    """Forget the jobs of tasks of which nothing is open, dead or lost since the entry before. A
    job stays through the entry by which its launch ended, so that whoever follows can name it."""
    state = context.state
    looked_at, state.over_jobs = sorted(state.over_jobs), {}
    for number in looked_at:
        record = state.by_number.get(number)
        if record is None or record.open or record.dead:
            continue
        if number in state.lost_tasks:
            _drop_payload(context, record)
            continue
        state.touch(record)
        state.drop_record(number)
        state.doubtful.pop(number, None)
        if record.job is not None:
            state.tasks.add_bytes(t.tenant_of(record.name), -work_bytes(record.job.work))
        context.gone_jobs.append(number)
        task = state.tasks.by_number.get(record.task)
        if task is not None:
            context.put_task(task, job=0)
            context.over_tasks.append(task.number)


def _drop_payload(context: Context, record: JobRecord) -> None:
    """Let go of the payload of a job that only waits for a late report."""
    job, task = record.job, context.state.tasks.by_number.get(record.task)
    if job is None or task is None or not work_bytes(job.work) or task.needs_payload(job.on_lost):
        return
    context.state.touch(record)
    context.state.tasks.add_bytes(t.tenant_of(record.name), -work_bytes(job.work))
    work = msgspec.structs.replace(job.work, payload=b"", results=())
    record.job = msgspec.structs.replace(job, work=work)


def kept_result(state: State, task: t.TaskRecord, text: str) -> str:
    """Return what is kept of the text with which a task succeeded; "" if there is no room left."""
    if not text:
        return ""
    encoded = text.encode()
    if len(encoded) > RESULT_BYTES_MAX:
        text = encoded[:RESULT_BYTES_MAX].decode(errors="ignore")
    is_followed = task.number in state.holds.followed
    room = RESULTS_BYTES_MAX if is_followed else RESULTS_BYTES_MAX // 2
    return text if state.tasks.result_bytes + len(text.encode()) <= room else ""


def settle(context: Context) -> None:
    """End the tasks whose launches are over by this entry, and keep to the bound of those that are
    remembered."""
    state, by_number = context.state, context.state.tasks.by_number
    for number, (end, reason, text) in context.task_ends.items():
        record = state.by_number[number]
        task = by_number.get(record.task)
        if record.open or task is None:
            continue  # it begins again
        state.over_jobs[number] = None
        if not task.is_over or task.state is LOST:  # a late report says more (rule R9)
            ended_ms = task.ended_ms if task.is_over else context.at_ms
            result = kept_result(state, task, text) if end is SUCCEEDED else ""
            context.put_task(task, state=end, reason=reason, ended_ms=ended_ms, result=result)
    state.tasks.remember(context.over_tasks, context.amended_tasks)
    excess = state.tasks.over - TASKS_REMEMBERED_MAX
    if excess > 0:
        for task in state.tasks.forget_oldest(excess):
            context.moved_tasks[task.number] = None
            queue = state.queues.get(task.queue)
            if queue is not None:
                let_go(state, queue)
