"""What should happen now, given what is committed and what time it is.

Pure: it reads the view and returns commands; the leader's loop appends them in one entry and acts
on what applying them answered. Nothing is ever started from here (SRE book ch. 24, "The role of
Paxos": a launch is committed before it is made).

The order of one plan: what is lost frees slots; instants get their rows; launches that are new are
skipped, or wait in the queues; and from these comes what may begin. The queues are told of nothing:
what is taken out of them and not accepted then, State gives back (`Queues.follow`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import compress, repeat
from typing import Final

import msgspec

from cron.job import Catchup, Job, OnLost, Overlap
from cron.notes import Note, NoteCode, written
from cron.scheduler.candidates import (
    Candidate,
    has_run,
    is_exempt,
    is_outlasted,
    is_queue,
    of_due,
    too_late,
    turn,
)
from cron.scheduler.due import DueJob
from cron.scheduler.flows import FlowKey
from cron.scheduler.gates import FOREVER_MS, held_deadline_ms, note_of
from cron.scheduler.policy import (
    FAILOVER_MS,
    NEVER_MS,
    Accounted,
    Given,
    account_for,
    before_restore,
    skip_older,
)
from cron.scheduler.queues import Queues
from cron.state import commands as c
from cron.state.columns import deltas
from cron.state.pool import GateAction
from cron.state.state import JobRecord, State
from launcher.protocol.status import Reason

ALLOW: Final = Overlap.ALLOW  # members of an enumeration are slow to look up
FORBID: Final = Overlap.FORBID
REPLACE: Final = Overlap.REPLACE
NONE: Final = Reason.NONE
ROWS_MAX: Final = 5_000
"""The most launches that one entry makes due, and that it begins."""
JUDGED_SHARE: Final = 4
"""So many times as many launches are judged in one plan: to skip one costs less than to begin."""
SKIPPED_MAX: Final = 100_000
"""Launches that one entry may skip; up to 1.5 MB, of an entry's 8 MiB."""
DETAILED_MAX: Final = 20_000
"""So many of them with a detail, which takes about 100 bytes more."""
MISSING: Final = (Reason.DEADLINE, Reason.NO_EXECUTOR)
"""Why a launch is skipped that may have found no executor: the entry then says what it lacked."""
MISSING_MAX: Final = 1_000
"""Of so many that are skipped at their deadline an entry says what they lacked."""
TOLD_MAX: Final = 50
"""Jobs of which one plan finds out what their launches lacked: each is a look at all executors."""
REMOVED_MAX: Final = 5_000
"""Launches of removed jobs that one entry cancels: a twentieth of a second for each replica."""
LOST_MAX: Final = 10_000
"""Launches that one entry may give up, beyond those of one executor. It takes no more room for
them, but each of them costs `apply` as much as a launch that is not usual."""
SILENT: Final = Note(NoteCode.SILENT)
HELD_LOOK_MS: Final = 1_000
"""Between two looks at a launch past its deadline whose clock a gate holds, at the least."""
HELD_REST_MS: Final = 100
"""Before a launch is looked at again whose job's slot is held in a way that no entry will end."""
TAKEN_SHARE: Final = 4
"""So many times what may begin in one plan it takes from the queues; the others are stopped by
what they did not know of there, and wait on."""


class Settings(msgspec.Struct, frozen=True):
    """What the operator may set. `start_window_ms`: how long after its Begin an attempt may still
    start (rule R7): as long as an instant is live, so that an order that waited on its way starts
    nothing late."""

    start_window_ms: int = FAILOVER_MS


class Expired(msgspec.Struct, frozen=True):
    """An executor whose lease is over: work on it is lost; guarded work is dead by `held_until_ms`
    at the latest, the leader's wall clock (rules R5, R6)."""

    number: int
    held_until_ms: int


def _not_behind(number: int) -> Reason:
    return NONE


class View(msgspec.Struct):
    """What the plan is made from.

    `queues` hold what waits. `late_budget`: how many catch-up launches may begin now. `steady_ms`:
    since when this leader answers for what falls due (jump.Steady). `rows_max`: as many launches
    may fall due, and begin, as one turn has time for. `lead_ms`: what begins now starts no sooner.
    `stale_jobs` wait for room, and have their older instants skipped. `why_behind(number)`: why
    more falls due beside a job than can begin, NONE where it does not.

    The plan leaves behind what is to be shown to the next one: `again`, jobs that stopped at a
    spent instant (R10), and `postponed`, due jobs that it had no room for.
    """

    state: State
    due_jobs: list[DueJob]
    queues: Queues
    expired: list[Expired] = []
    late_budget: int = 0
    steady_ms: int = NEVER_MS
    rows_max: int = ROWS_MAX
    lead_ms: int = 0
    stale_jobs: list[DueJob] = []
    why_behind: Callable[[int], Reason] = _not_behind
    again: list[int] = []
    postponed: list[DueJob] = []
    settings: Settings = Settings()


def plan(view: View, now_ms: int) -> list[c.Command]:
    """Return what to append now; nothing where nothing is to be done."""
    commands: list[c.Command] = []
    executors, expired = view.state.executors, _at_once(view)
    lost = tuple(
        c.LostExecutor(gone.number, max(record.batches), gone.held_until_ms, SILENT)
        for gone in expired
        if (record := executors.get(gone.number)) is not None and record.batches
    )
    if lost:
        commands.append(c.Report(executors=lost))
    commands += [
        c.ExecutorLeft(gone.number, "its lease ended")
        for gone in expired
        # That one is to get no more work must still be known when it comes back.
        if (record := executors.get(gone.number)) is None or not record.drained_by
    ]
    accounts = _accounts(view, now_ms)
    if accounts:
        catalog = view.state.catalog
        lines = tuple(
            c.AccountLine(deltas(sorted([one.number for one in records])), catalog, *rows)
            for (rows, _), records in accounts.items()
        )
        commands.append(c.Account(lines))
    choice = _Choice(view, now_ms, _ended(view.state, lost))
    choice.run(accounts)
    return commands + choice.commands()


_Accounts = dict[tuple[Accounted, int], list[JobRecord]]
"""Rows, and the jobs that get them; by job as well where State may refuse them, else 0."""


def _accounts(view: View, now_ms: int) -> _Accounts:
    """Rows for the instants that have come up, and to skip older ones of jobs that wait for room.
    Jobs with the same schedule, horizon and policies are looked at once."""
    accounts: _Accounts = {}
    known: dict[tuple[int, ...], tuple[Accounted, list[JobRecord]] | None] = {}
    room, steady_ms = view.rows_max, view.steady_ms
    for place, due in enumerate(view.due_jobs):
        if room <= 0:
            view.postponed = view.due_jobs[place:]
            break
        record, why = view.state.by_number[due.number], due.why_behind
        job, alone = record.job, due.number if due.is_apart else 0
        key: tuple[int, ...] = (due.number,)
        if job is not None and not (alone or record.spent or record.paused):
            key = (
                id(due.ticks), record.horizon_s, record.local_horizon_min, job.catchup, job.overlap,
                job.deadline_s, why,
            )  # fmt: skip
        if key not in known:
            rows = account_for(record, due.ticks, now_ms, steady_ms, why_behind=why)
            known[key] = rows and (rows, accounts.setdefault((rows, alone), []))
        shared = known[key]
        if shared is None:
            continue
        rows, records = shared
        if record.spent and rows.to_s < now_ms // 1000:
            view.again.append(due.number)
        if len(rows.due) > room:
            # Up to the last that there is room for: the next turn goes on from there.
            to_s = rows.due[room - 1].scheduled_s
            skipped = tuple(run for run in rows.skipped if run.last_s < to_s)
            rows = Accounted(rows.from_s, to_s, rows.due[:room], skipped)
            records = accounts.setdefault((rows, alone), [])
            view.postponed = view.due_jobs[place:]
        records.append(record)
        room -= len(rows.due)
        if view.postponed:
            break
    for due in view.stale_jobs:
        record = view.state.by_number[due.number]
        older = skip_older(record, due.ticks, Given(now_ms, steady_ms, due.why_behind))
        if older is not None:
            accounts.setdefault((older, due.number if due.is_apart else 0), []).append(record)
    return {rows: records for rows, records in accounts.items() if records}


def _at_once(view: View) -> list[Expired]:
    """Return those of the expired executors whose work one entry can give up; the others are
    expired in the next turn as well."""
    count = 0
    for place, one in enumerate(view.expired):
        record = view.state.executors.get(one.number)
        count += record.count_open() if record else 0
        if place and count > LOST_MAX:
            return view.expired[:place]
    return view.expired


def _ended(state: State, lost: Iterable[c.LostExecutor]) -> dict[c.Key, int]:
    """Return the launches that are over once these executors are lost, and until when they may be
    running. A launch of several parts is none of them: its other parts may run on."""
    ended: dict[c.Key, int] = {}
    for one in lost:
        for batch in state.executors[one.executor].batches.values():
            rows = zip(batch.numbers, batch.scheduled_s, repeat(0))
            keys = [*compress(rows, batch.states)]
            keys += [launch.key for launch in batch.odd.values() if not launch.parts]
            ended.update(dict.fromkeys(keys, one.held_until_ms))
    return ended


class _Choice:
    """Who begins, who is skipped, who waits: one pass over what is new, and over what may begin."""

    def __init__(self, view: View, now_ms: int, ended: dict[c.Key, int]) -> None:
        self._view = view
        self._queues = view.queues
        self._now_ms = now_ms
        self._ended = ended  # by this plan, and until when it may be running all the same
        self._held = {key[0] for key in ended if self._holds(key)}  # their jobs
        self._late_budget = view.late_budget
        self._taken: dict[int, None] = {}  # jobs whose only slot this plan gives away
        self._begin: list[c.BeginItem] = []
        self._usual: dict[tuple[int, int], list[int]] = {}  # by executor and instant: jobs
        self._skip: dict[c.Key, c.SkippedItem] = {}
        self._detailed = 0  # of what is skipped
        self._told: dict[int, str] = {}  # by job: what was missing
        self._cancel: dict[c.Key, c.CancelItem] = {}

    def run(self, accounts: _Accounts) -> None:
        """Cancel what waits of removed jobs, decide on what is new, the oldest first, and take what
        may begin."""
        for key in self._ended:
            self._queues.end(key)
        self._queues.begin_plan(self._now_ms)
        for gone in self._queues.removed(min(REMOVED_MAX, self._view.rows_max)):
            by = gone.record.removed_by
            self._cancel[gone.key] = c.CancelItem(gone.key, NONE, by)
        self._begin_unbound(accounts)
        new = self._queues.take_new(JUDGED_SHARE * self._view.rows_max)
        if len(new) > 1:
            new.sort(key=turn)
        for candidate in new:
            self._judge(candidate)
        self._queues.end_plan()
        self._take()

    def commands(self) -> list[c.Command]:
        """Return what was decided."""
        result: list[c.Command] = []
        if self._cancel:
            result.append(c.Cancel(tuple(self._cancel.values())))
        if self._skip:
            result.append(c.Skip(tuple(self._skip.values())))
        if self._begin or self._usual:
            window_ms = self._now_ms + self._view.settings.start_window_ms
            catalog = self._view.state.catalog
            usual = [
                c.BatchSpec(executor, catalog, window_ms, at_s, deltas(sorted(numbers)))
                for (executor, at_s), numbers in self._usual.items()
            ]
            odd = c.Begin.of(self._begin).batches if self._begin else ()
            result.append(c.Begin((*usual, *odd)))
        return result

    # ---- what is new

    def _begin_unbound(self, accounts: _Accounts) -> None:
        """Let all launches that fall due begin at once that nothing binds, by count; the others are
        let in, to be judged."""
        flows = self._by_flow(accounts)
        counts = {flow: len(keys) for flow, keys in flows.items()}
        unbound = self._queues.unbound(counts, self._now_ms)
        by_number = self._view.state.by_number
        for flow, keys in flows.items():
            waiting = keys
            if flow in unbound:
                begun = self._queues.begin_unbound(flow, keys)
                for executor, mine in begun.items():
                    for number, at_s, _ in mine:
                        self._usual.setdefault((executor, at_s), []).append(number)
                waiting = keys[sum(map(len, begun.values())) :]
            for key in waiting:
                self._queues.offer(of_due(c.DueItem(key[1]), by_number[key[0]]))

    def _by_flow(self, accounts: _Accounts) -> dict[FlowKey, list[c.Key]]:
        """Return the launches that fall due in time and need one slot and nothing else, by flow;
        let the others in."""
        flows: dict[FlowKey, list[c.Key]] = {}
        placed_of, has_gates = self._queues.placed, bool(self._view.state.gates)
        start_ms = self._now_ms + self._view.lead_ms
        for (rows, _), records in accounts.items():
            for due in rows.due:
                in_time_s = start_ms // 1000 - due.scheduled_s
                for record in records:
                    job = record.job
                    if job is None:
                        continue
                    placed = placed_of(record, job)
                    is_usual = placed.is_usual and not due.is_late and job.deadline_s > in_time_s
                    if is_usual and not (has_gates and self._queues.gates.may_hold(record, job)):
                        key = (record.number, due.scheduled_s, 0)
                        flows.setdefault(placed.live, []).append(key)
                    else:
                        self._queues.offer(of_due(due, record))
        return flows

    def _judge(self, candidate: Candidate) -> None:
        job = candidate.record.job
        if job is None:
            self._queues.set_aside(candidate)
            return
        if candidate.key in self._cancel:
            return
        if self._is_stopped(candidate, job):
            return
        if is_outlasted(candidate, job):
            self._skip_one(candidate, Reason.FENCED)
        elif self._is_full(candidate, job):
            self._skip_one(candidate, Reason.FULL)
        elif job.overlap is not REPLACE or self._replace(candidate, job):
            self._queues.enqueue(candidate, job, self._now_ms)

    def _is_stopped(self, candidate: Candidate, job: Job) -> bool:
        """Whether it is skipped, or waits at a closed gate."""
        reason = self._reason_to_skip(candidate, job)
        gate = self._queues.gates.of(candidate.record, job, self._now_ms)
        if reason is NONE and gate is None:  # the usual case, cheap
            return False
        if reason is NONE and gate is not None:
            if gate.action is GateAction.PAUSE:
                self._queues.hold(candidate, job, gate.until_ms or FOREVER_MS)
                return True
            note = note_of(gate)  # what `apply` needs to find the gate
            self._skip_one(candidate, Reason.GATED, Note(note.code, note.args[:1]))
        else:
            self._skip_one(candidate, reason)
        return True

    def _reason_to_skip(self, candidate: Candidate, job: Job) -> Reason:
        """Why a due launch will not be started any more, NONE where it may be."""
        if self._now_ms >= candidate.deadline_ms and self._is_over(candidate, job):
            return self._too_late(candidate)
        record = candidate.record
        paused = record.paused if candidate.is_scheduled else None
        if paused is not None and paused.holds(self._now_ms):
            return Reason.PAUSED
        if job.overlap is not FORBID:
            return NONE
        if is_exempt(candidate, job):
            return NONE
        # Another that rests between two tries is not over.
        is_held = self._is_held(record) or any(
            map(has_run, self._queues.waiting_of(candidate.key[0]))
        )
        return Reason.OVERLAP if is_held else NONE

    def _too_late(self, candidate: Candidate) -> Reason:
        """Why a launch was not started in time: because others were before it, or no executor could
        run them, where more falls due than can begin."""
        reason = too_late(candidate)
        is_usual = candidate.is_scheduled and not candidate.attempt and reason is Reason.DEADLINE
        return (is_usual and self._view.why_behind(candidate.key[0])) or reason

    def _is_hopeless(self, candidate: Candidate, job: Job) -> bool:
        """Whether it would be too late where it is to start: its order would be refused there."""
        start_ms = self._now_ms + self._view.lead_ms
        is_near = start_ms >= candidate.deadline_ms and not candidate.attempt
        return is_near and start_ms >= self._deadline_ms(candidate, job)

    def _deadline_ms(self, candidate: Candidate, job: Job) -> int:
        """Until when it may begin: the time behind a gate that lets it wait does not count."""
        times = self._queues.gates.times_closed(candidate.record, job)
        since_ms = max(candidate.enqueued_ms, candidate.held_to_ms)
        return held_deadline_ms(times, since_ms, candidate.deadline_ms, self._now_ms)

    def _is_over(self, candidate: Candidate, job: Job) -> bool:
        """Whether one whose deadline is over by itself is too late though gates held its clock; or
        a newer one of its job waits as well, where not all that was missed is wanted."""
        until_ms = self._deadline_ms(candidate, job)
        if self._now_ms >= until_ms:
            return True
        is_one_enough = candidate.is_scheduled and job.catchup is not Catchup.ALL
        if is_one_enough and any(one.is_scheduled for one in self._queues.newer(candidate.key)):
            return True
        self._queues.judge_again(candidate.key, max(until_ms, self._now_ms + HELD_LOOK_MS))
        return False

    def _is_full(self, candidate: Candidate, job: Job) -> bool:
        """Whether its queue takes no more. What waits already, and what a person asked for and was
        not refused, waits on."""
        if not candidate.is_fresh:
            return False
        candidate.detail = self._queues.admission.why_full(candidate.record.name, job)
        return bool(candidate.detail)

    def _skip_one(self, candidate: Candidate, reason: Reason, note: Note | None = None) -> None:
        """Skip it, and say what nobody could find out from the reason; or later, if this entry has
        no room."""
        detail, note = ("", note) if note else (candidate.detail, candidate.note)
        if reason is Reason.OVERLAP and (held := self._before_restore(candidate.record)):
            detail, note = "", held
        elif reason in MISSING and not detail and self._detailed < MISSING_MAX:
            number = candidate.key[0]
            if number not in self._told and len(self._told) < TOLD_MAX:
                self._told[number] = self._queues.missing(candidate.key)
            detail = self._told.get(number, "")  # while that can still be known
        detail, note = written(note, detail)
        if len(self._skip) < SKIPPED_MAX and (not detail or self._detailed < DETAILED_MAX):
            self._skip[candidate.key] = c.SkippedItem(candidate.key, reason, detail, note)
            self._detailed += bool(detail)
            self._queues.drop(candidate.key)
        else:
            self._queues.postpone(candidate, self._now_ms + HELD_REST_MS)

    def _before_restore(self, record: JobRecord) -> Note | None:
        """What may be running from before a restore, where no launch that is known runs."""
        number = record.number
        if number in self._taken or number in self._held or self._queues.runs(number):
            return None
        return before_restore(self._view.state, record.held_until_ms, self._now_ms)

    def _holds(self, key: c.Key) -> bool:
        """Whether what this plan gives up may be running all the same, or may be due again by its
        entry and then goes first in its queue."""
        job = self._view.state.by_number[key[0]].job
        may_return = is_queue(job) and job is not None and job.on_lost is OnLost.RETRY
        return self._ended[key] > self._now_ms or may_return

    def _is_held(self, record: JobRecord) -> bool:
        """Whether another launch of the job may be running, or begins in this plan."""
        number = record.number
        if number in self._taken or number in self._held or self._queues.runs(number):
            return True
        return record.held_until_ms > self._now_ms

    def _replace(self, candidate: Candidate, job: Job) -> bool:
        """Whether it is the newest of its job: then it ends what runs, and what waits from before,
        else it is ended itself (rule R8)."""
        for other in self._queues.newer(candidate.key):
            if self._reason_to_skip(other, job) is Reason.NONE:
                self._cancel_replaced(candidate.key)
                return False
        for key in self._queues.older(candidate.key):
            self._cancel_replaced(key)
        for row in self._view.state.active_of(candidate.record):
            is_older = row.key < candidate.key and row.key not in self._ended
            if is_older and row.cancel is Reason.NONE:
                self._cancel_replaced(row.key)
        return True

    def _cancel_replaced(self, key: c.Key) -> None:
        if key not in self._skip:
            self._cancel[key] = c.CancelItem(key, Reason.REPLACED, "a newer launch")
            self._queues.drop(key)

    # ---- what begins

    def _take(self) -> None:
        most = self._view.rows_max - sum(map(len, self._usual.values()))
        left = TAKEN_SHARE * most
        while left > 0 and len(self._begin) < most:
            wanted = min(left, most - len(self._begin))
            taken = self._queues.take(self._now_ms, self._late_budget, wanted)
            left -= len(taken)
            if not taken or not all(map(self._try_to_begin, taken)):
                break
        self._queues.put_all_back()

    def _try_to_begin(self, candidate: Candidate) -> bool:
        """Let a launch that was taken begin, if it may; return whether there is any room left."""
        job = candidate.record.job
        if job is None:
            self._queues.set_aside(candidate)
            return True
        if self._is_stopped(candidate, job) or not self._may_begin(candidate, job):
            return True
        if self._is_hopeless(candidate, job):
            self._skip_one(candidate, self._too_late(candidate))
            return True
        executors = self._queues.begin(candidate, job)
        if not executors:
            # Room for one part does not help it: others may go before.
            if job.has_parts:
                self._queues.put_back(candidate, self._now_ms + HELD_REST_MS)
            return job.has_parts
        self._late_budget -= candidate.is_late
        self._begin.append(self._begun(candidate, job, executors))
        if job.overlap is not ALLOW:
            self._take_slot(candidate, job)
        return True

    def _begun(self, candidate: Candidate, job: Job, executors: tuple[int, ...]) -> c.BeginItem:
        window_ms = self._now_ms + self._view.settings.start_window_ms
        held_ms = 0
        if window_ms > candidate.deadline_ms:
            most_ms = self._now_ms + job.deadline_s * 1000
            held_ms = min(self._deadline_ms(candidate, job), most_ms)
        return c.BeginItem(
            candidate.key,
            candidate.attempt + 1,
            self._view.state.catalog,
            executors[0],
            window_ms,
            executors[1:],
            held_ms if held_ms > candidate.deadline_ms else 0,
        )

    def _may_begin(self, candidate: Candidate, job: Job) -> bool:
        """Whether it may, having been taken; else it waits on."""
        record = candidate.record
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
            held_until_ms = record.held_until_ms
        self._queues.put_back(candidate, max(held_until_ms, self._now_ms + HELD_REST_MS))
        return False

    def _holds_all(self, record: JobRecord, job: Job) -> bool:
        """Whether as many launches of a job with `concurrency` may be running as it allows, with
        those that are lost, before this plan or by it."""
        number, now_ms = record.number, self._now_ms
        if record.held_until_ms > now_ms:
            return True
        ended = self._ended.items() if number in self._held else ()
        held = sum(key[0] == number and until_ms > now_ms for key, until_ms in ended)
        held += record.held_slots(now_ms)
        return bool(held) and self._queues.runs(number) + held >= job.concurrency

    def _take_slot(self, candidate: Candidate, job: Job) -> None:
        """Give the only slot of a job away: what else waits and may not is skipped."""
        number = candidate.key[0]
        self._taken[number] = None
        if job.overlap is Overlap.FORBID:
            for other in self._queues.waiting_of(number):
                if other.key != candidate.key and not is_exempt(other, job):
                    self._skip_one(other, Reason.OVERLAP)
