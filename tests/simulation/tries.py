"""Who counts failures: what follows each end by plain reckoning, beside what State made of it.

A failure with tries left is due again after its rest, and never before; one without, or that says
that it is fatal, is a dead letter, as is one that could not begin again in time. What is lost is
tried again where its job says so, and counts for nothing. Nothing else is due again or dead.
"""

from __future__ import annotations

from collections.abc import Callable

from cron.job import Job, OnLost
from cron.state import commands as c
from cron.state import pool as p
from cron.state.outcome import Outcome, Verdict
from cron.state.rows import Row, RowKind
from cron.state.state import State
from launcher.launch import LaunchState, Reason

Answers = tuple[bool, ...]
NEVER, ALWAYS, EITHER = (False,), (True,), (True, False)
GONE = (LaunchState.CANCELLED, LaunchState.SUCCEEDED)


class Tries:
    """Reads the log, after it was applied."""

    def __init__(self, accuse: Callable[[str, str], None]) -> None:
        self._accuse = accuse
        self._failed: dict[c.Key, int] = {}
        self._rests_ms: dict[c.Key, int] = {}  # no attempt begins before, by the log's time
        self._cancelled: dict[c.Key, None] = {}
        self._deadlines_ms: dict[c.Key, int] = {}
        self._dead: dict[c.Key, None] = {}
        self._jobs: dict[str, Job | None] = {}  # before the entry: a change of them comes last

    def restored(self, state: State) -> None:
        """The cell begins with this again: of what it forgot nothing follows."""
        self._failed = {row.key: row.tries for row in state.open_rows()}
        self._rests_ms = {key: row.not_before_ms for key, row in state.due.items()}
        self._cancelled = {key: None for key, row in state.active.items() if row.cancel}
        self._deadlines_ms = {row.key: row.deadline_ms for row in state.open_rows()}
        self._dead = dict.fromkeys(state.dead)
        self._jobs = {name: record.job for name, record in state.jobs.items()}

    def read(self, state: State, outcome: Outcome) -> None:
        """Read an entry that was accepted."""
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Cancel):
                self._cancelled.update((item.key, None) for item in _accepted(command, result))
        if any(isinstance(command, c.Recover | c.Resolve) for command in outcome.commands):
            self.restored(state)  # what was recorded of a life before is judged elsewhere
            return
        ended = [row for row in outcome.rows if row.kind is RowKind.ENDED]
        last = {(row.job, row.scheduled_s, row.trigger): row for row in ended}
        for row in ended:
            is_last = last[(row.job, row.scheduled_s, row.trigger)] is row
            self._ended(state, row, is_last=is_last)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Begin):
                for begun in _accepted(command, result):
                    self._begun(state, begun.key)
            elif isinstance(command, c.Reopen | p.Redrive | p.DropDead):
                for item in _accepted(command, result):
                    self._start_anew(item.key if isinstance(item, c.ReopenItem) else item)
            elif isinstance(command, c.PutJobs):
                self._jobs = {name: record.job for name, record in state.jobs.items()}

    def _start_anew(self, key: c.Key) -> None:
        for known in (self._failed, self._rests_ms, self._cancelled, self._dead):
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
        key = (state.jobs[row.job].number, row.scheduled_s, row.trigger)
        is_cancelled = key in self._cancelled
        self._cancelled.pop(key, None)
        again, dead = self._expected(key, row, self._jobs[row.job], is_cancelled=is_cancelled)
        if not is_last:
            return  # what followed is over as well: its job was removed, say
        told = f"{row.job}@{row.scheduled_s}#{row.attempt} {row.state.label} {row.reason.label}"
        told += f" after {self._failed.get(key, 0)} failures"
        if (key in state.due) not in again:
            self._accuse("r", f"{told}: due again is {key in state.due}")
        if (key in state.dead) not in dead:
            self._accuse("r", f"{told}: a dead letter is {key in state.dead}")
        if key in state.due and key in state.dead:
            self._accuse("r", f"{told}: due again and dead")
        if key in state.dead:
            self._dead[key] = None

    def _expected(
        self, key: c.Key, row: Row, job: Job | None, *, is_cancelled: bool
    ) -> tuple[Answers, Answers]:
        """Whether it has to be due again, and whether a dead letter."""
        if job is None or is_cancelled or row.state in GONE:
            return NEVER, NEVER
        if row.state is LaunchState.LOST:
            is_late = row.ended_at_ms >= self._deadlines_ms[key]
            may_be = job.on_lost is OnLost.RETRY and not is_late
            return EITHER if may_be else NEVER, NEVER
        has_tries = job.retry.tries > 1
        if row.state is LaunchState.SKIPPED:
            is_dead = row.reason in (Reason.DEADLINE, Reason.FENCED) and row.attempt > 0
            return NEVER, ALWAYS if has_tries and is_dead else NEVER
        failed = self._failed[key] = self._failed.get(key, 0) + 1
        if not has_tries:
            return NEVER, NEVER
        if failed >= job.retry.tries or _is_fatal(job, row):
            return NEVER, ALWAYS
        return self._after_rest(key, row, job, failed)

    def _after_rest(self, key: c.Key, row: Row, job: Job, failed: int) -> tuple[Answers, Answers]:
        rest_ms = job.retry.backoff_ms
        for _ in range(failed - 1):
            rest_ms = min(2 * rest_ms, job.retry.backoff_max_ms)
        shortest_ms, longest_ms = (row.ended_at_ms + rest_ms * n // 10 for n in (9, 11))
        self._rests_ms[key] = shortest_ms
        if shortest_ms >= self._deadlines_ms[key]:
            return NEVER, ALWAYS
        if longest_ms >= self._deadlines_ms[key]:
            return EITHER, EITHER
        return ALWAYS, NEVER

    def compare(self, state: State) -> None:
        """At the end: the dead letters are those that there have to be."""
        if state.dead.keys() != self._dead.keys():
            differing = sorted(state.dead.keys() ^ self._dead.keys())[:3]
            self._accuse("r", f"dead letters: {differing} are in one of State and the log only")


def _is_fatal(job: Job, row: Row) -> bool:
    """Whether the exit code, which nobody else brought about, says that no try will help."""
    if row.reason is not Reason.NONE:
        return False
    is_known = not job.retry.retry_codes or row.exit_code in job.retry.retry_codes
    return row.exit_code in job.retry.fatal_codes or not is_known


def _accepted(command: object, result: object) -> list[object]:
    """The items that were accepted."""
    items = getattr(command, "keys", None) or getattr(command, "items", ())
    return [
        item
        for item, verdict in zip(items, result.items, strict=True)  # type: ignore[attr-defined]
        if verdict == Verdict.ACCEPTED
    ]
