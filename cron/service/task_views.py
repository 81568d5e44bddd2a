"""Tasks as people and programs see them: one, a list page by page, a stream of changes.

State has tasks by name, by number and by queue, all in the order in which they came in. A page of a
list looks through a bounded number of them, newest first; where few fit, a page may be empty and
yet have a next one.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice, takewhile
from operator import attrgetter
from typing import Final

import msgspec

from cron.access import names_within
from cron.api.launches import LaunchView, ShowRequest
from cron.api.tasks import (
    WATCH_MS_MAX,
    TaskChange,
    TaskFilter,
    TaskListQuery,
    TaskQuery,
    TasksPage,
    TaskView,
    WatchRequest,
    show_iso_ms,
)
from cron.errors import InvalidInput, PositionGone, UnknownLaunch, UnknownQueue, UnknownTask
from cron.job import OnLost
from cron.launch_state import ACTIVE, LaunchState
from cron.pace import in_turns
from cron.scheduler.why import rest
from cron.service import spilled
from cron.service.launches import open_viewer, show
from cron.service.replica import Replica
from cron.service.task_feed import WHOLE
from cron.state.alerts import is_own
from cron.state.chains import names_of, waits_for
from cron.state.launch_row import LaunchRow
from cron.state.state import State
from cron.state.tasking import handler_of, options_of
from cron.state.tasks import TaskRecord
from launcher.protocol.names import LaunchName, short_job_name, split_job_name

LOOKS_MAX: Final = 20_000
"""Tasks that one page looks through: some hundredths of a second."""
PAGE_MS_MAX: Final = 3_600_000
"""How old a page may be that the next one is asked for with."""
USUAL_WAIT_MS: Final = 1_000
"""A task that is due for less than this waits for the leader's next entry and for nothing else."""
LAPS_MAX: Final = 2
"""Laps after the first one, for tasks that moved while a list was read."""
_ROW_BITS: Final = 13

_number: Final = attrgetter("number")


def unknown_task(name: str) -> UnknownTask:
    """Return the error for a task that is not there."""
    return UnknownTask(
        f"task {short_job_name(name)} does not exist",
        "`raftcron task list` lists them; one that is over is forgotten after a day",
    )


def is_dead(state: State, task: TaskRecord) -> bool:
    """Return whether a task is a dead letter."""
    record = state.by_number.get(task.job) if task.job else None
    return record is not None and bool(record.dead)


def way_out(state: State, task: TaskRecord) -> str:
    """Return what runs a task that is a dead letter, "" for any other one."""
    if not is_dead(state, task):
        return ""
    short = short_job_name(task.name)
    return f"it is a dead letter: `raftcron dead redrive '{short}'` runs it with its payload"


def open_row(state: State, task: TaskRecord) -> LaunchRow | None:
    """Return the open launch of a task, None where it has none."""
    record = state.by_number.get(task.job) if task.job else None
    return next(iter(record.open.values()), None) if record is not None else None


def state_of(state: State, task: TaskRecord, now_ms: int) -> str:
    """Return the state of a task as it is shown. A task whose time has come is due, whether it has
    a launch or not."""
    if task.is_over:
        return task.state.label
    if task.is_waiting:
        is_due = task.at_ms <= now_ms and not state.holds.holds_back(task.number)
        return "due" if is_due else "waiting"
    row = open_row(state, task)
    return "running" if row is None or row.state in ACTIVE else "due"


def view_of(state: State, task: TaskRecord, now_ms: int) -> TaskView:
    """Return a task as a list shows it."""
    queue = state.queues[task.queue]
    tenant, short = split_job_name(task.queue)
    options, hold = options_of(task, queue), state.holds.get(task.number)
    return TaskView(
        task=task.name,
        queue=short,
        key=task.key,
        tenant=tenant,
        handler=handler_of(task, queue),
        state=state_of(state, task, now_ms),
        scheduled_at=show_iso_ms(task.at_ms),
        at_ms=task.at_ms,
        submitted_at=show_iso_ms(task.submitted_ms),
        ended_at=show_iso_ms(task.ended_ms),
        revision=task.revision,
        priority=options.priority,
        collection=options.collection,
        labels=dict(options.labels),
        launch="" if task.never_ran else str(launch_of(task)),
        reason=task.reason.label if task.is_over else _rest_of(state, task, now_ms),
        by=task.by,
        result=task.result,
        group=task.group,
        is_dead=is_dead(state, task),
        after=names_of(state, hold.after) if hold is not None else [],
        after_any=names_of(state, hold.after_any) if hold is not None else [],
        waits_for=0 if hold is None or hold.is_released else len(waits_for(state, hold)),
        tries=options.tries,
        backoff_ms=options.backoff_ms,
        deadline_ms=options.deadline_s * 1000,
        timeout_ms=options.timeout_s * 1000,
        on_lost=OnLost(options.on_lost).name.lower(),
    )


def _rest_of(state: State, task: TaskRecord, now_ms: int) -> str:
    """Return until when a task waits that is tried again, and why; "" for any other task."""
    row = open_row(state, task)
    if row is None or row.state is not LaunchState.DUE or row.not_before_ms <= now_ms:
        return ""
    record = state.by_number[task.job]
    job = row.job or record.job
    return rest(record, job, row, now_ms) if job is not None else ""


def launch_of(task: TaskRecord) -> LaunchName:
    """Return the name of the launch that a task has, had or would have."""
    return LaunchName(task.name, task.at_ms // 1000)


async def get(replica: Replica, request: TaskQuery) -> TaskView:
    """Return one task, with its payload, if the caller may see that, and all its attempts.

    Raises:
        UnknownTask: there is no such task, or it is forgotten.
    """
    task = await spilled.read(replica, request.name)
    state, now_ms = replica.state, replica.clock.wall_ms()
    if task is None or task.queue not in state.queues:
        raise unknown_task(request.name)
    view, row = view_of(state, task, now_ms), open_row(state, task)
    record = state.by_number.get(task.job) if task.job else None
    payload = task.payload
    if record is not None and record.job is not None:
        payload = record.job.work.payload
    reason = view.reason
    hold = state.holds.get(task.number)
    if view.waits_for and hold is not None:
        names = [short_job_name(one) for one in names_of(state, waits_for(state, hold))]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        reason = f"waits for {names[0]}{more}"
    elif row is not None:
        reason = open_viewer(replica)(row).waiting
    elif view.state == "due" and now_ms - task.at_ms > USUAL_WAIT_MS:
        reason = no_launch_yet(replica, view.handler)
    attempts: list[LaunchView] = []
    if not task.is_waiting:
        with contextlib.suppress(UnknownLaunch):
            attempts = await show(replica, ShowRequest(launch=str(launch_of(task))))
    is_done, is_seen = task.state is LaunchState.SUCCEEDED, names_within(request.payloads)
    is_shown = is_seen is None or is_seen(task.queue)
    if task.is_over and not is_done and attempts and attempts[-1].detail:
        reason = ": ".join(filter(None, (reason, attempts[-1].detail)))
    return msgspec.structs.replace(
        view,
        payload=msgspec.json.decode(payload) if payload and is_shown else None,
        payload_hidden=bool(payload) and not is_shown,
        attempts=[] if task.never_ran else attempts,
        reason=reason,
        result=task.result or (attempts[-1].detail if attempts and is_done else ""),
    )


def no_launch_yet(replica: Replica, handler: str) -> str:
    """Return why a task that is due has no launch; only a leader knows what its workers do."""
    if replica.leader.epoch is None:
        return "the leader knows why"
    if not replica.intake.serves(handler):
        return f"no worker serves handler {handler}"
    return f"all slots of handler {handler} are taken"


# ---- lists


def fits(state: State, wanted: TaskFilter, now_ms: int) -> Callable[[TaskRecord], bool]:
    """Return what says whether a task is one of those that a filter means. Messages of the cell
    itself are none unless it names a queue, a tenant, a group or a collection."""
    within = names_within(wanted.within)
    tenant = f"{wanted.tenant}/"
    hides_own = not (wanted.queue or wanted.tenant or wanted.group or wanted.collection)

    def fit(task: TaskRecord) -> bool:
        return (
            not (hides_own and is_own(task.queue))
            and (not wanted.queue or task.queue == wanted.queue)
            and (not wanted.group or task.group == wanted.group)
            and (not wanted.tenant or task.queue.startswith(tenant))
            and task.key.startswith(wanted.prefix)
            and task.at_ms >= wanted.from_ms
            and (not wanted.to_ms or task.at_ms < wanted.to_ms)
            and (not wanted.collection or wanted.collection == _collection(state, task))
            and (not wanted.state or wanted.state == state_of(state, task, now_ms))
            and (within is None or within(task.queue))
        )

    return fit


def _collection(state: State, task: TaskRecord) -> str:
    return task.options.collection or state.queues[task.queue].defaults.collection


def chosen(state: State, wanted: TaskFilter) -> list[TaskRecord]:
    """Return the tasks that a filter may mean, oldest first: those of its queue, or all."""
    if wanted.queue:
        queue = state.queues.get(wanted.queue)
        return list(queue.tasks.values()) if queue is not None else []
    return list(state.tasks_by_number.values())


def check_queue(state: State, wanted: TaskFilter) -> None:
    """Return if the queue of a filter is there, or it names none.

    Raises:
        UnknownQueue: there is no such queue, or the caller may not see it.
    """
    within = names_within(wanted.within)
    is_seen = wanted.queue in state.queues and (within is None or within(wanted.queue))
    if wanted.queue and not is_seen:
        text = f"queue {short_job_name(wanted.queue)} does not exist"
        raise UnknownQueue(text, "`raftcron queue list` shows the queues of tasks")


class ListPlace(msgspec.Struct, array_like=True):
    """Where the next page of a list begins: below the task with the number `last`, 0 for the
    newest; or, on disk, at a place.

    A list is read in laps, because tasks move between disk and memory meanwhile, and get a higher
    number or segment each time. A lap has the tasks in memory above `above`, which are up to
    `newest` when it begins, then the segments above `above_segment` and up to `segment`. The next
    lap has what came after these, but nothing that was submitted after `begun_ms`, when the list
    began.
    """

    newest: int
    begun_ms: int
    last: int = 0
    is_on_disk: bool = False
    above: int = 0
    segment: int = 0
    above_segment: int = 0
    lap: int = 0


async def listed(replica: Replica, query: TaskListQuery) -> TasksPage:
    """Return a page of tasks: in memory, those first that came in last; then on disk; then those
    that moved meanwhile, of which some may have been on a page before.

    Raises:
        InvalidInput: the page is of another list. PositionGone: it is too old. UnknownQueue: the
            filter names a queue that is not there.
    """
    state, now_ms = replica.state, replica.clock.wall_ms()
    check_queue(state, query.filter)
    place = ListPlace(state.task_numbers, state.at_ms)
    if query.page:
        place = _read_page(state, query, now_ms)
    if place.is_on_disk:
        return await _listed_on_disk(replica, query, place)
    looked_at, last = _below(state, query.filter, place), place.last
    fit, found = fits(state, query.filter, now_ms), list[TaskView]()
    async for task in in_turns(looked_at):
        last = task.number
        is_part = not place.lap or task.submitted_ms <= place.begun_ms
        if is_part and fit(task) and last in state.tasks_by_number and task.queue in state.queues:
            found.append(view_of(state, task, now_ms))
            if len(found) == query.limit:
                break
    is_end = len(looked_at) < LOOKS_MAX and (not looked_at or last == looked_at[-1].number)
    if not is_end:
        return _page(state, query, found, msgspec.structs.replace(place, last=last), now_ms)
    if query.filter.state not in ("", "waiting"):
        return TasksPage(tasks=found, next="")
    segment = state.history.spills
    first = (segment + 1) << _ROW_BITS
    place = msgspec.structs.replace(place, last=first, is_on_disk=True, segment=segment)
    if state.spilled.count and segment > place.above_segment:
        return _page(state, query, found, place, now_ms)
    return _next_lap(state, query, found, place, now_ms)


async def _listed_on_disk(replica: Replica, query: TaskListQuery, place: ListPlace) -> TasksPage:
    """Return a page of tasks on disk, the newest segment first, by time within each."""
    state, now_ms, wanted = replica.state, replica.clock.wall_ms(), query.filter
    fit, found, looked_at = fits(state, wanted, now_ms), list[TaskView](), 0
    number, row = place.last >> _ROW_BITS, place.last & (1 << _ROW_BITS) - 1
    segments = sorted(state.history.spilled.values(), key=_number, reverse=True)
    for segment in segments:
        is_part = place.above_segment < segment.number <= number
        is_wanted = (
            segment.left > 0
            and (not wanted.queue or wanted.queue in segment.queues)
            and (not wanted.group or wanted.group in segment.groups)
        )
        if not is_part or not is_wanted:
            continue
        first, last = row if segment.number == number else 0, 0
        async for behind, tasks in spilled.tasks_of(replica, segment, first):
            looked_at += spilled.READ_ROWS
            for at, task in tasks:
                if fit(task):
                    found.append(view_of(state, task, now_ms))
                if len(found) == query.limit:
                    last = segment.number << _ROW_BITS | at + 1
                    break
            if looked_at >= LOOKS_MAX:
                last = last or segment.number << _ROW_BITS | behind
            if last:
                place = msgspec.structs.replace(place, last=last)
                return _page(state, query, found, place, now_ms)
    return _next_lap(state, query, found, place, now_ms)


def _next_lap(
    state: State, query: TaskListQuery, found: list[TaskView], place: ListPlace, now_ms: int
) -> TasksPage:
    """Return the last page of a lap. After it come tasks that may have moved meanwhile."""
    newest, segment = state.task_numbers, place.segment
    is_still = newest == place.newest and state.history.spills == segment
    if is_still or not segment or place.lap == LAPS_MAX:
        return TasksPage(tasks=found, next="")
    lap = ListPlace(
        newest, place.begun_ms, above=place.newest, above_segment=segment, lap=place.lap + 1
    )
    return _page(state, query, found, lap, now_ms)


def _below(state: State, wanted: TaskFilter, place: ListPlace) -> Sequence[TaskRecord]:
    """Return the tasks in memory that a page looks through."""
    last, above = place.last, place.above
    if wanted.group:
        newest = state.tasks.newest_of_group(wanted.group, last, above)
        return list(islice(newest, LOOKS_MAX))
    if not last:
        queue = state.queues.get(wanted.queue) if wanted.queue else None
        if wanted.queue and queue is None:
            return []
        tasks = queue.tasks if queue is not None else state.tasks_by_number
        newest = takewhile(lambda task: task.number > above, reversed(tasks.values()))
        return list(islice(newest, LOOKS_MAX))
    if wanted.queue:
        records = chosen(state, wanted)
        end = bisect_left(records, last, key=_number)
        first = max(bisect_right(records, above, key=_number), end - LOOKS_MAX)
        return records[first:end][::-1]
    numbers = list(state.tasks_by_number)
    end = bisect_left(numbers, last)
    first = max(bisect_right(numbers, above), end - LOOKS_MAX)
    return [state.tasks_by_number[one] for one in reversed(numbers[first:end])]


def _page(
    state: State, query: TaskListQuery, found: list[TaskView], place: ListPlace, now_ms: int
) -> TasksPage:
    """Return a page of tasks that another one follows, which begins at a place."""
    following = (state.epoch.generation, now_ms // 1000, _digest(query.filter), place)
    text = base64.urlsafe_b64encode(msgspec.msgpack.encode(following)).decode()
    return TasksPage(tasks=found, next=text)


def _read_page(state: State, query: TaskListQuery, now_ms: int) -> ListPlace:
    """Return where a page begins."""
    hint = "begin again without a page"
    try:
        content = base64.b64decode(query.page, altchars=b"-_", validate=True)
        following = msgspec.msgpack.decode(content, type=tuple[int, int, bytes, ListPlace])
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidInput("page is not one of a list of tasks", hint) from error
    generation, made_s, digest, place = following
    if digest != _digest(query.filter):
        raise InvalidInput("page is of a list with another filter", hint)
    age_ms = now_ms - made_s * 1000
    if generation != state.epoch.generation or age_ms > PAGE_MS_MAX:
        raise PositionGone("page is of a list that is over: an hour old, or of a cell before", hint)
    return place


def _digest(wanted: TaskFilter) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(wanted), digest_size=8).digest()


# ---- changes as they happen


async def watch(replica: Replica, request: WatchRequest) -> AsyncIterator[TaskChange]:
    """Yield the changes of tasks that fit after a position. The first row of a stream without a
    position, and the last one of each, tell the position alone.

    Raises:
        PositionGone: the changes after the position are not kept any more, or are of another cell.
    """
    state, feed, clock = replica.state, replica.feed, replica.clock
    end_ms = clock.mono_ms() + (request.wait_ms or WATCH_MS_MAX)
    entry, _, place = request.position.partition(".")
    index, number = int(entry or state.index), int(place or WHOLE)
    if not entry:
        yield TaskChange(position=str(index))
    if replica.leader.epoch is not None and index > state.index:
        raise PositionGone(f"position {request.position} is not of this cell", "list the tasks")
    sent, told = 0, (index, number)
    while True:
        if not feed.has(index, number):
            raise PositionGone(
                f"the changes after position {index} are not kept any more",
                "list the tasks, then watch from now on",
            )
        state, now_ms = replica.state, clock.wall_ms()
        fit = fits(state, request.filter, now_ms)
        for change in feed.after(index, number):
            index, number, task_number = change
            task = state.tasks_by_number.get(task_number)
            if task is None or not fit(task):
                continue
            told = (index, number)
            yield TaskChange(position=f"{index}.{number}", task=view_of(state, task, now_ms))
            sent += 1
            if sent == request.limit:
                return
        left_ms = end_ms - clock.mono_ms()
        if left_ms <= 0 or (sent and request.limit):
            break
        await feed.wait(left_ms / 1000)
    if told != (index, number):
        yield TaskChange(position=f"{index}.{number}")
