"""What becomes of instants that were missed: catch-up policies and deadlines, pure.

An instant is *live* while it is fresh, or while it is the newest of its job and not older than a
failover may take, or than the time for which a leader has been at work without a break: neither a
change of leader nor a great many launches at once are a reason to call one missed. Of a leader that
was at work all the time older ones are live as well, up to the age of a failover: that it was busy
for two seconds is no reason to skip one of two instants. So it is with what fell due in the last
seconds before its first turn, while nobody led: a leader was elected late, or the whole cell was
down. All others that come up are *late*, and the job's `catchup` says what becomes of them. Nothing
past its deadline is ever started (SRE book ch. 24, "Cron jobs and idempotency": skipping beats
launching twice or at a time that nobody expects).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec import structs

from cron.calendar.schedule import Tick, Ticks, Until
from cron.job import Catchup, Job, Overlap
from cron.limits import CATCHUP_ALL_MAX
from cron.notes import Note, NoteCode
from cron.state.columns import deltas
from cron.state.commands import AccountLine, DueItem, SkipItem
from cron.state.state import JobRecord, State
from launcher.launch import Reason
from launcher.names import SCHEDULED_S_MAX

FRESH_MS: Final = 1_000
"""Every instant this young is live: a tick that was held up for a moment loses nothing."""
FAILOVER_MS: Final = 5_000
"""The newest instant this young is live, and each that fell due while nobody led: about what a
change of leader takes, with room."""
NEVER_MS: Final = 1 << 62
"""Later than any time: nobody has been at work since then."""


class Given(NamedTuple):
    """What holds for all instants of one job: the time, and what this leader has seen."""

    now_ms: int
    steady_ms: int
    why_behind: Reason = Reason.NONE

    @property
    def unseen_s(self) -> int:
        """The last second whose instants fell due while this leader was not at work."""
        return (self.steady_ms - 1) // 1000

    def saw(self, tick: Tick) -> bool:
        """Whether an instant fell due while this leader was at work."""
        return tick.scheduled_s * 1000 >= self.steady_ms

    def reason(self, tick: Tick) -> Reason:
        """Why an instant is not launched: nobody could, or others were before it."""
        return self.overload if self.saw(tick) else Reason.MISSED

    @property
    def overload(self) -> Reason:
        """Why an instant is not launched that fell due while this leader was at work."""
        return self.why_behind or Reason.OVERLOAD


class Accounted(NamedTuple):
    """What becomes of all instants of one job in (from_s, to_s]."""

    from_s: int
    to_s: int
    due: tuple[DueItem, ...] = ()
    skipped: tuple[SkipItem, ...] = ()


_UNKNOWN: Final = Accounted(0, 0)
"""Stands for what was not looked at yet."""
Memo = dict[tuple[int, int], list[Tick]]
"""(schedule, after) -> the first two instants up to now: the same for all jobs of a group."""


def account_for(
    record: JobRecord,
    ticks: Ticks,
    now_ms: int,
    memo: Memo | None = None,
    steady_ms: int = NEVER_MS,
    *,
    why_behind: Reason = Reason.NONE,
) -> Accounted | None:
    """Return the rows of all instants in (horizon, now], None where there are none.

    `memo` is shared by calls with one `now_ms`, so that jobs with one schedule share its instants.
    Since `steady_ms` this leader has been at work without a break, or nobody was in the 5 s before
    its first turn: what fell due since then was not missed, however long others kept it busy.
    `why_behind`: why more falls due than can begin, NONE where it does not; then the newest instant
    alone is to be launched, unless the job wants all of them (`wants_all`).
    """
    job = record.job
    now_s = now_ms // 1000
    if job is None or now_s <= record.horizon_s:
        return None
    if record.spent and record.spent[0] <= now_s:
        return _up_to_spent(record, ticks, now_ms, steady_ms)
    given = Given(now_ms, steady_ms, why_behind)
    memo = {} if memo is None else memo
    after_s = record.horizon_s
    first = _first_two(ticks, after_s, now_s, memo)
    if first and _is_repeated(record, ticks, first[0]):
        after_s = _behind_repeated(record, ticks, first[0], now_s)
        first = _first_two(ticks, after_s, now_s, memo)
        if not first:
            return Accounted(record.horizon_s, now_s, (), ())
    if not first:
        return None
    paused_s = _paused_to(record, now_ms)
    paused = (
        skipped_run(ticks, after_s, paused_s, Reason.PAUSED)
        if first[0].scheduled_s <= paused_s
        else ()
    )
    if paused:
        after_s = paused_s
        first = _first_two(ticks, after_s, now_s, memo)
        if not first:
            return Accounted(record.horizon_s, now_s, (), paused)
    if len(first) == 1:
        due, skipped = _account_one(job, ticks, first[0], given)
    else:
        due, skipped = _account_many(job, ticks, after_s, given)
    return Accounted(record.horizon_s, now_s, due, paused + skipped)


def as_lines(
    catalog: int, accounts: Iterable[tuple[Accounted, Iterable[int]]]
) -> tuple[AccountLine, ...]:
    """Return what gives the instants of jobs, by number, their rows: a line of all jobs that have
    the same ones. `catalog`: the revision of the set of jobs that was looked at."""
    lines: dict[Accounted, list[int]] = {}
    for accounted, numbers in accounts:
        lines.setdefault(accounted, []).extend(numbers)
    return tuple(
        AccountLine(deltas(sorted(numbers)), catalog, *accounted)
        for accounted, numbers in lines.items()
    )


class Accounts:
    """What becomes of the instants of many jobs at one time: jobs with the same schedule, horizon
    and policies share it. The arguments are those of `account_for`."""

    def __init__(self, now_ms: int, steady_ms: int) -> None:
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._memo: Memo = {}
        self._known: dict[tuple[int, ...], Accounted | None] = {}
        self._found: dict[int, tuple[Accounted, list[JobRecord]]] = {}
        self._apart: dict[int, Accounted] = {}  # by number, what gets a line of its own

    def of(self, record: JobRecord, ticks: Ticks, *, why_behind: Reason) -> Accounted | None:
        """Return the rows of all instants of a job up to now, None where there are none."""
        job, key = record.job, None
        if job is not None and not record.spent and record.paused is None:
            key = (
                id(ticks), record.horizon_s, record.local_horizon_min, job.catchup, job.overlap,
                job.deadline_s, why_behind,
            )  # fmt: skip
            known = self._known.get(key, _UNKNOWN)
            if known is not _UNKNOWN:
                return known
        found = account_for(
            record, ticks, self._now_ms, self._memo, self._steady_ms, why_behind=why_behind
        )
        if key is not None:
            self._known[key] = found
        return found

    def add(self, record: JobRecord, accounted: Accounted, *, is_apart: bool = False) -> None:
        """Let a job have these rows; in a line of its own, where State may refuse them."""
        if is_apart:
            self._apart[record.number] = accounted
        found = self._found.get(id(accounted))
        if found is None:
            self._found[id(accounted)] = (accounted, [record])
        else:
            found[1].append(record)

    def __iter__(self) -> Iterator[tuple[Accounted, list[JobRecord]]]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def lines(self, catalog: int) -> tuple[AccountLine, ...]:
        """Return what gives all of them their rows; `catalog` as for `as_lines`."""
        apart = self._apart
        shared: list[tuple[Accounted, list[int]]] = []
        for accounted, records in self:
            numbers = [one.number for one in records if one.number not in apart]
            if numbers:
                shared.append((accounted, numbers))
        alone = [AccountLine((number,), catalog, *rows) for number, rows in apart.items()]
        return (*as_lines(catalog, shared), *alone)


def skip_older(record: JobRecord, ticks: Ticks, given: Given) -> Accounted | None:
    """Return rows that skip instants of a job that waits for room: all but the newest, and that too
    where its deadline is over; of a job that wants all those whose deadlines are over. None where
    there are none."""
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
    return Accounted(record.horizon_s, to_s, (), skipped) if skipped else None


def wants_all(job: Job) -> bool:
    """Whether a newer instant of a job does not make an older one needless."""
    return job.catchup is Catchup.ALL or job.overlap is Overlap.QUEUE


def _up_to_spent(record: JobRecord, ticks: Ticks, now_ms: int, steady_ms: int) -> Accounted | None:
    """Return the rows of all instants up to the first one that began before the clock was reset,
    which has its row already: the horizon steps over it, and the next turn goes on from there."""
    spent_s = record.spent[0]
    before = structs.replace(record, spent=[])
    item = account_for(before, Until(ticks, spent_s - 1), now_ms, None, steady_ms)
    if item is None:
        return Accounted(record.horizon_s, spent_s, (), ())
    return item._replace(to_s=spent_s)


def _paused_to(record: JobRecord, now_ms: int) -> int:
    """Return the last second up to now in which the job is, or was to be, paused; 0 for none.

    A pause that ended while nobody led holds for the instants that fell into it.
    """
    if record.paused is None:
        return 0
    if record.paused.holds(now_ms):
        return now_ms // 1000
    return (record.paused.until_ms - 1) // 1000


def _first_two(ticks: Ticks, after_s: int, until_s: int, memo: Memo) -> list[Tick]:
    found = memo.get((id(ticks), after_s))
    if found is None:
        found = memo[(id(ticks), after_s)] = []
        while len(found) < 2:
            tick = ticks.tick_after(after_s)
            if tick is None or tick.scheduled_s > until_s:
                break
            found.append(tick)
            after_s = tick.scheduled_s
    return found


def _is_repeated(record: JobRecord, ticks: Ticks, tick: Tick) -> bool:
    return ticks.is_fixed and 0 <= tick.local_min <= record.local_horizon_min


def _behind_repeated(record: JobRecord, ticks: Ticks, first: Tick, now_s: int) -> int:
    """Return the last of the instants, from `first` on, whose local time was accounted already
    under other zone data: they are none of their own, and a row of them would be refused (R11)."""
    last, tick = first, ticks.tick_after(first.scheduled_s)
    while tick is not None and tick.scheduled_s <= now_s and _is_repeated(record, ticks, tick):
        last, tick = tick, ticks.tick_after(tick.scheduled_s)
    return last.scheduled_s


_Rows = tuple[tuple[DueItem, ...], tuple[SkipItem, ...]]


def _account_one(job: Job, ticks: Ticks, tick: Tick, given: Given) -> _Rows:
    """The usual case: one instant is due."""
    is_live = _is_live(tick, given, is_newest=True)
    is_wanted = is_live or job.catchup is not Catchup.NONE
    if is_wanted and (not is_live or given.why_behind):
        is_wanted = _within_deadline(job, tick.scheduled_s, given.now_ms)
    if is_wanted:
        return (DueItem(tick.scheduled_s, nominal_min(ticks, tick), not is_live),), ()
    return (), _skip_run(ticks, [tick], given.reason(tick))


def _account_many(job: Job, ticks: Ticks, after_s: int, given: Given) -> _Rows:
    """Several instants at once: after an outage, of a job every second after a slow tick, or where
    more falls due than can begin."""
    now_s = given.now_ms // 1000
    reach_s = max(after_s, now_s - job.deadline_s, now_s - CATCHUP_ALL_MAX)
    if not wants_all(job):
        reach_s = max(reach_s, now_s - FAILOVER_MS // 1000 - 1)
    elif job.catchup is not Catchup.ALL:
        reach_s = max(reach_s, min(given.unseen_s, now_s - FAILOVER_MS // 1000 - 1))
    is_one_enough = given.why_behind and not wants_all(job)
    recent = [] if is_one_enough else ticks.between(reach_s, now_s, limit=CATCHUP_ALL_MAX)
    if not recent:
        recent = ticks.newest(after_s, now_s, 1)
        reach_s = recent[0].scheduled_s - 1
    due = tuple(
        DueItem(tick.scheduled_s, nominal_min(ticks, tick), not live)
        for tick, live in _choose(job, recent, given)
        if _within_deadline(job, tick.scheduled_s, given.now_ms)
    )
    skipped = _unstarted(ticks, after_s, reach_s, given)
    return due, skipped + _gaps(ticks, recent, due, given)


def _choose(job: Job, recent: list[Tick], given: Given) -> list[tuple[Tick, bool]]:
    """Return those of the instants that shall be launched, and whether each is live."""
    newest = recent[-1] if recent else None
    chosen = []
    for tick in recent:
        is_newest = tick is newest
        live = _is_live(tick, given, is_newest=is_newest) or (wants_all(job) and given.saw(tick))
        is_caught_up = job.catchup is Catchup.ALL or (is_newest and job.catchup is Catchup.LAST)
        if live or is_caught_up:
            chosen.append((tick, live))
    return chosen


def _gaps(
    ticks: Ticks, recent: list[Tick], due: tuple[DueItem, ...], given: Given
) -> tuple[SkipItem, ...]:
    """Return runs of what is not due between what is, each with one reason."""
    skipped: list[SkipItem] = []
    launched = {item.scheduled_s for item in due}
    run: list[Tick] = []
    for tick in recent:
        is_due = tick.scheduled_s in launched
        if run and (is_due or given.reason(tick) is not given.reason(run[0])):
            skipped += _skip_run(ticks, run, given.reason(run[0]))
            run = []
        if not is_due:
            run.append(tick)
    if run:
        skipped += _skip_run(ticks, run, given.reason(run[0]))
    return tuple(skipped)


def _unstarted(ticks: Ticks, after_s: int, until_s: int, given: Given) -> tuple[SkipItem, ...]:
    """Return rows for all instants in (after, until]: missed up to where this leader is at work."""
    unseen_s = min(max(after_s, given.unseen_s), until_s)
    missed = skipped_run(ticks, after_s, unseen_s, Reason.MISSED)
    return missed + skipped_run(ticks, unseen_s, until_s, given.overload)


def _skip_run(ticks: Ticks, run: list[Tick], reason: Reason) -> tuple[SkipItem, ...]:
    last = run[-1]
    local_min = nominal_min(ticks, last)
    return (SkipItem(run[0].scheduled_s, last.scheduled_s, len(run), reason, local_min),)


def skipped_run(ticks: Ticks, after_s: int, until_s: int, reason: Reason) -> tuple[SkipItem, ...]:
    """Return one row for all instants in (after, until], none where there are none."""
    count = ticks.count(after_s, until_s)
    if not count:
        return ()
    first_s = ticks.next(after_s)
    last = ticks.newest(after_s, until_s, 1)[0]
    return (SkipItem(first_s or 0, last.scheduled_s, count, reason, nominal_min(ticks, last)),)


def nominal_min(ticks: Ticks, tick: Tick) -> int:
    """Return the nominal local time where it must not repeat: for fixed-time jobs (rule R11)."""
    return tick.local_min if ticks.is_fixed else -1


def _is_live(tick: Tick, given: Given, *, is_newest: bool) -> bool:
    age_ms = given.now_ms - tick.scheduled_s * 1000
    if age_ms <= FRESH_MS:
        return True
    is_young, is_seen = age_ms <= FAILOVER_MS, given.saw(tick)
    return (is_young or is_seen) if is_newest else (is_young and is_seen)


def before_restore(state: State, until_ms: int, now_ms: int) -> Note | None:
    """Return that something from before a restore may run until then, None where nothing may.

    Nothing else holds a launch up for a time ahead: all other work is given up when it must be
    over (rule R6), but nobody can ask an executor that the restored cell does not know.
    """
    if state.restored is None or until_ms <= now_ms:
        return None
    until_s = min(-(-until_ms // 1000), SCHEDULED_S_MAX)
    return Note(NoteCode.BEFORE_RESTORE, (until_s,))


def _within_deadline(job: Job, scheduled_s: int, now_ms: int) -> bool:
    return now_ms < (scheduled_s + job.deadline_s) * 1000
