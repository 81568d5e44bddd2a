"""Why a due launch has not begun, as text."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from cron.job import TRIES_UNLIMITED, Job, Overlap
from cron.notes import sentence
from cron.scheduler.gates import gate_of, note_of
from cron.scheduler.policy import before_restore
from cron.scheduler.predecessors import in_the_way
from cron.scheduler.views import Depth, Wait, WaitFor
from cron.scopes import scope_text
from cron.state.chains import Predecessor, end_of, failure_of, name_of, waits_for
from cron.state.commands import Key
from cron.state.launch_row import LaunchRow
from cron.state.state import JobRecord, State
from cron.state.tasks import TaskRecord
from launcher.protocol.names import LaunchName, format_time, short_job_name

_WAITS: Final = {
    WaitFor.TURN: "it is not its turn yet: others are before it",
    WaitFor.RESERVED: "the slots that are free are reserved for others",
    WaitFor.LATE: "catch-up is paced behind live launches",
}


class Queued(Protocol):
    """The queues of the leader, as questions see them."""

    def depths(self) -> list[Depth]:
        """Return the waiting and running launches, by pool, priority and tenant."""

    def position(self, key: Key) -> int | None:
        """Return how many launches of its tenant's queue wait before a launch, None if it does not
        wait."""

    def why(self, key: Key) -> Wait | None:
        """Return what a launch waits for in its queue, None if it does not wait."""

    def missing(self, key: Key) -> str:
        """Return why no executor has room for a launch, "" if one has."""


MISSING_MAX: Final = 100
"""Jobs of which one request learns what no executor has: each costs a look at all executors."""


class Asked:
    """The queues during one request, which asks each expensive question once per job."""

    def __init__(self, queued: Queued) -> None:
        self._queued = queued
        self._missing: dict[int, str] = {}
        self.depths = queued.depths
        self.position = queued.position
        self.why = queued.why

    def missing(self, key: Key) -> str:
        """Return why no executor has room for a launch; "" for jobs beyond the bound."""
        number = key[0]
        if number not in self._missing and len(self._missing) < MISSING_MAX:
            self._missing[number] = self._queued.missing(key)
        return self._missing.get(number, "")


def asked(queued: Queued | None) -> Queued | None:
    """Return the queues as one request may ask them; None if they are unknown."""
    return Asked(queued) if queued is not None else None


class WaitReason(NamedTuple):
    """Why a launch waits, and until when if a clock decides that, else 0."""

    text: str
    until_ms: int = 0


def why_waiting(
    state: State,
    row: LaunchRow,
    connected: frozenset[int],
    now_ms: int,
    queued: Queued | None = None,
) -> WaitReason:
    """Return why a due launch has not begun. `connected`: the connected executors, by number.
    `queued`: the queues, if known."""
    record = state.by_number[row.number]
    if record.job is None:
        return WaitReason("its job was removed: it is about to be cancelled")
    held = _held(state, record, record.job, row, now_ms)
    if held is not None:
        return held
    if queued is not None:
        wait = queued.why(row.key)
        if wait is not None and wait.what is not WaitFor.HOLD:
            return _of_wait(wait, queued, row.key)
    if not connected:
        return WaitReason("no executor is connected")
    if row.is_late:
        return WaitReason("catch-up is paced behind live launches, or no slot is free")
    if queued is None:  # on a replica that does not lead, too
        return WaitReason("its turn, a limit or a free slot: the leader knows which")
    return WaitReason("no executor has a free slot")


def why_held(state: State, task: TaskRecord) -> str:
    """Return what a task waits for that follows others; "" for one that only waits for its time."""
    hold = state.holds.get(task.number)
    if hold is None or hold.is_released:
        return ""
    failure = failure_of(state, hold)
    if failure is not None:
        ended = end_of(state, failure).label
        name = short_job_name(name_of(state, failure))
        return f"it is about to be cancelled: {name}, which it follows, {ended}"
    left = waits_for(state, hold)
    if not left:
        return "all that it follows is over: it is about to be released"
    others = f", and {len(left) - 1} more" if len(left) > 1 else ""
    return f"it follows {_with_state(state, left[0])}{others}"


def _with_state(state: State, predecessor: Predecessor) -> str:
    """Return the name of a task or group that is not over, and what is known of it."""
    name = short_job_name(name_of(state, predecessor))
    if isinstance(predecessor, str):
        group = state.groups[predecessor]
        count = group.waiting + group.running
        return f"group {name}, of which {count} {'task is' if count == 1 else 'tasks are'} not over"
    task = state.tasks_by_number[predecessor]
    if task.job:
        return f"{name}, which is not over"
    if state.holds.holds_back(task.number):
        return f"{name}, which follows others itself"
    when = format_time(task.at_ms // 1000)
    return (
        f"{name}, which waits since {when}"
        if task.at_ms <= state.at_ms
        else (f"{name}, which is due at {when}")
    )


def _held(
    state: State, record: JobRecord, job: Job, row: LaunchRow, now_ms: int
) -> WaitReason | None:
    """Return what keeps a launch out of its queue."""
    gate = gate_of(state, record, job, now_ms)
    if gate is not None:
        return WaitReason(sentence(note_of(gate)), gate.until_ms)
    if job.jitter_s and not (row.attempt or row.trigger or row.by):
        begins_ms = row.scheduled_s * 1000 + job.delay_ms(row.scheduled_s)
        if now_ms < begins_ms:
            at = format_time(-(-begins_ms // 1000))
            return WaitReason(f"its jitter lets it begin at {at}", begins_ms)
    if job.follows and not (row.attempt or row.trigger or row.by):
        followed = in_the_way(state, job, row.scheduled_s)
        if followed is not None:
            return WaitReason(str(followed))
    held_until_ms = row.not_before_ms
    if job.overlap is not Overlap.ALLOW:
        for other in state.active_of(record):
            name = str(LaunchName("", other.scheduled_s, other.trigger))
            return WaitReason(f"{name} is not over (overlap={job.overlap.name.lower()})")
        held_until_ms = max(held_until_ms, record.held_until_ms)
    elif job.concurrency:
        runs, held = state.running.get(record.number, 0), record.held_slots(now_ms)
        if held and runs + held >= job.concurrency:
            held_until_ms = max(held_until_ms, min(at for at in record.held if at > now_ms))
        held_until_ms = max(held_until_ms, record.held_until_ms)
    if held_until_ms <= now_ms:
        return None
    before = before_restore(state, held_until_ms, now_ms)
    return WaitReason(sentence(before) or rest(record, job, row, now_ms), held_until_ms)


def rest(record: JobRecord, job: Job, row: LaunchRow, now_ms: int) -> str:
    """Return why a launch may not begin before a time that is still ahead."""
    if record.held_until_ms <= now_ms and row.not_before_ms > now_ms:
        until = f"until {format_time(-(-row.not_before_ms // 1000))}"
        if row.unpaid_ms:
            return f"its tenant has no retries left: it waits until it has one, or {until}"
        if row.tries:
            is_bounded = job.retry.tries < TRIES_UNLIMITED
            of_all = f" of {job.retry.tries}" if is_bounded else ""
            verb = "has" if row.tries == 1 and not is_bounded else "have"
            noun = "try" if row.tries == 1 and not is_bounded else "tries"
            return f"it rests {until}: {row.tries}{of_all} {noun} {verb} failed"
        if job.work.handler:
            return f"it rests {until}: its handler asked for that, or an attempt was lost"
    return "a lost launch of the same job may be running until its executor's self-kill"


def _of_wait(wait: Wait, queued: Queued, key: Key) -> WaitReason:
    if wait.what in _WAITS:
        return WaitReason(_WAITS[wait.what], wait.until_ms)
    if wait.what is WaitFor.NO_ROOM:
        return WaitReason(queued.missing(key) or "no executor has room for it", wait.until_ms)
    if wait.what is WaitFor.JOB_LIMIT:
        return WaitReason(
            f"other launches of its job go first: {wait.limit} at once (overlap, concurrency)"
        )
    whose = scope_text(wait.scope) if wait.scope is not None else "everything"
    if wait.what is WaitFor.RATE:
        rate = f"{wait.limit / 1000:g} starts a second"
        return WaitReason(f"the rate of {whose} is used up: {rate}", wait.until_ms)
    return WaitReason(f"the limit of {whose} is reached: {wait.limit} at once", wait.until_ms)
