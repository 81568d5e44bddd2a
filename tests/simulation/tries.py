"""Who counts failures: what follows each end by plain reckoning, beside what State made of it.

A failure with tries left is due again after its rest, and never before; one without, or that says
that it is fatal, is a dead letter, as is one whose retry is skipped for whatever reason, or any
that was redriven or could not begin again in time. What is lost is tried again where its job says
so, and counts for nothing; else it is a dead letter, until a late report says that it succeeded. A
snooze is no try. Of a tenant that is as many retries ahead of its successes as it may be, a failure
waits until a success or another limit lets it go on, the one first that has rested first. Where a
part is fatal, all of it is. A task that ends without success by nobody's will is a dead letter.
Nothing else is due again or dead. Of a job one letter stands for all launches that ended alike.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Any

from cron.job import Job, OnLost
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import pool as p
from cron.state.launches import RESULTS
from cron.state.letters import find
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.retries import backoff_ms
from cron.state.rows import Row, RowKind
from cron.state.state import State
from cron.state.tasks import CancelTasks
from launcher.protocol.names import TASK_MARK, split_job_name
from launcher.protocol.status import Reason
from tests.batches import answered

Answers = tuple[bool, ...]
Two = tuple[Answers, Answers]
Kind = tuple[int, LaunchState, Reason]
"""The number of a job, and how its launches ended that have one letter."""
NEVER, ALWAYS, EITHER = (False,), (True,), (True, False)
FAILED, LOST = LaunchState.FAILED, LaunchState.LOST
RETRY_MILLI, SUCCESS_MILLI = 1_000, 100
SNOOZE_MS = 1_000
STOPPED = (Reason.PAUSED, Reason.GATED)
"""Why a person stops what has not begun."""


class Tries:
    """Reads the log, after it was applied."""

    def __init__(self, accuse: Callable[[str, str], None]) -> None:
        self._accuse = accuse
        self._failed: dict[c.Key, int] = {}
        self._rests_ms: dict[c.Key, int] = {}  # no attempt begins before, by the log's time
        self._cancelled: dict[c.Key, None] = {}
        self._deadlines_ms: dict[c.Key, int] = {}
        self._dead: dict[c.Key, Kind] = {}
        self._redriven: dict[c.Key, None] = {}
        self._jobs: dict[str, Job | None] = {}  # before the entry: a change of them comes last
        self._asked_ms: dict[tuple[c.Key, int, int], int] = {}  # rests that parts asked for
        self._spent: dict[str, int] = {}  # of tenants' budgets, in thousandths of retries
        self._is_resolving = False  # then nobody knows what was tried again before
        self._unpaid: dict[str, list[tuple[int, c.Key]]] = {}  # by tenant: who waits for a retry
        self._is_unsure = False  # what the budgets are, in this entry

    def restored(self, state: State) -> None:
        """The cell begins with this again: of what it forgot nothing follows."""
        self._failed = {row.key: row.tries for row in state.open_rows()}
        self._rests_ms = {key: row.not_before_ms for key, row in state.due.items()}
        self._cancelled = {key: None for key, row in state.active.items() if row.cancel}
        self._deadlines_ms = {row.key: row.deadline_ms for row in state.open_rows()}
        self._dead = all_dead(state)
        self._redriven = {row.key: None for row in state.open_rows() if row.is_redriven}
        self._jobs = {name: record.job for name, record in state.jobs.items()}
        self._asked_ms.clear()
        self._take_over_budgets(state)

    def _take_over_budgets(self, state: State) -> None:
        self._spent = dict(state.budgets)
        self._unpaid = {tenant: [*mine] for tenant, mine in state.unpaid.items()}

    def read(self, state: State, outcome: Outcome) -> None:
        """Read an entry that was accepted."""
        self._listen(state, outcome)
        self._is_resolving = state.is_resolving
        if any(isinstance(command, c.Recover | c.Resolve) for command in outcome.commands):
            self.restored(state)  # what was recorded of a life before is judged elsewhere
            return
        for row in filter(_is_late_report, outcome.rows):
            self._amended(state, row)
        ended = [row for row in outcome.rows if row.kind is RowKind.ENDED]
        last = {(row.job, row.scheduled_s, row.trigger): row for row in ended}
        for row in ended:
            is_last = last[(row.job, row.scheduled_s, row.trigger)] is row
            self._ended(state, row, is_last=is_last)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            for begun in _accepted(command, result) if isinstance(command, c.Begin) else ():
                self._wait_no_more(begun.key)
        self._compare_budgets(state)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Begin):
                for begun in _accepted(command, result):
                    self._begun(state, begun.key)
            elif isinstance(command, c.Reopen | p.Redrive | p.DropDead):
                self._asked_for(state, command, _accepted(command, result))
            elif isinstance(command, c.PutJobs):
                self._jobs = {name: record.job for name, record in state.jobs.items()}

    def _asked_for(
        self, state: State, command: c.Reopen | p.Redrive | p.DropDead, items: list[Any]
    ) -> None:
        """What people launch again, or forget."""
        for item in items:
            key = item.key if isinstance(item, c.ReopenItem) else item
            if isinstance(command, p.DropDead):
                self._dropped(state, key)
            self._start_anew(key)
            if isinstance(command, p.Redrive):
                self._redriven[key] = None

    def _listen(self, state: State, outcome: Outcome) -> None:
        """What is said in an entry that counts for the ends in it."""
        unsure = p.SetLimits | p.ForgetDebts | c.ResetClock
        self._is_unsure = any(isinstance(command, unsure) for command in outcome.commands)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Cancel):
                self._cancelled.update((item.key, None) for item in _accepted(command, result))
            elif isinstance(command, CancelTasks):
                records = filter(None, map(state.record_of, command.names))
                rows = [row for record in records for row in record.open.values()]
                self._cancelled.update((row.key, None) for row in rows if row.cancel)
            elif isinstance(command, c.Report):
                ends = (item for item in _accepted(command, result) if item.state in RESULTS)
                for item in ends:
                    self._asked_ms[item.key, item.attempt, item.part] = item.retry_after_ms

    def _amended(self, state: State, row: Row) -> None:
        """What was lost has a late report: it is dead no more, or for another reason."""
        record = state.record_of(row.job)
        key = (record.number if record is not None else 0, row.scheduled_s, row.trigger)
        known = self._dead.get(key)
        if record is None or known is None or known[1] is not LOST or row.state is LOST:
            return
        letter = find(record, key[1:])
        if letter is None:
            del self._dead[key]
        elif letter[0].state is LOST and letter[1] == row.attempt:
            self._accuse("r", f"{row.job}@{row.scheduled_s} is dead as lost, and {row.state.label}")
        else:
            self._dead[key] = (key[0], letter[0].state, letter[0].reason)

    def _dropped(self, state: State, key: c.Key) -> None:
        """A letter was forgotten, with all that it stood for."""
        kind, record = self._dead.get(key), state.by_number.get(key[0])
        if record is not None and not record.task:
            for other in [one for one, its in self._dead.items() if its == kind]:
                self._start_anew(other)

    def _start_anew(self, key: c.Key) -> None:
        for known in (self._failed, self._rests_ms, self._cancelled, self._dead, self._redriven):
            known.pop(key, None)

    def _begun(self, state: State, key: c.Key) -> None:
        row, name = state.active[key], state.launch_name(key)
        self._deadlines_ms[key] = row.deadline_ms
        early_ms = self._rests_ms.get(key, 0) - state.at_ms
        if early_ms > 0:
            self._accuse("r", f"{name}#{row.attempt} was begun {early_ms} ms before its rest ends")
        if key in self._dead:
            self._accuse("r", f"{name}#{row.attempt} was begun, and is a dead letter")

    def _ended(self, state: State, row: Row, *, is_last: bool) -> None:
        record = state.record_of(row.job)
        if record is None:
            return  # a task that never had a launch
        key = (record.number, row.scheduled_s, row.trigger)
        is_cancelled = key in self._cancelled
        self._cancelled.pop(key, None)
        self._wait_no_more(key)
        job = record.job if record.task else self._jobs[row.job]
        again, dead = self._expected(key, row, job, is_cancelled=is_cancelled)
        tenant, _ = split_job_name(row.job)
        if row.state is LaunchState.SUCCEEDED:
            self._spent[tenant] = max(0, self._spent.get(tenant, 0) - SUCCESS_MILLI)
            self._release(state, tenant)
        if True in again and row.state is FAILED:
            if not is_last:
                self._is_unsure = True
            elif False not in again or key in state.due:
                again, dead = self._pay(state, tenant, (key, row, job), (again, dead))
        if not is_last:
            return  # what followed is over as well: its job was removed, say
        told = f"{row.job}@{row.scheduled_s}#{row.attempt} {row.state.label} {row.reason.label}"
        told += f" after {self._failed.get(key, 0)} failures"
        if (key in state.due) not in again:
            self._accuse("r", f"{told}: due again is {key in state.due}")
        letter = find(record, key[1:])
        if (letter is not None) not in dead:
            self._accuse("r", f"{told}: a dead letter is {letter is not None}")
        if key in state.due and letter is not None:
            self._accuse("r", f"{told}: due again and dead")
        if row.state is LOST and again is EITHER and key not in state.due and letter is None:
            self._accuse("r", f"{told}: neither due again nor dead")
        if letter is not None:
            self._dead[key] = (key[0], letter[0].state, letter[0].reason)

    def _expected(
        self, key: c.Key, row: Row, job: Job | None, *, is_cancelled: bool
    ) -> tuple[Answers, Answers]:
        """Whether it has to be due again, and whether a dead letter."""
        is_snooze = row.state is LaunchState.CANCELLED and row.reason is Reason.SNOOZE
        if job is None or is_cancelled:
            return NEVER, NEVER
        has_tries = job.retry.tries > 1 or bool(job.work.handler)
        if row.state is LOST:
            is_late = row.ended_at_ms >= self._deadlines_ms[key]
            may_be = job.on_lost is OnLost.RETRY and not is_late and not _is_fatal(job, row)
            return (EITHER, EITHER) if may_be else (NEVER, ALWAYS)
        if row.state is LaunchState.SKIPPED:
            is_late = row.reason in (Reason.DEADLINE, Reason.FENCED)
            has_failed = self._failed.get(key, 0) > 0 or key in self._redriven
            is_dead = has_tries and row.attempt > 0 and (is_late or has_failed)
            if TASK_MARK in row.job and row.reason not in STOPPED:
                is_dead = True
            return NEVER, ALWAYS if is_dead or key in self._redriven else NEVER
        if row.reason is Reason.PREDECESSOR:  # by nobody's will: else it has no job
            return NEVER, ALWAYS
        if row.state is FAILED:
            self._failed[key] = self._failed.get(key, 0) + 1
        elif not is_snooze:
            return NEVER, NEVER
        has_tries = has_tries or (row.state is FAILED and key in self._redriven)
        if not has_tries and row.reason not in (Reason.RETRY, Reason.SNOOZE):
            return NEVER, NEVER
        is_last = self._failed.get(key, 0) >= job.retry.tries or _is_fatal(job, row)
        if (row.state is FAILED and is_last) or (
            self._is_resolving and job.on_lost is not OnLost.RETRY
        ):
            return NEVER, ALWAYS
        return self._after_rest(key, row, *self._rest_ms(key, row, job))

    def _rest_ms(self, key: c.Key, row: Row, job: Job) -> tuple[int, int]:
        """The shortest rest and the longest."""
        parts = [number for number, part in enumerate(row.parts, 1) if part.state is row.state]
        asked = [self._asked_ms.get((key, row.attempt, part), 0) for part in parts or [1]]
        if row.state is not FAILED:
            return (max(*asked, SNOOZE_MS),) * 2
        if max(asked) > 0:
            return (max(asked),) * 2
        rest_ms = job.retry.backoff_ms
        for _ in range(self._failed[key] - 1):
            rest_ms = min(2 * rest_ms, job.retry.backoff_max_ms)
        return rest_ms, rest_ms * 11 // 10

    def _after_rest(
        self, key: c.Key, row: Row, shortest_ms: int, longest_ms: int
    ) -> tuple[Answers, Answers]:
        self._rests_ms[key] = row.ended_at_ms + shortest_ms
        if row.ended_at_ms + shortest_ms >= self._deadlines_ms[key]:
            return NEVER, ALWAYS
        if row.ended_at_ms + longest_ms >= self._deadlines_ms[key]:
            return EITHER, EITHER
        return ALWAYS, NEVER

    # ---- budgets

    def _pay(
        self, state: State, tenant: str, failed: tuple[c.Key, Row, Job | None], answers: Two
    ) -> Two:
        """A retry costs, where its tenant has a budget; without one it waits for one."""
        key, row, job = failed
        if not self._is_unsure and job is not None and not self._pays(state, tenant):
            rested_ms = row.ended_at_ms + self._drawn_ms(state, key, row, job)
            insort(self._unpaid.setdefault(tenant, []), (max(rested_ms, 1), key))
        return answers

    def _drawn_ms(self, state: State, key: c.Key, row: Row, job: Job) -> int:
        """Its rest. Where it lies in the tenth above the shortest is the hash's matter, no rule."""
        shortest_ms, longest_ms = self._rest_ms(key, row, job)
        if shortest_ms == longest_ms:
            return shortest_ms
        name = f"{state.launch_name(key)}#{row.attempt}"
        return min(max(backoff_ms(job.retry, self._failed[key], name), shortest_ms), longest_ms)

    def _pays(self, state: State, tenant: str) -> bool:
        limits = state.limits.get((tenant, "", -1)) or state.limits.get(("*", "", -1))
        if limits is None or not limits.retry_budget:
            return True
        spent = self._spent.get(tenant, 0) + RETRY_MILLI
        if spent > limits.retry_budget * RETRY_MILLI:
            return False
        self._spent[tenant] = spent
        return True

    def _release(self, state: State, tenant: str) -> None:
        """Whoever waits for a retry goes on, as far as there are any."""
        waiting = self._unpaid.get(tenant, [])
        while waiting and self._pays(state, tenant):
            del waiting[0]

    def _wait_no_more(self, key: c.Key) -> None:
        for waiting in self._unpaid.values():
            waiting[:] = [one for one in waiting if one[1] != key]

    def _compare_budgets(self, state: State) -> None:
        mine = {tenant: spent for tenant, spent in self._spent.items() if spent}
        if not self._is_unsure and mine != state.budgets:
            self._accuse("r", f"tenants have spent {state.budgets} of their budgets, not {mine}")
        waiting = {tenant: some for tenant, some in self._unpaid.items() if some}
        if not self._is_unsure and waiting != state.unpaid:
            self._accuse("r", f"for a retry wait {state.unpaid}, and should {waiting}")
        self._take_over_budgets(state)

    def compare(self, state: State) -> None:
        """At the end: the dead letters are those that there have to be. A letter that stands for
        many launches does not know all of them by name."""
        stand = all_dead(state)
        has_more = any(
            one.count > len(one.others) + 1
            for record in state.by_number.values()
            for one in record.repeats.values()
        )
        differing = stand.keys() - self._dead.keys()
        if not has_more:
            differing |= self._dead.keys() - stand.keys()
        if differing:
            first = sorted(differing)[:3]
            self._accuse("r", f"dead letters: {first} are in one of State and the log only")


def _is_late_report(row: Row) -> bool:
    return row.kind is RowKind.AMENDMENT


def all_dead(state: State) -> dict[c.Key, Kind]:
    """The launches for which letters stand, as far as they are known by name."""
    found: dict[c.Key, Kind] = {}
    for number, record in state.by_number.items():
        for place, letter in record.dead.items():
            known = record.repeats.get(place)
            places = [one.place for one in known.others] if known is not None else []
            kind = (number, letter.state, letter.reason)
            found |= {(number, *one): kind for one in (*places, place)}
    return found


def _is_fatal(job: Job, row: Row) -> bool:
    """Whether the launch, or a part of it, said that no try will help: by its word, or by an exit
    code that nobody else brought about."""
    return any(
        one.state is FAILED
        and (
            one.reason is Reason.FATAL
            or (one.reason is Reason.NONE and one.exit_code in job.retry.fatal_codes)
            or (one.reason is Reason.NONE and not _is_worth_it(job, one.exit_code))
        )
        for one in (row.parts or (row,))
    )


def _is_worth_it(job: Job, exit_code: int) -> bool:
    return not job.retry.retry_codes or exit_code in job.retry.retry_codes


def _accepted(command: Any, result: Result) -> list[Any]:
    """The items that were accepted."""
    if isinstance(command, c.Begin | c.Report):
        return [item for item, verdict in answered(command, result) if verdict == Verdict.ACCEPTED]
    items: Any = getattr(command, "keys", None) or getattr(command, "items", ())
    return [
        item
        for item, verdict in zip(items, result.items, strict=True)
        if verdict == Verdict.ACCEPTED
    ]
