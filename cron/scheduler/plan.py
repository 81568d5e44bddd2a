"""The plan: which commands to append now, given what is committed and what time it is.

Pure: the plan reads the view and returns commands. The leader appends them in one entry and acts on
the results. The plan never starts anything (SRE book ch. 24, "The role of Paxos": a launch is
committed before it is made).

The order of a plan: lost launches free their slots; instants that have come up get rows; new
launches are skipped or enter the queues; launches that may begin are taken from the queues. The
plan does not report to the queues what it did: if a launch that was taken is not accepted, State
returns it (`Queues.follow`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, repeat
from operator import attrgetter, not_
from typing import Final

import msgspec

from cron.job import Catchup, Job, OnLost, Overlap
from cron.launch_state import LaunchState
from cron.notes import NOT_OVER, Note, NoteCode, written
from cron.scheduler.candidates import (
    has_run,
    is_exempt,
    is_queue,
    of_due,
    turn,
    wants_another_order,
)
from cron.scheduler.due import DueJobs
from cron.scheduler.flows import FlowKey
from cron.scheduler.gates import FOREVER_MS, held_deadline_ms, note_of
from cron.scheduler.policy import (
    FAILOVER_MS,
    NEVER_MS,
    Given,
    account_for,
    as_lines,
    before_restore,
    skip_older,
)
from cron.scheduler.predecessors import Predecessor, in_the_way
from cron.scheduler.queues import Queues
from cron.state import commands as c
from cron.state.batches import taken
from cron.state.ends import state_of
from cron.state.launch_row import LaunchRow
from cron.state.outcome import EndedRows
from cron.state.pool import GateAction
from cron.state.state import JobRecord, State
from launcher.protocol.columns import differences
from launcher.protocol.status import Reason

_number: Final = attrgetter("number")
_horizons: Final = attrgetter("horizon_s", "local_horizon_min")
_paused: Final = attrgetter("paused")
ALLOW: Final = Overlap.ALLOW  # members of an enumeration are slow to look up
FORBID: Final = Overlap.FORBID
REPLACE: Final = Overlap.REPLACE
NONE: Final = Reason.NONE
SUCCEEDED: Final = LaunchState.SUCCEEDED
ROWS_MAX: Final = 5_000
"""The most launches that one entry makes due, and that it begins."""
JUDGED_SHARE: Final = 4
"""Launches that a plan judges per row: to skip one costs less than to begin one."""
SKIPPED_MAX: Final = 100_000
"""Launches that one entry may skip; up to 1.5 MB, of an entry's 8 MiB."""
DETAILED_MAX: Final = 20_000
"""Skipped launches with a detail, which takes about 100 bytes more."""
MISSING: Final = (Reason.DEADLINE, Reason.NO_EXECUTOR)
"""The reasons for which a launch may have found no executor: the entry then says what it lacked."""
MISSING_MAX: Final = 1_000
"""Launches skipped at their deadline of which an entry says what they lacked."""
LACKS_MAX: Final = 50
"""Jobs of which a plan finds out what their launches lacked: each costs a look at all executors."""
REMOVED_MAX: Final = 1_500
"""Launches of removed jobs that one entry cancels, instead of as many begins: about 0.04 s."""
REMOVED_SHARE: Final = 2
"""The divisor of a turn's rows for these: the other launches may begin meanwhile."""
LOST_MAX: Final = 10_000
"""Launches that one entry may give up, beyond those of one executor. It takes no more room for
them, but each of them costs `apply` as much as a launch that is not usual."""
SILENT: Final = Note(NoteCode.SILENT)
HELD_LOOK_MS: Final = 1_000
"""The shortest time between two looks at a launch past its deadline whose clock a gate stops."""
HELD_REST_MS: Final = 100
"""Until a launch is looked at again if no entry will release the slot of its job."""
FOLLOWED_LOOK_MS: Final = 60_000
"""How often a launch is looked at that waits for one of another job. The end of that one brings it
up at once; a change of the other job's schedule does not."""
TAKEN_SHARE: Final = 4
"""Launches that a plan takes from the queues per launch that may begin: the queues do not know
everything that stops one."""


class View(msgspec.Struct):
    """What a plan is made from.

    `queues` hold the waiting launches. `expired`: the executors whose leases are over, by number;
    their launches are lost, and their guarded work has ended (rules R5, R6). `late_budget`: how
    many launches with `is_late` may begin now. `steady_ms`: since when this leader answers for what
    falls due (`clocks.Steady`). `rows_max`: how many launches may fall due, and begin, in the time
    of one turn. `lead_ms`: how long an order takes to leave. `stale_jobs` wait for room; their
    older instants are skipped. `why_behind(number)`: why more falls due beside a job than can
    begin, else NONE. `reports`: the commands before the plan in its entry; what they end leaves its
    slots to launches that begin in this plan. `start_window_ms`: how long after its Begin an
    attempt may start (rule R7); as long as an instant is live, so a delayed order starts nothing.

    The plan adds what the leader has to return to the due heap: `again`, jobs that stopped at a
    spent instant (R10), and `postponed`, due jobs for which the plan had no room.
    """

    state: State
    due_jobs: Sequence[DueJobs]
    queues: Queues
    expired: list[int] = []
    late_budget: int = 0
    steady_ms: int = NEVER_MS
    rows_max: int = ROWS_MAX
    lead_ms: int = 0
    stale_jobs: Sequence[DueJobs] = ()
    why_behind: Callable[[int], Reason] = lambda number: NONE
    reports: Sequence[c.Command] = ()
    again: list[int] = []
    postponed: list[DueJobs] = []
    start_window_ms: int = FAILOVER_MS


def plan(view: View, now_ms: int) -> list[c.Command]:
    """Return the commands to append now; empty if there is nothing to do."""
    commands: list[c.Command] = []
    executors, expired = view.state.executors, _at_once(view)
    lost = tuple(
        c.LostExecutor(number, max(record.batches), now_ms, SILENT)
        for number in expired
        if (record := executors.get(number)) is not None and record.batches
    )
    if lost:
        commands.append(c.Report(executors=lost))
    commands += [
        c.ExecutorLeft(number, "its lease ended")
        for number in expired
        # A drained executor is still drained when it comes back.
        if (record := executors.get(number)) is None or not record.drained_by
    ]
    accounts = _accounts(view, now_ms)
    if accounts:
        lines = [
            (rows, [*map(_number, chain.from_iterable(some))])
            for (rows, _), some in accounts.items()
        ]
        commands.append(c.Account(as_lines(view.state.catalog, lines)))
    choice = _Choice(view, now_ms, _lost(view.state, lost))
    choice.run(accounts)
    return commands + choice.commands()


_Accounts = dict[tuple[c.AccountLine, int], list[list[JobRecord]]]
"""Rows, and the jobs that get them, in groups; by job as well where State may refuse them, else
0."""


def _accounts(view: View, now_ms: int) -> _Accounts:
    """Return rows for the instants that have come up, and rows that skip older instants of jobs
    that wait for room. Jobs with the same schedule, horizon and policies are computed once."""
    accounts: _Accounts = {}
    known: dict[tuple[object, ...], c.AccountLine | None] = {}
    room = view.rows_max
    pieces = chain.from_iterable(_alike(view.state, due) for due in view.due_jobs)
    for due, like, records in pieces:
        if room <= 0:
            view.postponed.append(due._replace(numbers=[*map(_number, records)]))
            continue
        if like not in known:
            given = Given(now_ms, view.steady_ms, due.why_behind)
            known[like] = account_for(records[0], due.ticks, given)
        rows = known[like]
        if rows is None:
            continue
        first, alone = records[0], records[0].number if due.is_apart else 0
        if first.spent and rows.to_s < now_ms // 1000:
            view.again.append(first.number)
        count, later = len(records), records[:0]
        if len(rows.due) > room:
            # Up to the last instant with room: the next turn continues there.
            to_s = rows.due[room - 1].scheduled_s
            skipped = tuple(run for run in rows.skipped if run.last_s < to_s)
            rows = c.AccountLine((), 0, rows.from_s, to_s, rows.due[:room], skipped)
            count, later = 1, records
        elif len(rows.due) * count > room:
            count = room // len(rows.due)
            later = records[count:]
        accounts.setdefault((rows, alone), []).append(records[:count])
        room -= len(rows.due) * count
        if later:
            view.postponed.append(due._replace(numbers=[*map(_number, later)]))
            room = 0
    for due in view.stale_jobs:
        for number in due.numbers:
            record = view.state.by_number[number]
            older = skip_older(record, due.ticks, Given(now_ms, view.steady_ms, due.why_behind))
            if older is not None:
                accounts.setdefault((older, number if due.is_apart else 0), []).append([record])
    return accounts


def _alike(state: State, due: DueJobs) -> list[tuple[DueJobs, tuple[object, ...], list[JobRecord]]]:
    """Return jobs of a group by what they have in common: each such part of them gets the same
    rows. A job that is paused, or has begun instants after its horizon, is by itself."""
    records = list(map(state.by_number.__getitem__, due.numbers))
    job = records[0].job
    if job is None:
        return []
    policy = (id(due.ticks), job.catchup, job.overlap, job.deadline_s, due.why_behind)
    horizons = set(map(_horizons, records))
    is_plain = not due.is_apart and state.doubtful.keys().isdisjoint(due.numbers)
    if len(horizons) == 1 and is_plain and not any(map(_paused, records)):
        return [(due, (*policy, *horizons.pop()), records)]
    alike: dict[tuple[object, ...], list[JobRecord]] = {}
    for one in records:
        is_alone = due.is_apart or one.paused is not None or one.spent
        like = (one.number,) if is_alone else (*policy, *_horizons(one))
        alike.setdefault(like, []).append(one)
    return [(due, like, some) for like, some in alike.items()]


def _at_once(view: View) -> list[int]:
    """Return the expired executors whose work one entry can give up; the others expire in the next
    turn."""
    count = 0
    for place, number in enumerate(view.expired):
        record = view.state.executors.get(number)
        count += record.count_open() if record else 0
        if place and count > LOST_MAX:
            return view.expired[:place]
    return view.expired


def _succeeded(state: State, reports: Iterable[c.Command], lost: Container[int]) -> list[EndedRows]:
    """Return the usual rows that have succeeded once these commands are applied: nothing follows
    after them. Other ends free their slots when they are applied. Executors of `lost` are left
    out."""
    ended: list[EndedRows] = []
    seen: dict[tuple[int, int], set[int]] = {}
    for command in reports:
        for executor, said in command.rows if isinstance(command, c.Report) else ():
            record = state.executors.get(executor) if executor not in lost else None
            batch = record.batches.get(said.index) if record is not None else None
            rows = [*accumulate(said.rows)]
            if state_of(said) is not SUCCEEDED or batch is None or rows[-1] >= len(batch.states):
                continue
            known = seen.setdefault((executor, said.index), set())
            if 0 in taken(batch.states, rows) or not known.isdisjoint(rows):
                rows = [row for row in rows if batch.states[row] and row not in known]
            known.update(rows)
            if rows:
                numbers, instants = taken(batch.numbers, rows), taken(batch.scheduled_s, rows)
                ended.append((executor, numbers, instants))
    return ended


def _lost(state: State, lost: Iterable[c.LostExecutor]) -> dict[c.Key, int]:
    """Return the launches that are over once these executors are lost, each with its executor.
    Launches of several parts are left out: their other parts may run on."""
    ended: dict[c.Key, int] = {}
    for one in lost:
        for batch in state.executors[one.executor].batches.values():
            rows = zip(batch.numbers, batch.scheduled_s, repeat(0))
            ended.update(dict.fromkeys(compress(rows, batch.states), one.executor))
            alone = (launch for launch in batch.detailed.values() if not launch.parts)
            ended.update((launch.key, one.executor) for launch in alone)
    return ended


class _Choice:
    """The decisions of one plan: which launches begin, are skipped, or wait."""

    def __init__(self, view: View, now_ms: int, lost: dict[c.Key, int]) -> None:
        self._view = view
        self._queues = view.queues
        self._now_ms = now_ms
        self._lost = lost
        # Jobs of which a launch may become due again by this entry, and is then first in its queue.
        jobs = ((key[0], view.state.by_number[key[0]].job) for key in lost)
        self._returning = {
            number for number, job in jobs if job and is_queue(job) and job.on_lost is OnLost.RETRY
        }
        self._by_number = view.state.by_number
        self._late_budget = view.late_budget
        self._ahead_ms = max(view.queues.places.ahead_ms.values(), default=0)
        # A launch with a later deadline starts in time everywhere, and has its whole window.
        self._safe_ms = now_ms + max(view.start_window_ms, view.lead_ms + self._ahead_ms)
        self._taken: dict[int, None] = {}  # jobs whose only slot this plan gives away
        self._begin: list[tuple[c.Key, int, tuple[int, ...], int]] = []  # as Begin.of wants them
        self._usual: dict[tuple[int, int], list[int]] = {}  # by executor and instant: jobs
        self._skip: dict[c.Key, c.SkippedItem] = {}
        self._detailed = 0  # of what is skipped
        self._lacks: dict[int, str] = {}  # job number -> what its launches lacked
        self._cancel: dict[c.Key, c.CancelItem] = {}
        self._in_the_way: dict[tuple[object, ...], Predecessor | None] = {}

    def run(self, accounts: _Accounts) -> None:
        """Cancel waiting launches of removed jobs, judge new launches, the oldest first, and take
        those that may begin."""
        state, queues, lost = self._view.state, self._queues, self._lost
        self._queues.end(_succeeded(state, self._view.reports, set(lost.values())), lost)
        self._queues.begin_plan(self._now_ms)
        removed = self._queues.removed(min(REMOVED_MAX, -(-self._view.rows_max // REMOVED_SHARE)))
        for gone in removed:
            by = state.by_number[gone.number].removed_by
            self._cancel[gone.key] = c.CancelItem(gone.key, NONE, by)
        self._begin_unbound(accounts)
        new = self._queues.take_new(JUDGED_SHARE * self._view.rows_max)
        if len(new) > 1:
            new.sort(key=lambda launch: turn(launch, queues.job_of(launch.number)))
        for launch in new:
            self._judge(launch)
        self._queues.end_plan()
        self._take(self._view.rows_max - len(removed))

    def commands(self) -> list[c.Command]:
        """Return the commands for what was decided."""
        result: list[c.Command] = []
        if self._cancel:
            result.append(c.Cancel(tuple(self._cancel.values())))
        if self._skip:
            result.append(c.Skip(tuple(self._skip.values())))
        if self._begin or self._usual:
            window_ms = self._now_ms + self._view.start_window_ms
            catalog = self._view.state.catalog
            usual = [
                c.BatchSpec(executor, catalog, window_ms, at_s, tuple(differences(numbers)))
                for (executor, at_s), numbers in self._usual.items()
            ]
            detailed = c.Begin.of(catalog, window_ms, self._begin).batches if self._begin else ()
            result.append(c.Begin((*usual, *detailed)))
        return result

    # ---- what is new

    def _begin_unbound(self, accounts: _Accounts) -> None:
        """Begin all launches that fall due and that nothing binds, by count; offer the others to
        the queues."""
        queues, by_number = self._queues, self._view.state.by_number
        usual = [*self._usual_groups(accounts)]
        counts: Counter[FlowKey] = Counter()
        for flow, _, numbers in usual:
            counts[flow] += len(numbers)
        unbound = queues.unbound(counts, self._now_ms)
        self._usual, rest = queues.begin_unbound([one for one in usual if one[0] in unbound])
        rest += [one for one in usual if one[0] not in unbound]
        for flow, at_s, numbers in rest:
            queues.wait(flow, [of_due(at_s, by_number[number]) for number in numbers])

    def _usual_groups(self, accounts: _Accounts) -> Iterator[tuple[FlowKey, int, list[int]]]:
        """Yield the launches that fall due in time and need one slot and nothing else: flow,
        instant and jobs; offer the others to the queues."""
        queues, gates = self._queues, self._queues.gates
        has_gates = bool(self._view.state.gates)
        start_ms = self._now_ms + self._view.lead_ms + self._ahead_ms
        for (rows, _), groups in accounts.items():
            for records in groups if rows.due else ():
                first = records[0]
                if first.job is None:
                    continue
                placed, held, usual = queues.placed(first, first.job), records[:0], records
                if has_gates:
                    may_hold = [gates.may_hold(one, one.job or first.job) for one in records]
                    held = [*compress(records, may_hold)]
                    usual = [*compress(records, map(not_, may_hold))]
                for due in rows.due:
                    in_time_s = start_ms // 1000 - due.scheduled_s
                    is_usual = placed.is_usual and not due.is_late
                    is_usual = is_usual and first.job.deadline_s > in_time_s
                    if is_usual and usual:
                        yield placed.live, due.scheduled_s, [*map(_number, usual)]
                    for record in held if is_usual else records:
                        queues.offer(of_due(due.scheduled_s, record, is_late=due.is_late))

    def _judge(self, launch: LaunchRow) -> None:
        key, job = launch.key, self._queues.job_of(launch.number)
        if job is None:
            self._queues.set_aside(launch)
            return
        if key in self._cancel:
            return
        if self._is_stopped(launch, job):
            return
        if key in self._queues.outlasted and not wants_another_order(launch, job):
            self._skip_one(launch, Reason.FENCED)
        elif full := self._why_full(launch, job):
            self._skip_one(launch, Reason.FULL, detail=full)
        elif job.overlap is not REPLACE or self._replace(launch, job):
            self._queues.enqueue(launch, job, self._now_ms)

    def _is_stopped(self, launch: LaunchRow, job: Job) -> bool:
        """Return whether a launch was skipped now, or is held by its jitter, a closed gate or a
        launch that it follows."""
        if job.jitter_s and self._is_early(launch, job):
            return True
        reason = self._reason_to_skip(launch, job)
        gate = self._queues.gates.of(self._by_number[launch.number], job, self._now_ms)
        if reason is NONE and gate is None:  # the usual case, cheap
            return bool(job.after or job.after_any) and self._waits_for_other(launch, job)
        if reason is NONE and gate is not None:
            if gate.action is GateAction.PAUSE:
                self._queues.hold(launch, job, gate.until_ms or FOREVER_MS)
                return True
            note = note_of(gate)  # what `apply` needs to find the gate
            self._skip_one(launch, Reason.GATED, Note(note.code, note.args[:1]))
        else:
            self._skip_one(launch, reason)
        return True

    def _is_early(self, launch: LaunchRow, job: Job) -> bool:
        """Return whether a launch is held for the jitter of its job: one by schedule that has never
        begun. Whether it may begin is decided when that is over."""
        begins_ms = launch.scheduled_s * 1000 + job.delay_ms(launch.scheduled_s)
        if launch.attempt or not launch.is_scheduled or self._now_ms >= begins_ms:
            return False
        self._queues.hold(launch, job, begins_ms)
        return True

    def _waits_for_other(self, launch: LaunchRow, job: Job) -> bool:
        """Return whether a launch was skipped now, or is held, for what it follows."""
        found = self._predecessor(launch, job)
        if found is not None and found.state != NOT_OVER:
            self._skip_one(launch, Reason.PREDECESSOR, found.note)
        elif found is not None:
            self._queues.hold(launch, job, self._now_ms + FOLLOWED_LOOK_MS)
        return found is not None

    def _predecessor(self, launch: LaunchRow, job: Job) -> Predecessor | None:
        """Return what keeps a launch from beginning that follows others. One that somebody asked
        for, or that has begun before, does not wait."""
        if launch.attempt or not launch.is_scheduled:
            return None
        at_s = launch.scheduled_s
        asked = (job.after, job.after_any, at_s)
        if asked not in self._in_the_way:
            self._in_the_way[asked] = in_the_way(self._view.state, job, at_s)
        return self._in_the_way[asked]

    def _reason_to_skip(self, launch: LaunchRow, job: Job) -> Reason:
        """Return why a due launch must not start any more, else NONE."""
        if self._now_ms >= launch.deadline_ms and self._has_expired(launch, job):
            return self._reason_past_deadline(launch)
        record = self._by_number[launch.number]
        paused = record.paused if launch.is_scheduled else None
        if paused is not None and paused.holds(self._now_ms):
            return Reason.PAUSED
        if job.overlap is not FORBID:
            return NONE
        if is_exempt(launch, job):
            return NONE
        # A launch that rests between two tries is not over.
        is_held = self._is_held(record) or any(
            map(has_run, self._queues.by_job.of(launch.number).values())
        )
        return Reason.OVERLAP if is_held else NONE

    def _reason_past_deadline(self, launch: LaunchRow) -> Reason:
        """Return why a launch past its deadline was not started: it was fenced or missed; if more
        falls due than can begin, others were before it or no executor could run it; otherwise there
        was no room in time."""
        if launch.attempt and launch.is_refused:
            return Reason.FENCED
        if launch.is_late and not launch.attempt and not launch.is_redriven:
            return Reason.MISSED
        is_usual = launch.is_scheduled and not launch.attempt
        return (is_usual and self._view.why_behind(launch.number)) or Reason.DEADLINE

    def _out_of_reach(self, launch: LaunchRow, job: Job) -> list[int] | None:
        """Return the executors that an order cannot reach before the launch's deadline, by their
        clocks. Skips a launch that can reach none in time; returns None for it."""
        start_ms = self._now_ms + self._view.lead_ms
        if start_ms + self._ahead_ms < launch.deadline_ms:  # the usual case, cheap
            return []
        left_ms = self._deadline_ms(launch, job) - start_ms
        note: Note | None = None
        clocks = self._queues.places.ahead_ms
        unreached = [number for number, ahead_ms in clocks.items() if ahead_ms >= left_ms]
        if left_ms > 0:
            wanted = self._queues.placed(self._by_number[launch.number], job).wanted
            if not unreached or self._queues.placement.reaches_enough(wanted, unreached):
                return unreached
            note = Note(NoteCode.CLOCKS, (min(clocks[number] for number in unreached),))
        self._skip_one(launch, self._reason_past_deadline(launch), note)
        return None

    def _deadline_ms(self, launch: LaunchRow, job: Job) -> int:
        """Return until when a launch may begin: time behind a gate that pauses it does not
        count."""
        times = self._queues.gates.times_closed(self._by_number[launch.number], job)
        since_ms = max(launch.enqueued_ms, launch.held_to_ms)
        return held_deadline_ms(times, since_ms, launch.deadline_ms, self._now_ms)

    def _has_expired(self, launch: LaunchRow, job: Job) -> bool:
        """Return whether a launch past its deadline is given up, although gates may have stopped
        its clock; also if a newer launch of its job waits and the job does not want all missed
        instants."""
        until_ms = self._deadline_ms(launch, job)
        if self._now_ms >= until_ms:
            return True
        is_one_enough = launch.is_scheduled and job.catchup is not Catchup.ALL
        if is_one_enough and any(one.is_scheduled for one in self._queues.by_job.newer(launch.key)):
            return True
        self._queues.judge_again(launch.key, max(until_ms, self._now_ms + HELD_LOOK_MS))
        return False

    def _why_full(self, launch: LaunchRow, job: Job) -> str:
        """Return why the queue of a new launch takes no more, "" if it does. Launches that wait
        already, and those that were admitted on request, stay."""
        if launch.key in self._view.state.due:
            return ""
        return self._queues.admission.why_full(self._by_number[launch.number].name, job)

    def _skip_one(
        self, launch: LaunchRow, reason: Reason, note: Note | None = None, *, detail: str = ""
    ) -> None:
        """Skip a launch with the details that the reason does not tell; postpone it if this entry
        has no room."""
        if not note and not detail:
            detail, note = launch.detail, launch.note
        key, record = launch.key, self._by_number[launch.number]
        job = record.job
        if reason is Reason.DEADLINE and not note and job is not None and job.follows:
            found = self._predecessor(launch, job)
            note = found.note if found is not None else None
        held = None
        # No known launch of the job runs: one from before a restore may hold its place.
        if reason is Reason.OVERLAP and not self._runs(record.number):
            held = before_restore(self._view.state, record.held_until_ms, self._now_ms)
        if held:
            detail, note = "", held
        elif reason in MISSING and not (detail or note) and self._detailed < MISSING_MAX:
            number = record.number
            if number not in self._lacks and len(self._lacks) < LACKS_MAX:
                self._lacks[number] = self._queues.missing(key)
            detail = self._lacks.get(number, "")  # while that can still be known
        detail, note = written(note, detail)
        if len(self._skip) < SKIPPED_MAX and (not detail or self._detailed < DETAILED_MAX):
            self._skip[key] = c.SkippedItem(key, reason, detail, note)
            self._detailed += bool(detail)
            self._queues.drop(key)
        else:
            self._queues.postpone(launch, self._now_ms + HELD_REST_MS)

    def _is_held(self, record: JobRecord) -> bool:
        """Return whether another launch of the job may be running, or begins in this plan."""
        return self._runs(record.number) or record.held_until_ms > self._now_ms

    def _runs(self, number: int) -> bool:
        taken = number in self._taken or number in self._returning
        return taken or self._queues.runs(number) > 0

    def _replace(self, launch: LaunchRow, job: Job) -> bool:
        """Return whether a launch is the newest of its job: it then cancels what runs and what
        waits from before. Otherwise it is cancelled itself (rule R8)."""
        for other in self._queues.by_job.newer(launch.key):
            if self._reason_to_skip(other, job) is Reason.NONE:
                self._cancel_replaced(launch.key)
                return False
        for key in self._queues.by_job.older(launch.key):
            self._cancel_replaced(key)
        for row in self._view.state.active_of(self._by_number[launch.number]):
            is_older = row.key < launch.key and not self._queues.is_ended(row.key)
            if is_older and row.cancel is Reason.NONE:
                self._cancel_replaced(row.key)
        return True

    def _cancel_replaced(self, key: c.Key) -> None:
        if key not in self._skip:
            self._cancel[key] = c.CancelItem(key, Reason.REPLACED, "a newer launch")
            self._queues.drop(key)

    # ---- what begins

    def _take(self, rows_max: int) -> None:
        most = rows_max - sum(map(len, self._usual.values()))
        left, has_room = TAKEN_SHARE * most, True
        while has_room and left > 0 and len(self._begin) < most:
            wanted = min(left, most - len(self._begin))
            taken = self._queues.take(self._now_ms, self._late_budget, wanted)
            left, has_room = left - len(taken), bool(taken)
            alike: list[LaunchRow] = []
            for launch in taken:
                unreached = self._judge_taken(launch)
                if unreached is None:
                    continue
                if unreached or launch.refused_by or len(taken) == 1:
                    has_room = self._begin_one(launch, unreached) and has_room
                else:
                    alike.append(launch)
            if alike:
                has_room = self._begin_alike(alike) and has_room
        self._queues.put_all_back()

    def _judge_taken(self, launch: LaunchRow) -> list[int] | None:
        """Return the executors that the order of a taken launch cannot reach in time. Returns None
        for one that may not begin now, which is skipped or put back."""
        record = self._by_number.get(launch.number)
        job = record.job if record is not None else None
        if record is None or job is None:
            self._queues.set_aside(launch)
            return None
        is_free = job.overlap is ALLOW and not job.concurrency and record.paused is None
        is_free = is_free and not job.after and not job.after_any
        if is_free and launch.deadline_ms > self._safe_ms and not self._view.state.gates:
            return []  # the usual case, cheap
        if self._is_stopped(launch, job) or not self._may_begin(launch, job):
            return None
        return self._out_of_reach(launch, job)

    def _begin_one(self, launch: LaunchRow, unreached: list[int]) -> bool:
        """Begin a launch on an executor that is not `unreached`; return whether there is any room
        left."""
        job = self._queues.job_of(launch.number)
        if job is None:
            return True
        executors = self._queues.begin(launch, job, unreached)
        if not executors:
            # Room for one part does not help a launch of several, nor room that its order cannot
            # reach in time: others may begin first.
            if is_bound := job.has_parts or bool(unreached):
                self._queues.put_back(launch, self._now_ms + HELD_REST_MS)
            return is_bound
        self._begun(launch, job, executors)
        if job.overlap is not ALLOW:
            self._take_slot(launch, job)
        return True

    def _begin_alike(self, launches: list[LaunchRow]) -> bool:
        """Begin taken launches that need the same; return whether there was room for all."""
        alike = {one.key: one for one in launches}
        flow = self._queues.fair.running[launches[0].key].key
        for executor, keys in self._queues.begin_alike(flow, list(alike)).items():
            for launch in map(alike.pop, keys):
                job = self._queues.job_of(launch.number)
                if job is not None:
                    self._begun(launch, job, (executor,))
        return not alike

    def _begun(self, launch: LaunchRow, job: Job, executors: tuple[int, ...]) -> None:
        """Note that a launch begins."""
        self._late_budget -= launch.is_late
        held_ms = self._held_ms(launch, job)
        self._begin.append((launch.key, launch.attempt + 1, executors, held_ms))

    def _held_ms(self, launch: LaunchRow, job: Job) -> int:
        """Return the deadline of a launch that begins, if gates held its clock, else 0."""
        if launch.deadline_ms > self._safe_ms:
            return 0
        most_ms = self._now_ms + job.deadline_s * 1000
        held_ms = min(self._deadline_ms(launch, job), most_ms)
        return held_ms if held_ms > launch.deadline_ms else 0

    def _may_begin(self, launch: LaunchRow, job: Job) -> bool:
        """Return whether a taken launch may begin beside the other launches of its job; otherwise
        put it back."""
        record = self._by_number[launch.number]
        if job.overlap is ALLOW:
            if not job.concurrency or not self._holds_all(record, job):
                return True
            held_until_ms = record.held_until_ms
            if not self._queues.runs(record.number):  # else the end of one that runs is enough
                later = (until_ms for until_ms in record.held if until_ms > self._now_ms)
                held_until_ms = max(held_until_ms, min(later, default=0))
        else:
            if not self._is_held(record):
                return True
            if job.jitter_s and job.overlap is REPLACE and not self._replace(launch, job):
                return False  # nobody judged it since its jitter was over
            held_until_ms = record.held_until_ms
        self._queues.put_back(launch, max(held_until_ms, self._now_ms + HELD_REST_MS))
        return False

    def _holds_all(self, record: JobRecord, job: Job) -> bool:
        """Return whether a job with `concurrency` may be running as many launches as it allows,
        including those that are lost."""
        if record.held_until_ms > self._now_ms:
            return True
        held = record.held_slots(self._now_ms)
        return bool(held) and self._queues.runs(record.number) + held >= job.concurrency

    def _take_slot(self, launch: LaunchRow, job: Job) -> None:
        """Give the only slot of a job to a launch: other waiting launches that forbid overlap are
        skipped."""
        number = launch.number
        self._taken[number] = None
        if job.overlap is Overlap.FORBID:
            for other in list(self._queues.by_job.of(number).values()):
                if other.key != launch.key and not is_exempt(other, job):
                    self._skip_one(other, Reason.OVERLAP)
