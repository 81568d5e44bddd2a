"""What should happen now, given what is committed and what time it is.

Pure: it reads the view and returns commands; the leader's loop appends them in one entry and acts
on what applying them answered. Nothing is ever started from here (SRE book ch. 24, "The role of
Paxos": a launch is committed before it is made).

The order of one plan: what is lost frees slots; instants get their rows; launches that are due are
skipped, wait, or begin. Live launches come first, catch-up is paced behind them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from cron.job import Catchup, Overlap
from cron.leader.agenda import DueJob
from cron.leader.policies import Memo, account_for, tell_before_restore
from cron.state import commands as c
from cron.state.launches import holds_slot
from cron.state.state import JobRecord, LaunchRow, State
from launcher.launch import ACTIVE, Reason

SCANNED_MAX: Final = 1_000
"""Waiting launches that an ordinary turn looks at, oldest first; housekeeping looks at all."""

INSTANTS_MAX: Final = 100_000
"""Launches that one entry may make due; 0.9 MB. One job alone may bring CATCHUP_ALL_MAX more."""
SKIPPED_MAX: Final = 100_000
"""Launches that one entry may skip; up to 1.5 MB, of an entry's 8 MiB."""
DETAILED_MAX: Final = 20_000
"""So many of them with a detail, which takes about 100 bytes more."""


class Settings(msgspec.Struct, frozen=True):
    """What the operator may set. `start_window_ms`: how long after its Begin an attempt may still
    start (rule R7). `launches_max`: in one entry."""

    start_window_ms: int = 30_000
    launches_max: int = 5_000


class Expired(msgspec.Struct, frozen=True):
    """An executor whose lease is over: work on it is lost; guarded work is dead by `held_until_ms`
    at the latest, the leader's wall clock (rules R5, R6)."""

    number: int
    held_until_ms: int


class View(msgspec.Struct):
    """What the plan is made from.

    `slots`: free slots of the executors that may get work, by their number. `late_budget`: how many
    catch-up launches may begin now. `scan_waiting`: look at all waiting launches even where no slot
    is free (to end those past their deadline).
    """

    state: State
    due_jobs: list[DueJob]
    slots: dict[int, int]
    expired: list[Expired] = []
    late_budget: int = 0
    scan_waiting: bool = True
    settings: Settings = Settings()


def plan(view: View, now_ms: int) -> list[c.Command]:
    """Return what to append now; nothing where nothing is to be done."""
    commands: list[c.Command] = []
    lost = _lost(view)
    if lost:
        commands.append(c.Lost(tuple(lost)))
    commands += [c.ExecutorLeft(gone.number, "its lease ended") for gone in view.expired]
    accounts = _accounts(view, now_ms)
    if accounts:
        commands.append(c.Account(tuple(accounts)))
    choice = _Choice(view, now_ms, {item.key: item.held_until_ms for item in lost})
    choice.run(accounts)
    return commands + choice.commands()


def _accounts(view: View, now_ms: int) -> list[c.AccountItem]:
    """Rows for the instants that have come up."""
    memo: Memo = {}
    by_number = view.state.by_number
    items: list[c.AccountItem] = []
    instants = 0
    for due in view.due_jobs:
        item = account_for(by_number[due.number], due.ticks, now_ms, memo)
        if item is not None:
            items.append(item)
            instants += len(item.due)
        if instants >= INSTANTS_MAX:
            break
    return items


def postponed(view: View, commands: list[c.Command]) -> list[DueJob]:
    """Return the due jobs that the plan did not come to, because its entry was full.

    They must be shown to the next plan; after a great outage they are many.
    """
    items = [item for one in commands if isinstance(one, c.Account) for item in one.items]
    if sum(len(item.due) for item in items) < INSTANTS_MAX:
        return []
    places = {due.number: place for place, due in enumerate(view.due_jobs, 1)}
    return view.due_jobs[places[items[-1].number] :]


def _lost(view: View) -> list[c.LostItem]:
    """Everything that was open on executors whose lease is over."""
    items: list[c.LostItem] = []
    for expired in view.expired:
        record = view.state.executors.get(expired.number)
        items += [
            c.LostItem(row.key, row.attempt, expired.held_until_ms, "its executor went silent")
            for row in (record.open.values() if record else ())
        ]
    return items


class _Candidate(msgspec.Struct, gc=False):
    """A launch that is due: in State already, or by this very plan."""

    key: c.Key
    record: JobRecord
    deadline_ms: int
    is_late: bool
    attempt: int
    detail: str
    is_reopened: bool = False
    refused_by: int = 0  # the executor that would not start its newest attempt
    not_before_ms: int = 0


def _turn(candidate: _Candidate) -> tuple[bool, int]:
    """Live before late, oldest first; a queue's launches by age alone."""
    job = candidate.record.job
    is_queue = job is not None and job.overlap is Overlap.QUEUE
    return (candidate.is_late and not is_queue, candidate.key[1])


def _too_late(candidate: _Candidate) -> Reason:
    """Why a launch past its deadline was not started: fenced, or missed, or no room in time."""
    if candidate.attempt and candidate.detail:
        return Reason.FENCED
    return Reason.MISSED if candidate.is_late and not candidate.attempt else Reason.DEADLINE


class _Choice:
    """Who begins, who is skipped, who waits: one pass over all that is due."""

    def __init__(self, view: View, now_ms: int, ended: dict[c.Key, int]) -> None:
        self._view = view
        self._now_ms = now_ms
        self._ended = ended  # by this plan, and until when it may be running all the same
        self._newest: dict[int, c.Key] = {}  # of each job whose newest launch replaces the others
        self._free = sum(view.slots.values())
        self._slots = dict(view.slots)
        self._late_budget = view.late_budget
        self._taken: dict[int, None] = {}  # jobs whose only slot this plan gives away
        self._begin: list[c.BeginItem] = []
        self._skip: dict[c.Key, c.SkippedItem] = {}
        self._detailed = 0  # of what is skipped
        self._cancel: dict[c.Key, c.CancelItem] = {}
        self._queued: dict[int, None] = {}  # jobs of which a launch waits

    def run(self, accounts: list[c.AccountItem]) -> None:
        """Decide on what was waiting and on what the accounts add; live first, oldest first."""
        fresh = list(self._fresh(accounts))
        waiting = [self._of_row(row) for row in self._waiting_rows()]
        candidates = waiting + fresh
        if waiting or any(item.is_late for item in fresh):
            candidates.sort(key=_turn)
        self._find_newest(candidates)
        for candidate in candidates:
            self._decide(candidate)

    def _find_newest(self, candidates: list[_Candidate]) -> None:
        for candidate in candidates:
            job, key = candidate.record.job, candidate.key
            if job is None or job.overlap is not Overlap.REPLACE:
                continue
            if self._reason_to_skip(candidate) is Reason.NONE:
                self._newest[key[0]] = max(self._newest.get(key[0], key), key)

    def _waiting_rows(self) -> Iterable[LaunchRow]:
        """All that waits, from time to time; else only the first, and only if there is room: a
        turn must not cost more the longer the queue is."""
        rows = self._view.state.due.values()
        if self._view.scan_waiting:
            return rows
        # What an executor refused comes again from time to time only: it may be refused again at
        # once, and each time is two entries of the log.
        return (row for row in islice(rows, SCANNED_MAX) if not row.detail) if self._free else ()

    def commands(self) -> list[c.Command]:
        """Return what was decided."""
        result: list[c.Command] = []
        if self._cancel:
            result.append(c.Cancel(tuple(self._cancel.values())))
        if self._skip:
            result.append(c.Skip(tuple(self._skip.values())))
        if self._begin:
            result.append(c.Begin(tuple(self._begin)))
        return result

    def _fresh(self, accounts: list[c.AccountItem]) -> list[_Candidate]:
        by_number = self._view.state.by_number
        result = []
        for item in accounts:
            record = by_number[item.number]
            deadline_s = record.job.deadline_s if record.job else 0
            for due in item.due:
                key = (item.number, due.scheduled_s, 0)
                deadline_ms = (due.scheduled_s + deadline_s) * 1000
                result.append(_Candidate(key, record, deadline_ms, due.is_late, 0, ""))
        return result

    def _of_row(self, row: LaunchRow) -> _Candidate:
        record = self._view.state.by_number[row.number]
        is_reopened = row.trigger == 0 and bool(row.by)
        return _Candidate(
            row.key,
            record,
            row.deadline_ms,
            row.is_late,
            row.attempt,
            row.detail,
            is_reopened,
            row.executor if row.detail else 0,
            row.not_before_ms,
        )

    def _decide(self, candidate: _Candidate) -> None:
        key = candidate.key
        if key in self._cancel:
            return
        reason = self._reason_to_skip(candidate)
        if reason is not Reason.NONE:
            self._skip_one(candidate, reason)
            return
        job = candidate.record.job
        if job is None:
            return
        # A queue is first in, first out: whoever has to wait holds those behind it.
        is_held_up = job.overlap is Overlap.QUEUE and key[0] in self._queued
        executor = None
        if not is_held_up and self._may_begin(candidate, job.overlap):
            executor = self._choose_executor(candidate.refused_by)
        if executor is None or (candidate.is_late and self._late_budget <= 0):
            self._queued[key[0]] = None
            return
        if candidate.is_late:
            self._late_budget -= 1
        self._slots[executor] -= 1
        self._free -= 1
        if job.overlap is not Overlap.ALLOW:
            self._taken[candidate.record.number] = None
        self._begin.append(
            c.BeginItem(
                candidate.key,
                candidate.attempt + 1,
                candidate.record.revision,
                executor,
                min(candidate.deadline_ms, self._now_ms + self._view.settings.start_window_ms),
            )
        )

    def _skip_one(self, candidate: _Candidate, reason: Reason) -> None:
        """Skip it, and say what nobody could find out from the reason; or later, if this entry has
        no room."""
        detail = candidate.detail
        if reason is Reason.OVERLAP:
            detail = self._before_restore(candidate.record) or detail
        if len(self._skip) < SKIPPED_MAX and (not detail or self._detailed < DETAILED_MAX):
            self._skip[candidate.key] = c.SkippedItem(candidate.key, reason, detail)
            self._detailed += bool(detail)

    def _before_restore(self, record: JobRecord) -> str:
        """What may be running from before a restore, where no launch that is known runs."""
        is_known = record.number in self._taken
        if is_known or any(row.state in ACTIVE for row in record.open.values()):
            return ""
        return tell_before_restore(self._view.state, record.held_until_ms, self._now_ms)

    def _reason_to_skip(self, candidate: _Candidate) -> Reason:
        """Why a due launch will not be started any more, NONE where it may be."""
        if self._now_ms >= candidate.deadline_ms:
            return _too_late(candidate)
        record = candidate.record
        is_scheduled = candidate.key[2] == 0 and not candidate.is_reopened
        if is_scheduled and record.paused is not None and record.paused.holds(self._now_ms):
            return Reason.PAUSED
        job = record.job
        if job is None or job.overlap is not Overlap.FORBID:
            return Reason.NONE
        if candidate.is_reopened or (candidate.is_late and job.catchup is Catchup.ALL):
            # Whoever wants all that was missed wants one after the other, not the first alone.
            return Reason.NONE
        return Reason.OVERLAP if self._is_held(record) else Reason.NONE

    def _is_held(self, record: JobRecord) -> bool:
        """Whether another launch of the job may be running, or begins in this plan."""
        if record.number in self._taken:
            return True
        if record.held_until_ms > self._now_ms:
            return True
        if not self._ended:
            return holds_slot(record, self._now_ms)
        return any(
            row.state in ACTIVE and self._ended.get(row.key, self._now_ms + 1) > self._now_ms
            for row in record.open.values()
        )

    def _may_begin(self, candidate: _Candidate, overlap: Overlap) -> bool:
        """Whether the job's overlap policy lets it begin now; `replace` makes room first (R8)."""
        if len(self._begin) >= self._view.settings.launches_max:
            return False
        if self._now_ms < candidate.not_before_ms:
            return False
        if overlap is Overlap.ALLOW:
            return True
        if overlap is Overlap.REPLACE:
            if candidate.key != self._newest[candidate.record.number]:
                self._cancel_replaced(candidate.key)
                return False
            self._replace(candidate)
        return not self._is_held(candidate.record)

    def _replace(self, candidate: _Candidate) -> None:
        """End what runs, and what waits from before, in favour of the newest."""
        for row in candidate.record.open.values():
            is_older = (row.scheduled_s, row.trigger) < candidate.key[1:]
            if not is_older or row.cancel is not Reason.NONE or row.key in self._ended:
                continue
            self._cancel_replaced(row.key)

    def _cancel_replaced(self, key: c.Key) -> None:
        if key not in self._skip:
            self._cancel[key] = c.CancelItem(key, Reason.REPLACED, "a newer launch")

    def _choose_executor(self, refused_by: int) -> int | None:
        """Return the executor with most free slots, the lowest number among equals; not the one
        that refused the launch before, as long as another has room (rule R7)."""
        if self._free <= 0:
            return None
        slots = self._slots
        if len(slots) == 1:
            return next(iter(slots))
        best = max(slots, key=lambda number: (slots[number], -number))
        if best != refused_by:
            return best
        other = max(
            (number for number in slots if number != refused_by),
            key=lambda number: (slots[number], -number),
        )
        return other if slots[other] > 0 else best
