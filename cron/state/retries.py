"""What follows a failed attempt: another one, or a dead letter. Pure.

Whether a failure is worth another try is the job's own matter: its number of tries, exit codes that
mean retry or fatal, what a handler said. Then its tenant must have retries left, and the next
attempt must be able to begin before the launch's deadline: nothing past that is ever started.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import msgspec

from cron.job import Job, OnLost, Overlap, Retry
from cron.launch_state import LaunchState
from cron.limits import ATTEMPTS_MAX, BUDGETS_KEPT, DEAD_KEPT, HELD_KEPT
from cron.notes import Note, NoteCode
from cron.state import letters
from cron.state.alerts import QUEUE as ALERTS_QUEUE
from cron.state.commands import Key
from cron.state.context import Context, row_of
from cron.state.launch_row import LaunchRow
from cron.state.pool import Limits
from cron.state.rows import RESTORED_BY, Part, Row, RowKind
from cron.state.state import JobRecord, State
from launcher.protocol.names import TASK_MARK, split_job_name
from launcher.protocol.status import Reason

RETRY_COST_MILLI: Final = 1_000
SUCCESS_EARNS_MILLI: Final = 100
DELAYS_FORMAT: Final = 12
"""The format of State from which a launch waits for a retry of its tenant's budget, and one that
failed before a restore is tried again if it has `on-lost=retry`: neither is a dead letter then."""
BUDGET_WAIT_MS: Final = 3_600_000
"""So long after its rest it waits for one."""
RELEASED_MAX: Final = 1_000
"""Launches of a tenant that one success, or one change of limits, lets go on."""
SNOOZE_MS: Final = 1_000
"""The least that a snooze lasts: a handler that asks for no time at all would run without end."""
_ASKED: Final = (Reason.RETRY, Reason.SNOOZE)
_DELIVERIES: Final = f"{ALERTS_QUEUE}{TASK_MARK}"
_TOO_LATE: Final = (Reason.DEADLINE, Reason.FENCED)
"""Why launches are skipped whose deadline is over; the second where an executor refused them."""


def after_success(context: Context, record: JobRecord) -> None:
    """Give a tenant back a tenth of a retry."""
    budgets = context.state.budgets
    tenant, _ = split_job_name(record.name)
    spent = budgets.get(tenant, 0)
    if spent > SUCCESS_EARNS_MILLI:
        budgets[tenant] = spent - SUCCESS_EARNS_MILLI
    elif spent:
        del budgets[tenant]
    if tenant in context.state.unpaid:
        release(context, tenant)


def release(context: Context, tenant: str) -> None:
    """Let launches of a tenant go on that wait for a retry of its budget, as far as it has any: the
    one that has rested first goes first. At most RELEASED_MAX at once: the others follow with the
    next successes, or when they have waited for long enough."""
    state = context.state
    for _ in range(RELEASED_MAX):
        waiting = state.unpaid.get(tenant)
        if not waiting or not _has_budget(context, tenant):
            return
        rested_ms, key = waiting[0]
        row = state.due.detailed[key]
        state.drop_unpaid(row)
        again = msgspec.structs.replace(row, not_before_ms=rested_ms, unpaid_ms=0)
        context.open_due(state.by_number[key[0]], again)


def release_all(context: Context) -> None:
    """The same of all tenants: their limits may have changed."""
    for tenant in list(context.state.unpaid):
        release(context, tenant)


class Next(NamedTuple):
    """What follows an attempt that failed or was put off: another one, not before `not_before_ms`,
    or, for a `reason`, none."""

    not_before_ms: int
    reason: Reason | None


def next_after(context: Context, record: JobRecord, row: LaunchRow, end: Part) -> Next | None:
    """Return what follows an attempt that ends now, None where it leaves nothing: ask once, and
    before the end is written."""
    job = record.job
    if job is None or row.cancel is not Reason.NONE:
        return None
    was_letter = row.is_redriven and letters.keeps_all(context.state)
    is_failure = end.state is LaunchState.FAILED and was_letter
    if not is_failure and not is_kept(job, end.state, end.reason):
        return None
    rests_until_ms = _rest_ends_ms(context, row, end, job)
    return Next(rests_until_ms, _why_not(context, record, row, end, rests_until_ms))


def with_reason(state: State, row: LaunchRow, end: Part, following: Next | None) -> Part:
    """Return an end that says what ended the retries, if that was the deadline."""
    is_late = following is not None and following.reason is Reason.DEADLINE
    if following is None or not is_late or not letters.keeps_all(state) or end.note is not None:
        return end
    args = (row.deadline_ms, following.not_before_ms)
    return msgspec.structs.replace(end, note=Note(NoteCode.NO_TIME_LEFT, args))


def after_failure(
    context: Context, record: JobRecord, row: LaunchRow, end: Part, following: Next
) -> None:
    """Make a launch due again whose attempt has just ended, or make it a dead letter.

    `row` is the launch as it was; it is open no more.
    """
    if following.reason is None:
        _open_again(context, record, row, following.not_before_ms, _tries(row, end))
    elif following.reason is Reason.BUDGET and context.state.format >= DELAYS_FORMAT:
        _open_unpaid(context, record, row, following.not_before_ms, _tries(row, end))
    else:
        _bury(context, record, row, end, following.reason)


def hold_slot(context: Context, record: JobRecord, job: Job, until_ms: int) -> None:
    """Let a lost launch hold its job's slot, or one of them, while it may be running (rule R6)."""
    context.state.doubtful[record.number] = None
    if job.overlap is not Overlap.ALLOW:
        record.held_until_ms = max(record.held_until_ms, until_ms)
    elif job.concurrency:
        held = {until: count for until, count in record.held.items() if until > context.at_ms}
        if until_ms > context.at_ms:
            held[until_ms] = held.get(until_ms, 0) + 1
        if len(held) > HELD_KEPT:  # the two that end first become the later one of them
            first, second = sorted(held)[:2]
            held[second] += held.pop(first)
        record.held = held


def after_loss(
    context: Context, record: JobRecord, row: LaunchRow, end: Part, not_before_ms: int
) -> None:
    """Make a lost launch due again where its job would rather run twice than not at all, and the
    next attempt can begin before the deadline (rule R5); but not where a part of it failed for
    good, whatever became of the others. Else it is a dead letter: a person decides."""
    job = record.job
    if job is None or row.cancel is not Reason.NONE:
        return
    may_be = job.on_lost is OnLost.RETRY and row.attempt < ATTEMPTS_MAX
    if context.state.is_resolving and record.name.startswith(_DELIVERIES):
        may_be = False  # the life before may have told people of the alert
    if any(is_fatal(job.retry, part) for part in row.parts):
        may_be = False
    if may_be and max(context.at_ms, not_before_ms) < row.deadline_ms:
        _open_again(context, record, row, not_before_ms, row.tries)
    elif letters.keeps_all(context.state):
        _bury(context, record, row, end, Reason.DEADLINE if may_be else end.reason)


def after_doubt(context: Context, record: JobRecord, row: LaunchRow, end: Part) -> None:
    """Make a launch a dead letter of which a restored cell does not know whether it ran."""
    if record.job is not None and letters.keeps_all(context.state):
        _bury(context, record, row, end, end.reason)


def after_losses(context: Context, records: list[JobRecord], ended: list[Row]) -> None:
    """Make dead letters of lost launches that do not begin again: `ended` are their rows, one of
    each record."""
    if not letters.keeps_all(context.state):
        return
    for record, row in zip(records, ended, strict=True):
        if record.job is not None:
            context.bury(record, (record.number, row.scheduled_s, row.trigger), row)


def after_late_report(context: Context, record: JobRecord, key: Key, late: Row) -> None:
    """Let go of the letter of a lost attempt that succeeded after all, or was stopped by a person;
    one that failed is a letter of that. `late` is the newest row of this entry."""
    state = context.state
    if late.state is LaunchState.LOST or not letters.keeps_all(state):
        return
    found = letters.find(record, key[1:])
    if found is None or found[0].state is not LaunchState.LOST or found[1] > late.attempt:
        return
    tries = state.dead[key].tries if key in state.dead else 0
    context.take_out(key)
    job = record.job
    if late.state is LaunchState.SUCCEEDED or job is None:
        return
    if record.task:
        is_letter = letters.leaves(late.reason, was_tried=True)
    else:
        is_letter = is_kept(job, late.state, late.reason)
    if is_letter:
        letter = msgspec.structs.replace(
            late,
            kind=RowKind.ENDED,
            parts=(),
            amends=None,
            number=context.rows - 1,
            tries=tries + (late.state is LaunchState.FAILED),
        )
        context.bury(record, key, letter)


def after_skip(context: Context, record: JobRecord, row: LaunchRow, end: Part) -> None:
    """Make a launch a dead letter whose next try is skipped. Of a task any end does that nobody
    asked for. A launch of a job has to have failed, or to have been one before, whatever it is
    skipped for: a pause, a gate or a full queue ends its tries as a last failure does. Or it had
    begun before and could not begin again in time: it was put off, say, or refused."""
    job = record.job
    is_late, was_tried = end.reason in _TOO_LATE, bool(row.tries or row.is_redriven)
    if job is None:
        return
    if letters.keeps_all(context.state) and (record.task or row.is_redriven):
        leaves = not record.task or letters.leaves(end.reason, was_tried=was_tried)
    else:
        has_tries = job.retry.tries > 1 or bool(job.work.handler)
        leaves = bool(row.attempt) and (was_tried or is_late) and has_tries
    if leaves:
        _bury(context, record, row, end, Reason.DEADLINE if is_late else end.reason)


def after_recovery(context: Context, record: JobRecord, row: LaunchRow, end: Part) -> None:
    """Make a launch a dead letter that failed in the life before a restore. Whether it was tried
    again then, where nobody remembers, cannot be known; so it is not tried again by itself, unless
    its job would rather run twice than not at all."""
    if record.job is None or not is_kept(record.job, end.state, end.reason):
        return
    following = next_after(context, record, row, end) if _may_repeat(context, record) else None
    if following is not None:
        after_failure(context, record, row, end, following)
    else:
        _bury(context, record, row, end, end.reason)


def _may_repeat(context: Context, record: JobRecord) -> bool:
    """Whether a launch is tried again of which a life before a restore may have known more."""
    is_wanted = record.job is not None and record.job.on_lost is OnLost.RETRY
    is_delivery = record.name.startswith(_DELIVERIES)  # people may have been told of the alert
    return is_wanted and not is_delivery and context.state.format >= DELAYS_FORMAT


def is_kept(job: Job, state: LaunchState, reason: Reason) -> bool:
    """Whether an end of this job's becomes a dead letter, where it is not tried again: failures of
    jobs of which somebody has said how often to try them, and those of handlers."""
    if state is not LaunchState.FAILED and not _is_snooze(state, reason):
        return False
    return job.retry.tries > 1 or bool(job.work.handler) or reason in _ASKED


def _why_not(
    context: Context, record: JobRecord, row: LaunchRow, end: Part, rests_until_ms: int
) -> Reason | None:
    """Return why it is not tried again, None where it is."""
    retry = record.job.retry if record.job is not None else Retry()
    is_snooze = _is_snooze(end.state, end.reason)
    is_last = is_fatal(retry, end) or row.tries + 1 >= retry.tries
    if row.attempt >= ATTEMPTS_MAX or (is_last and not is_snooze):
        return end.reason
    if context.state.is_resolving and not _may_repeat(context, record):  # as in `after_recovery`
        return end.reason
    if rests_until_ms >= row.deadline_ms:
        return Reason.DEADLINE
    if is_snooze or _has_budget(context, split_job_name(record.name)[0]):
        return None
    return Reason.BUDGET


def is_fatal(retry: Retry, end: Part) -> bool:
    """Return whether an attempt, or a part of one, failed such that no other try is of any use."""
    if end.state is not LaunchState.FAILED or end.reason not in (Reason.FATAL, Reason.NONE):
        return False
    if end.reason is Reason.FATAL or end.exit_code in retry.fatal_codes:
        return True
    return bool(retry.retry_codes) and end.exit_code not in retry.retry_codes


def retry_budget(state: State, tenant: str) -> int:
    """Return how many retries a tenant may be ahead of its successes; 0 is "any number"."""
    limits: Limits | None = state.limits.get((tenant, "", -1)) or state.limits.get(("*", "", -1))
    return limits.retry_budget if limits is not None else 0


def _has_budget(context: Context, tenant: str) -> bool:
    """Whether the tenant may be one more retry ahead of its successes; it is from now on."""
    state = context.state
    budget = retry_budget(state, tenant)
    if not budget:
        return True
    spent = state.budgets.get(tenant, 0) + RETRY_COST_MILLI
    if spent > budget * RETRY_COST_MILLI:
        return False
    state.budgets[tenant] = spent
    if len(state.budgets) > BUDGETS_KEPT:
        del state.budgets[next(iter(state.budgets))]
    return True


def _rest_ends_ms(context: Context, row: LaunchRow, end: Part, job: Job) -> int:
    """Return when the next attempt may begin."""
    if _is_snooze(end.state, end.reason):
        return context.at_ms + max(end.retry_after_ms, SNOOZE_MS)
    if end.retry_after_ms > 0:
        return context.at_ms + end.retry_after_ms
    name = f"{context.state.launch_name(row.key)}#{row.attempt}"
    return context.at_ms + backoff_ms(job.retry, row.tries + 1, name)


def backoff_ms(retry: Retry, failures: int, name: str) -> int:
    """Return how long a launch rests after so many failures, in milliseconds: twice as long each
    time, within a bound, and up to a tenth more by the name of its attempt, the same on every
    replica."""
    rest_ms = max(min(retry.backoff_ms << min(failures - 1, 32), retry.backoff_max_ms), 0)
    drawn = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
    return rest_ms + rest_ms * drawn // (10 << 32)


def _is_snooze(state: LaunchState, reason: Reason) -> bool:
    """Whether a handler put its launch off: no failure, though the attempt is over."""
    return state is LaunchState.CANCELLED and reason is Reason.SNOOZE


def _tries(row: LaunchRow, end: Part) -> int:
    """Return how many attempts of a launch have failed, with this one."""
    return row.tries + 1 if end.state is LaunchState.FAILED else row.tries


def _open_unpaid(
    context: Context, record: JobRecord, row: LaunchRow, rests_until_ms: int, tries: int
) -> None:
    """Have a launch wait until its tenant may have another retry; in an hour it is tried without
    one: where nothing of a tenant succeeds, nothing would ever earn one."""
    waits_until_ms = rests_until_ms + BUDGET_WAIT_MS
    not_before_ms = min(waits_until_ms, row.deadline_ms)
    _open_again(context, record, row, not_before_ms, tries, unpaid_ms=max(rests_until_ms, 1))


def _open_again(
    context: Context,
    record: JobRecord,
    row: LaunchRow,
    not_before_ms: int,
    tries: int,
    *,
    unpaid_ms: int = 0,
) -> None:
    again = LaunchRow(
        number=row.number,
        scheduled_s=row.scheduled_s,
        trigger=row.trigger,
        state=LaunchState.DUE,
        deadline_ms=row.deadline_ms,
        local_min=row.local_min,
        is_late=row.is_late,
        attempt=row.attempt,
        revision=record.revision,
        by=row.by if row.by != RESTORED_BY else "",  # no person asked for it
        due_at_ms=row.due_at_ms,
        not_before_ms=not_before_ms,
        tries=tries,
        is_redriven=row.is_redriven,
        held_to_ms=row.held_to_ms,
        unpaid_ms=unpaid_ms,
    )
    context.open_due(record, again)


def _bury(context: Context, record: JobRecord, row: LaunchRow, end: Part, reason: Reason) -> None:
    """Keep the row of a launch that is given up, the newest of this entry, without its parts, which
    history has."""
    state, place = context.state, (context.index, context.at_ms, context.rows - 1)
    ended = row_of(state, row, end, place)
    letter = msgspec.structs.replace(ended, reason=reason, tries=_tries(row, end), parts=())
    context.bury(record, row.key, letter)
    if letters.keeps_all(state):
        for key in state.piles.excess():
            context.unbury(key)
    while not letters.keeps_all(state) and len(state.dead) > DEAD_KEPT:
        context.unbury(next(iter(state.dead)))
