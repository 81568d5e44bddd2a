"""Tasks that programs hand over: each is checked at the door, and has a verdict of its own."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

import msgspec

from cron import failpoints
from cron.access import names_within
from cron.api import tasks as api
from cron.api.calls import to_its_end
from cron.api.checks import checked
from cron.errors import (
    CronError,
    GroupClosed,
    GroupOpen,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotNow,
    OtherContent,
    QueueFull,
    RateExceeded,
    Unavailable,
    UnknownHandler,
    UnknownPredecessor,
    UnknownQueue,
)
from cron.job import COMMAND, OnLost
from cron.limits import DEAD_KEPT, TENANT_DEAD_BYTES_MAX, TENANT_DEAD_MAX
from cron.service import spilled
from cron.service.replica import Replica
from cron.service.task_views import state_of, way_out
from cron.state import tasks as t
from cron.state.alerts import SELF
from cron.state.commands import Command
from cron.state.outcome import Verdict
from cron.state.state import State
from launcher.protocol.names import DEFAULT_TENANT, TASK_MARK, short_job_name, split_job_name

BYTES_AT_ONCE: Final = 512 << 10
"""Payloads and labels that one command has: far below what fits into an entry of the log."""
FOLLOWED_AT_ONCE: Final = 5_000
"""Predecessors that the tasks of one command have: State looks up each, in 0.01 s or so."""
FULL_MS: Final = 1_000
"""When to try again where a queue is full: nobody knows when it has room."""
SETTLING_RETRY_MS: Final = 500
RESTORED_RETRY_MS: Final = 5_000
"""When to try again where a restored cell finds out what ran."""
ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
ON_DISK: Final = Verdict.ON_DISK
DONE: Final = frozenset({Verdict.ACCEPTED, Verdict.ALREADY})
_encode_content: Final = msgspec.msgpack.Encoder().encode


class Handed(msgspec.Struct):
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
    """Hand over tasks; each has its own verdict. Calls at one time share an entry of the log.

    If the caller is cancelled, the tasks that fit into one entry are all in the log or none is. A
    call that may need more entries is submitted to its last task.
    """
    items = [read(one) for one in request.tasks]
    good = [item for item in items if item.error is None]
    ordered = in_order(good)
    parts = list(_parts(good if ordered is None else ordered))
    spilled_tasks = replica.state.spilled
    if (
        len(parts) == 1
        and ordered is None
        # Not where a name has the hash of a task on disk: that may be another task, and State can
        # tell only once it is brought back.
        and not (spilled_tasks.count and any(spilled_tasks.find(one.name) for one in good))
    ):
        await _commit(replica, parts[0], request)
    elif parts:
        await to_its_end(_commit_all(replica, parts, request, is_ordered=ordered is not None))
    state, now_ms = replica.state, replica.clock.wall_ms()
    if not all(item.error is None and item.verdict == ACCEPTED for item in items):
        known = {item.name: item for item in items}
        for item in items:
            if item.error is not None:
                continue
            task = item.on_disk or state.tasks.get(item.name)
            if task is None or (item.verdict != ACCEPTED and item.verdict not in DONE):
                refuse(state, item, task, known)
    return api.SubmitReport(tasks=[_answer(state, item, now_ms) for item in items])


async def _commit_all(
    replica: Replica,
    parts: Sequence[Sequence[Handed]],
    request: api.SubmitRequest,
    *,
    is_ordered: bool,
) -> None:
    if is_ordered:
        for part in parts:  # one after the other: a part may follow the one before
            await _commit(replica, part, request)
    else:
        await asyncio.gather(*(_commit(replica, part, request) for part in parts))


def in_order(items: Sequence[Handed]) -> list[Handed] | None:
    """Return submissions so that each comes after those of them that it follows; None where none
    follows another. Those that follow each other in a circle are refused."""
    if not any(one.asked is not None and (one.asked.after or one.asked.after_any) for one in items):
        return None
    known = {item.name: item for item in items}
    follows = {
        item.name: [name for name in item.asked.follows if name in known]
        for item in items
        if item.asked is not None
    }
    while True:
        try:
            order = {name: at for at, name in enumerate(TopologicalSorter(follows).static_order())}
        except CycleError as error:
            circle: list[str] = error.args[1][:-1]
            text = " before ".join(short_job_name(name) for name in (*circle, circle[0]))
            for name in circle:
                hint = "a task comes after tasks that can run without it"
                known[name].refuse(InvalidInput(f"the tasks wait for each other: {text}", hint))
            follows = {
                name: [one for one in before if one not in circle]
                for name, before in follows.items()
                if name not in circle
            }
            continue
        good = [item for item in items if item.error is None]
        return sorted(good, key=lambda item: order[item.name])


def read(asked: api.TaskSubmission) -> Handed:
    """Return a submission that is checked, or refused."""
    try:
        canonical = checked(asked)
    except (InvalidInput, LimitExceeded) as error:
        return Handed(asked.name[:200], error=error)
    if canonical.tenant == SELF:
        text = f"tenant {SELF} is the cell's own: only the cell submits its tasks"
        return Handed(canonical.name, error=InvalidInput(text, "name another tenant"))
    return Handed(canonical.name, canonical)


def _parts(items: Sequence[Handed]) -> Iterator[list[Handed]]:
    """Yield submissions in parts that fit into an entry each."""
    part: list[Handed] = []
    size = followed = 0
    for item in items:
        asked = item.asked
        payload = asked.payload if asked is not None else msgspec.UNSET
        item_bytes = 0 if payload is msgspec.UNSET else len(payload)
        follows = () if asked is None else asked.follows
        if asked is not None:
            item_bytes += t.label_bytes(asked.labels.items()) + sum(map(len, follows))
        is_full = size + item_bytes > BYTES_AT_ONCE or followed + len(follows) > FOLLOWED_AT_ONCE
        if part and is_full:
            yield part
            part, size, followed = [], 0, 0
        part.append(item)
        size += item_bytes
        followed += len(follows)
    if part:
        yield part


async def _commit(replica: Replica, items: Sequence[Handed], request: api.SubmitRequest) -> None:
    """Append submissions; each that is appended has the verdict of State."""
    sent: list[Handed] = []
    is_within = names_within(request.within)

    def build(state: State, now_ms: int) -> list[Command]:
        for item in items:
            admit(replica, state, item, now_ms)
            if is_within is not None:
                check_handler(state, item, is_within)
        sent[:] = [item for item in items if item.error is None]
        specs = tuple(item.spec for item in sent if item.spec is not None)
        defaults = t.defaults_in(state.format)
        return [t.SubmitTasks(specs, request.by, defaults)] if specs else []

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
    if sent:
        failpoints.hit("after-submit")
    if any(item.verdict == ON_DISK for item in sent):
        await to_its_end(_commit_again(replica, sent, request.by))


async def _refused_for_disk(replica: Replica, sent: Sequence[Handed]) -> list[Handed]:
    """Return submissions to be appended once more: those that follow a task on disk or share its
    hash, and what follows those."""
    again: dict[str, Handed] = {}
    for item in sent:
        if item.verdict == Verdict.ON_DISK:
            is_refused = not await _is_known_on_disk(replica, item)
        else:
            follows = item.asked.follows if item.asked is not None else ()
            is_unknown = item.verdict == Verdict.UNKNOWN_PREDECESSOR
            is_refused = is_unknown and any(name in again for name in follows)
        if is_refused:
            again[item.name] = item
    return list(again.values())


async def _is_known_on_disk(replica: Replica, item: Handed) -> bool:
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


async def _commit_again(replica: Replica, sent: Sequence[Handed], by: str) -> None:
    """Append submissions once more that were refused for tasks on disk, after the tasks that they
    follow, or whose hashes they share, are back."""
    items = await _refused_for_disk(replica, sent)
    specs = tuple(item.spec for item in items if item.spec is not None)
    if not specs:
        return
    names = [name for spec in specs for name in (*spec.after, *spec.after_any)]
    try:
        await spilled.bring_back(replica, [item.name for item in items] + names)
        defaults = t.defaults_in(replica.state.format)
        _, results = await replica.leader.append(t.SubmitTasks(specs, by, defaults))
    except (Unavailable, NotNow, LimitExceeded) as error:
        for item in items:
            item.refuse(error, FULL_MS)
        return
    for item, verdict in zip(items, results[0].items, strict=True):
        item.verdict = verdict


def admit(replica: Replica, state: State, item: Handed, now_ms: int) -> None:
    """Make the spec of a submission, or refuse it at the door: what State would refuse anyway need
    not be in the log."""
    asked = item.asked
    if asked is None:
        return
    try:
        item.spec = spec_of(asked, now_ms)
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
    elif handler == COMMAND:  # of a queue that an older release took
        text = f"queue {short_job_name(item.spec.queue)} has handler {COMMAND!r}, which cannot be"
        item.refuse(UnknownHandler(text, "declare the queue anew, with a handler of a worker"))
    elif not _is_expected(replica, queue, handler):
        if replica.intake.is_settling(state.executors):
            text = f"executors have not come to the new leader yet; handler {handler} is not known"
            item.refuse(Unavailable(text, "try again"), SETTLING_RETRY_MS)
            return
        hint = 'start a worker that serves it, or declare its queue with unknown-handler = "wait"'
        item.refuse(UnknownHandler(f"no worker serves handler {handler}", hint))
    elif queue is not None and queue.waiting >= queue.waiting_max:
        item.refuse(_full(queue), FULL_MS)
    elif refusal := _beyond_limits(replica, state, item.spec, handler):
        item.refuse(refusal, FULL_MS)
    elif queue is not None and (wait_ms := replica.intake.wait_ms(queue)):
        text = f"queue {short_job_name(queue.name)} takes {queue.rate_per_s:,} tasks a second"
        item.refuse(RateExceeded(text, f"try again in {wait_ms} ms"), wait_ms)


def _beyond_limits(
    replica: Replica, state: State, spec: t.TaskSpec, handler: str
) -> CronError | None:
    """Return why no more tasks of a handler or a tenant may wait; None if this one may, which then
    counts as waiting."""
    if not state.limits:
        return None
    queue = state.queues.get(spec.queue)
    usual = t.PRIORITY_USUAL if queue is None else t.defaults_of(queue).priority
    priority = spec.options.priority if spec.options.priority >= 0 else usual
    admission = replica.leader.indexes.queues.admission
    try:
        admission.hand_over(t.tenant_of(spec.queue), handler, priority)
    except (LimitExceeded, Unavailable) as error:
        return error
    return None


def check_handler(state: State, item: Handed, is_within: Callable[[str], bool]) -> None:
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


def _pile_full(state: State, tenant: str) -> LimitExceeded:
    """Return why a tenant may hand over no task, and what it may do about it."""
    pile = state.piles.get(tenant)
    count, weight = (pile.count, pile.weight) if pile is not None else (0, 0)
    text = (
        f"the pile of tenant {tenant} is full: {count:,} of {TENANT_DEAD_MAX:,} dead letters,"
        f" {weight >> 20:,} of {TENANT_DEAD_BYTES_MAX >> 20} MiB"
    )
    if state.piles.count >= DEAD_KEPT:
        text += f"; the cell has {state.piles.count:,} of {DEAD_KEPT:,}, shared by all tenants"
    return LimitExceeded(
        text,
        f"`raftcron dead list --tenant {tenant}` shows them; `raftcron dead redrive` launches them"
        " again, `raftcron dead drop` forgets them",
    )


def spec_of(asked: api.TaskSubmission, now_ms: int) -> t.TaskSpec:
    """Return a submission as State takes it.

    Raises:
        InvalidInput: its time is too far ahead.
    """
    queue = f"{asked.tenant}/{asked.queue or asked.handler}"
    payload = b"" if asked.payload is msgspec.UNSET else bytes(asked.payload).strip()
    options = t.TaskOptions(
        asked.handler,
        asked.priority,
        asked.tries or asked.retries + 1,  # 0 where its queue says it
        asked.backoff_ms,
        -(-asked.deadline_ms // 1000),
        -(-asked.timeout_ms // 1000),
        asked.collection,
        OnLost[asked.on_lost.upper()] if asked.on_lost else -1,
        tuple(sorted(asked.labels.items())) if asked.labels else (),
        asked.traceparent,
    )
    # The time as it was said: a delay that is repeated is the same content at a later time.
    at_ms = api.iso_ms(asked.at) if asked.at else asked.at_ms
    content: tuple[object, ...] = (
        asked.queue,
        api.canonical_payload(payload) if payload else b"",
        at_ms,
        asked.delay_ms,
        msgspec.structs.replace(options, traceparent="") if asked.traceparent else options,
    )
    if asked.group or asked.after or asked.after_any:
        content += (asked.full_group, sorted(asked.after), sorted(asked.after_any))
    digest = hashlib.blake2b(_encode_content(content), digest_size=16).digest()
    due_ms, group = asked.due_ms(now_ms), asked.full_group
    ties = (group, tuple(asked.after), tuple(asked.after_any))
    return t.TaskSpec(queue, asked.key, due_ms, payload, digest, options, *ties, asked.is_delay)


def _answer(state: State, item: Handed, now_ms: int) -> api.SubmitVerdict:
    task = (item.on_disk or state.tasks.get(item.name)) if item.error is None else None
    if item.error is not None or task is None:
        return api.SubmitVerdict(
            task=item.name, error=error_view(item.error), retry_after_ms=item.retry_after_ms
        )
    return api.SubmitVerdict(
        task=task.name,
        state=state_of(state, task, now_ms),
        scheduled_at=api.show_iso_ms(task.at_ms),
        at_ms=task.at_ms,
        is_new=item.verdict == ACCEPTED,
        revision=task.revision,
        note="" if item.verdict == ACCEPTED else way_out(state, task),
    )


def refuse(
    state: State, item: Handed, task: t.TaskRecord | None, others: Mapping[str, Handed]
) -> None:
    """Say what State's verdict means. `others` are the submissions of the same call, by name."""
    short = short_job_name(item.name)
    verdict = Verdict(item.verdict)
    if verdict is Verdict.OTHER_CONTENT and task is not None and item.spec is not None:
        item.refuse(
            OtherContent(
                f"task {short} has other content: its digest is {task.digest.hex()},"
                f" the one of this call is {item.spec.digest.hex()}",
                "; ".join(filter(None, ("use another key for another task", way_out(state, task)))),
            )
        )
    elif verdict is Verdict.QUEUE_FULL and item.spec is not None:
        item.refuse(_full(state.queues[item.spec.queue]), FULL_MS)
    elif verdict is Verdict.ON_DISK:
        item.refuse(spilled.no_room(item.name), FULL_MS)
    elif verdict is Verdict.PILE_FULL and item.spec is not None:
        item.refuse(_pile_full(state, t.tenant_of(item.spec.queue)), FULL_MS)
    elif verdict is Verdict.TOO_MANY:
        text = (
            f"the cell has no room for task {short}: too many tasks, payloads (half of them may be"
            " of one tenant), queues or groups"
        )
        item.refuse(LimitExceeded(text, "try again later"), FULL_MS)
    elif verdict is Verdict.UNKNOWN_PREDECESSOR and item.spec is not None:
        item.refuse(*_missing(state, item.spec, others))
    elif verdict is Verdict.GROUP_OPEN and item.spec is not None:
        names = (*item.spec.after, *item.spec.after_any)
        open_ = (name for name in names if (one := state.groups.get(name)) and not one.is_closed)
        group = short_job_name(next(open_, names[0]))
        text = f"task {short} cannot come after group {group}, which is open: tasks may join it"
        item.refuse(GroupOpen(text, f"close it first: `raftcron group close {group}`"))
    elif verdict is Verdict.GROUP_CLOSED and item.spec is not None:
        text = f"group {short_job_name(item.spec.group)} is closed and takes no more tasks"
        item.refuse(GroupClosed(text, "submit the task to another group, or to none"))
    else:
        item.refuse(InvalidInput(f"task {short} is refused: {verdict.label}"))


def _missing(state: State, spec: t.TaskSpec, others: Mapping[str, Handed]) -> tuple[CronError, int]:
    """Return why a task cannot follow what is not there, and when another try may be worth it."""
    names = (*spec.after, *spec.after_any)
    lacks = [name for name in names if name not in state.tasks and name not in state.groups]
    name = next(iter(lacks), names[0])
    short, other = short_job_name(name), others.get(name)
    if other is not None and other.error is not None:
        text = f"task {short}, which it comes after, was refused: {other.error}"
        if other.retry_after_ms:
            return type(other.error)(text, other.error.hint), other.retry_after_ms
        return UnknownPredecessor(text, other.error.hint), 0
    tenant, _ = split_job_name(spec.queue)
    hint = "submit it first, or in the same call; it is forgotten a day after its end"
    if tenant not in (DEFAULT_TENANT, split_job_name(name)[0]):
        hint = f"of the same tenant it is {tenant}/{short.rpartition('/')[2]}"
    what = "task" if TASK_MARK in name else "group"
    return UnknownPredecessor(f"{what} {short}, which it comes after, does not exist", hint), 0


def error_view(error: CronError | None) -> api.TaskError:
    """Return an error as a verdict has it."""
    if error is None:
        return api.TaskError("error", "the task was there, and is forgotten")
    return api.TaskError(error.code, str(error), error.hint)
