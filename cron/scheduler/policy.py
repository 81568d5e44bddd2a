"""What becomes of instants that have no row yet: which are launched, and which are skipped. Pure.

Whether an instant is live, late or missed is decided here once, when a leader gives it its row.
Whether a launch that has a row begins, waits or is skipped (at its deadline, for one) is decided in
`plan.py`, in each turn until it begins.

An instant is *live* if one of these holds, because neither a change of leader nor a busy leader is
a reason to call an instant missed:

* It is at most `FRESH_MS` old.
* It is the newest of its job and at most `FAILOVER_MS` old.
* It is at most `FAILOVER_MS` old and fell due while this leader was working. The seconds before
  the leader's first turn count as working time, because no replica led then.
* It is the newest of its job and fell due while this leader was working, whatever its age.

All other instants are *late*, and the job's `catchup` decides whether they are launched. The rows
of those that are launched say so (`is_late`), so that they begin after live ones; the mark says
nothing about deadlines. No launch starts after its deadline (SRE book ch. 24, "Cron jobs and
idempotency": skipping beats launching twice or at a time that nobody expects).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from cron.calendar.schedule import Tick, Ticks
from cron.job import Catchup, Job, Overlap
from cron.limits import CATCHUP_ALL_MAX
from cron.notes import Note, NoteCode
from cron.state.commands import AccountLine, Instants
from cron.state.state import JobRecord, State
from launcher.protocol.columns import differences
from launcher.protocol.names import SCHEDULED_S_MAX
from launcher.protocol.status import Reason

FRESH_MS: Final = 1_000
"""Every instant this young is live: a tick that was held up for a moment loses nothing."""
FAILOVER_MS: Final = 5_000
"""The newest instant of a job this young is live, and each that fell due while no replica led:
about what a change of leader takes, with room."""
NEVER_MS: Final = 1 << 62
"""Later than any time: no leader has worked since then."""


class Given(NamedTuple):
    """What holds for all instants of one job.

    `steady_ms`: since when this leader has worked without a break; the 5 s before its first turn
    count. Instants that fell due since then were not missed, however busy the leader was.
    `why_behind`: why more falls due than can begin, else NONE.
    """

    now_ms: int
    steady_ms: int = NEVER_MS
    why_behind: Reason = Reason.NONE

    @property
    def unseen_s(self) -> int:
        """The last second whose instants fell due while this leader was not working."""
        return (self.steady_ms - 1) // 1000

    @property
    def overload(self) -> Reason:
        """Why an instant that fell due while this leader was working is not launched."""
        return self.why_behind or Reason.OVERLOAD

    def reason(self, tick: Tick) -> Reason:
        """Return why an instant is not launched: it was missed, or others were before it."""
        is_seen = tick.scheduled_s * 1000 >= self.steady_ms
        return self.overload if is_seen else Reason.MISSED


def account_for(record: JobRecord, ticks: Ticks, given: Given) -> AccountLine | None:
    """Return the rows of all instants in (horizon, now], None if there are none.

    If more falls due than can begin, only the newest instant is launched, unless the job wants all
    of them (`wants_all`).
    """
    now_ms, steady_ms, why_behind = given
    job, now_s, after_s = record.job, now_ms // 1000, record.horizon_s
    if job is None or now_s <= after_s:
        return None
    from_s, to_s, until_s = after_s, now_s, now_s
    is_spent = bool(record.spent) and record.spent[0] <= now_s
    if is_spent:
        # It began before the clock was reset and has its row already: the horizon steps over it,
        # and the next turn goes on from there.
        to_s, until_s = record.spent[0], record.spent[0] - 1
    tick = ticks.tick_after(after_s)
    if tick is None or tick.scheduled_s > until_s:
        return AccountLine((), 0, from_s, to_s) if is_spent else None
    before: tuple[Instants, ...] = ()
    if record.paused is not None or 0 <= tick.nominal_min <= record.local_horizon_min:
        after_s, before = _passed_over(record, ticks, until_s, now_ms)
        tick = ticks.tick_after(after_s)
        if tick is None or tick.scheduled_s > until_s:
            return AccountLine((), 0, from_s, to_s, (), before)
    second = ticks.tick_after(tick.scheduled_s)
    if second is not None and second.scheduled_s <= until_s:
        due, skipped = _account_many(job, ticks, after_s, until_s, given)
        return AccountLine((), 0, from_s, to_s, due, before + skipped)
    at_s, local_min = tick.scheduled_s, tick.nominal_min
    is_live = at_s * 1000 >= min(now_ms - FAILOVER_MS, steady_ms)
    is_wanted = is_live or job.catchup is not Catchup.NONE
    if is_wanted and ((is_live and not why_behind) or now_ms < (at_s + job.deadline_s) * 1000):
        return AccountLine((), 0, from_s, to_s, (Instants(at_s, local_min, not is_live),), before)
    alone = Instants(at_s, local_min, False, given.reason(tick), 1, at_s)
    return AccountLine((), 0, from_s, to_s, (), (*before, alone))


def as_lines(
    catalog: int, accounts: Iterable[tuple[AccountLine, Iterable[int]]]
) -> tuple[AccountLine, ...]:
    """Return the lines of an Account: each gives the same rows to several jobs, by number.
    `catalog`: the revision of the set of jobs that was looked at."""
    return tuple(
        msgspec.structs.replace(line, jobs=tuple(differences(sorted(numbers))), catalog=catalog)
        for line, numbers in accounts
    )


def skip_older(record: JobRecord, ticks: Ticks, given: Given) -> AccountLine | None:
    """Return rows that skip instants of a job that waits for room: all but the newest, and the
    newest too if its deadline is over. Of a job that wants all instants, those whose deadlines are
    over. None if there are none."""
    job, now_s = record.job, given.now_ms // 1000
    if job is None or record.spent or record.paused or ticks.is_fixed:
        return None
    to_s = now_s - job.deadline_s
    if not wants_all(job):
        newest = ticks.newest(record.horizon_s, now_s, 1)
        is_in_time = newest and newest[0].scheduled_s > to_s
        to_s = newest[0].scheduled_s - 1 if is_in_time else now_s
    if to_s <= record.horizon_s:
        return None
    skipped = _unstarted(ticks, record.horizon_s, to_s, given)
    return AccountLine((), 0, record.horizon_s, to_s, (), skipped) if skipped else None


def wants_all(job: Job) -> bool:
    """Return whether a job wants an older instant although there is a newer one."""
    return job.catchup is Catchup.ALL or job.overlap is Overlap.QUEUE


def _passed_over(
    record: JobRecord, ticks: Ticks, until_s: int, now_ms: int
) -> tuple[int, tuple[Instants, ...]]:
    """Return after which second instants up to `until_s` are launched, and rows for the earlier
    ones in which the job was paused. A pause that ended while no replica led applies to the
    instants that fell into it.

    Instants whose local time was accounted already under other zone data get no row: State would
    refuse it (R11).
    """
    after_s = record.horizon_s
    tick = ticks.tick_after(after_s)
    while tick is not None and tick.scheduled_s <= until_s:
        if not 0 <= tick.nominal_min <= record.local_horizon_min:
            break
        after_s, tick = tick.scheduled_s, ticks.tick_after(tick.scheduled_s)
    if record.paused is None:
        return after_s, ()
    if not record.paused.holds(now_ms):
        until_s = min(until_s, (record.paused.until_ms - 1) // 1000)
    skipped = skipped_run(ticks, after_s, until_s, Reason.PAUSED)
    return (until_s if skipped else after_s), skipped


def _account_many(
    job: Job, ticks: Ticks, after_s: int, until_s: int, given: Given
) -> tuple[tuple[Instants, ...], tuple[Instants, ...]]:
    """Account for several instants: after an outage, for a job every second after a slow turn, or
    if more falls due than can begin. Return what is due, and a row for each run of instants that
    are skipped for one reason."""
    now_s, needs_all = given.now_ms // 1000, wants_all(job)
    failover_ms = given.now_ms - FAILOVER_MS
    reach_s = max(after_s, now_s - job.deadline_s, now_s - CATCHUP_ALL_MAX)
    if not needs_all:
        reach_s = max(reach_s, failover_ms // 1000 - 1)
    elif job.catchup is not Catchup.ALL:
        reach_s = max(reach_s, min(given.unseen_s, failover_ms // 1000 - 1))
    is_one_enough = given.why_behind and not needs_all
    recent = [] if is_one_enough else ticks.between(reach_s, until_s, limit=CATCHUP_ALL_MAX)
    if not recent:
        recent = ticks.newest(after_s, until_s, 1)
        reach_s = recent[0].scheduled_s - 1
    live_ms = min(given.now_ms - FRESH_MS, max(failover_ms, given.steady_ms))
    live_ms = min(live_ms, given.steady_ms) if needs_all else live_ms
    newest, newest_live_ms = recent[-1], min(failover_ms, given.steady_ms)

    def becomes(tick: Tick) -> tuple[bool, bool, Reason]:
        is_newest, at_ms = tick is newest, tick.scheduled_s * 1000
        is_live = at_ms >= (newest_live_ms if is_newest else live_ms)
        is_caught_up = job.catchup is Catchup.ALL or (is_newest and job.catchup is Catchup.LAST)
        is_in_time = given.now_ms < at_ms + job.deadline_s * 1000
        if is_in_time and (is_live or is_caught_up):
            return True, is_live, Reason.NONE
        return False, False, given.reason(tick)

    due: list[Instants] = []
    skipped = [*_unstarted(ticks, after_s, reach_s, given)]
    for (is_due, is_live, reason), some in groupby(recent, becomes):
        run = [*some]
        if is_due:
            due += (Instants(one.scheduled_s, one.nominal_min, not is_live) for one in run)
        else:
            last_s, local_min = run[-1].scheduled_s, run[-1].nominal_min
            skipped.append(Instants(run[0].scheduled_s, local_min, False, reason, len(run), last_s))
    return tuple(due), tuple(skipped)


def _unstarted(ticks: Ticks, after_s: int, until_s: int, given: Given) -> tuple[Instants, ...]:
    """Return rows that skip all instants in (after, until]: missed up to when this leader
    worked."""
    unseen_s = min(max(after_s, given.unseen_s), until_s)
    missed = skipped_run(ticks, after_s, unseen_s, Reason.MISSED)
    return missed + skipped_run(ticks, unseen_s, until_s, given.overload)


def skipped_run(ticks: Ticks, after_s: int, until_s: int, reason: Reason) -> tuple[Instants, ...]:
    """Return one row for all instants in (after, until], none if there are none."""
    count = ticks.count(after_s, until_s)
    if not count:
        return ()
    first_s = ticks.next(after_s)
    last = ticks.newest(after_s, until_s, 1)[0]
    return (Instants(first_s or 0, last.nominal_min, False, reason, count, last.scheduled_s),)


def before_restore(state: State, until_ms: int, now_ms: int) -> Note | None:
    """Return a note that work from before a restore may run until `until_ms`, None if that has
    passed.

    Nothing else holds a launch until a future time: all other work is given up when it must be over
    (rule R6), but nobody can ask an executor that the restored cell does not know.
    """
    if state.restored is None or until_ms <= now_ms:
        return None
    until_s = min(-(-until_ms // 1000), SCHEDULED_S_MAX)
    return Note(NoteCode.BEFORE_RESTORE, (until_s,))
