"""Commands for a naive state, drawn by chance: mostly right, with a slip here and there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cron.job import Job, OnLost, Overlap, Retry, Schedule
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import pool
from launcher.protocol.columns import differences
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.batches import AttemptItem, BeginItem, begin_of, launched_item, lost_item, refused_item
from tests.model.naive_state import NaiveState

T = TypeVar("T")
T0 = 1_795_190_400
STEP_S = 60
"""Every job is due every minute; that is all that commands know of schedules."""
OVERLAPS = {
    "default/allow": Overlap.ALLOW,
    "default/forbid": Overlap.FORBID,
    "default/queue": Overlap.QUEUE,
    "other/tries": Overlap.ALLOW,
}
RETRIES = [
    Retry(),
    Retry(tries=2, backoff_ms=1_000, fatal_codes=(7,)),
    Retry(tries=4, backoff_ms=2_000, backoff_max_ms=5_000),
    Retry(tries=3, backoff_ms=30_000, retry_codes=(1, 75), fatal_codes=(75,)),
]
COMMAND = WorkSpec(("true",))
HANDLER = WorkSpec((), handler="billing.invoice")
NAMES = [*OVERLAPS, "default/nobody"]
ENDS = [LaunchState.SUCCEEDED, LaunchState.FAILED, LaunchState.CANCELLED] * 4 + list(LaunchState)
ENDED_BY = [
    *[Reason.NONE] * 6, Reason.KILLED, Reason.REPLACED, Reason.TIMEOUT, Reason.RAISED,
    Reason.RETRY, Reason.RETRY, Reason.FATAL, Reason.SNOOZE, Reason.SNOOZE,
]  # fmt: skip
REASONS = [Reason.DEADLINE, Reason.KILLED, Reason.NONE, Reason.REPLACED, Reason.MISSED]
SLIPS = [0] * 30 + [1, -1]
"""Added to what would be right."""


def job(
    name: str,
    deadline_s: int,
    zone: str,
    *,
    retry: Retry = RETRIES[2],
    work: WorkSpec = COMMAND,
    on_lost: OnLost = OnLost.SKIP,
    pause_after: int = 0,
) -> Job:
    return Job(
        name,
        Schedule("* * * * *", "* * * * *", zone=zone),
        work,
        OVERLAPS.get(name, Overlap.ALLOW),
        deadline_s=deadline_s,
        retry=retry,
        on_lost=on_lost,
        pause_after=pause_after,
    )


class Commands:
    """Draws commands that are right for a naive state, with a slip here and there."""

    def __init__(self, naive: NaiveState, between: Callable[[int, int], int]) -> None:
        self.naive = naive
        self.between = between

    def of(self, choices: Sequence[T] | str) -> Any:
        return choices[self.between(0, len(choices) - 1)]

    def any(self) -> c.Command:
        kinds = [
            self.put, self.account, self.account, self.account, self.begin, self.begin, self.begin,
            self.launched, self.finished, self.finished, self.refused, self.skip, self.lost,
            self.cancel, self.trigger, self.reopen, self.reopen, self.joined, self.left,
            self.paused, self.finished, self.redrive, self.redrive, self.drop_dead, self.limits,
            self.close_gate, self.lift_gates, self.drain, pool.ForgetDebts,
            self.cancel_removed, self.cancel_removed,
        ]  # fmt: skip
        command: c.Command = self.of(kinds)()
        return command

    def slip(self) -> int:
        return int(self.of(SLIPS))

    def name(self) -> str:
        return str(self.of(NAMES))

    def key(self, states: tuple[LaunchState, ...] = ()) -> c.Key:
        """The key of an open launch in one of these states if there is one, or of any."""
        keys = [key for key, one in self.naive.open.items() if not states or one.state in states]
        if keys and self.between(0, 9):
            return self.of(keys)  # type: ignore[no-any-return]
        second = T0 + STEP_S * self.between(-2, 12)
        return (self.between(1, 5), second, self.between(0, 2))

    def attempt(self, key: c.Key) -> int:
        launch = self.naive.open.get(key)
        return (launch.attempt if launch else 1) + self.slip()

    def put(self) -> c.PutJobs:
        naive = self.naive
        names = [self.name() for _ in range(self.between(0, 3))]
        jobs = tuple(self.drawn_job(name) for name in names[:2])
        horizons = [known.horizon_s for name in names if (known := naive.jobs.get(name))]
        return c.PutJobs(
            self.of(["a", "a", "a", "b"]),
            naive.catalog + self.slip(),
            max([naive.at_ms // 1000, *horizons]) + self.slip(),
            jobs,
            tuple(names[2:]),
            "anna",
            self.of("xy"),
            *self.of([(1, 1), (1, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3)]),
        )

    def removal(self) -> list[c.Command]:
        """A job is removed, and its due launches wait on."""
        live = [name for name, known in self.naive.jobs.items() if known.job is not None]
        name = self.of(live or list(self.naive.jobs))
        known = self.naive.jobs[name]
        effective_s = max(self.naive.at_ms // 1000, known.horizon_s)
        commands: list[c.Command] = []
        if effective_s > known.horizon_s:
            instants = range((known.horizon_s // STEP_S + 1) * STEP_S, effective_s + 1, STEP_S)
            due = tuple(map(c.Instants, instants))
            item = c.AccountLine((known.number,), known.revision, known.horizon_s, effective_s, due)
            commands.append(c.Account((item,)))
        put = c.PutJobs(known.source, self.naive.catalog, effective_s, (), (name,), "anna")
        return [*commands, put]

    def cancel_removed(self) -> c.Cancel:
        """Some of what waits of removed jobs, and something else."""
        gone = {known.number for known in self.naive.jobs.values() if known.job is None}
        keys = [key for key in self.naive.open if key[0] in gone][: self.of([1, 1, 2, 9])]
        return c.Cancel(
            tuple(c.CancelItem(key, Reason.NONE, "anna") for key in [*keys, self.key()])
        )

    def drawn_job(self, name: str) -> Job:
        return job(
            name,
            self.of([60, 300, 300, 0]),
            self.of("XY"),
            retry=self.of(RETRIES),
            work=self.of([COMMAND, HANDLER]),
            on_lost=self.of(list(OnLost)),
            pause_after=self.of([0, 0, 1, 2]),
        )

    def account(self) -> c.Account:
        return c.Account(tuple(self.account_line() for _ in range(self.between(1, 2))))

    def account_line(self) -> c.AccountLine:
        """All minutes of a period, each due or skipped, of one job or of several."""
        known = self.naive.jobs.get(self.name())
        numbers, from_s, local = [9], T0, -1
        if known is not None:
            level = [one for one in self.naive.jobs.values() if one.horizon_s == known.horizon_s]
            others = level[: self.between(0, 2)] if self.between(0, 1) else []
            numbers = sorted({known.number, *(one.number for one in others)})
            from_s, local = known.horizon_s, max(one.local_min for one in (known, *others))
        catalog = self.naive.catalog + self.slip()
        from_s += STEP_S * self.slip()
        to_s = from_s + self.between(1, 200)
        instants = range((from_s // STEP_S + 1) * STEP_S, to_s + 1, STEP_S)
        count = self.between(0, len(instants))
        has_local = self.of((False, True))
        times = iter(range(local + 1 + self.slip(), local + 10))
        skipped: tuple[c.Instants, ...] = ()
        if count:
            wrong = self.slip()
            local_min = next(times) if has_local else -1
            last_s = instants[count - 1]
            item = c.Instants(instants[0], local_min, False, Reason.MISSED, count + wrong, last_s)
            skipped = (item,)
        due = tuple(c.Instants(s, next(times) if has_local else -1) for s in instants[count:])
        jobs = differences(numbers)
        jobs[-1] += self.slip()
        return c.AccountLine(tuple(jobs), catalog, from_s, to_s, due, skipped)

    def begin(self) -> c.Begin:
        return begin_of(tuple(self.begin_item() for _ in range(self.between(1, 3))))

    def begin_item(self) -> BeginItem:
        key = self.key((LaunchState.DUE,))
        found = self.naive.job_of(key[0])
        launch = self.naive.open.get(key)
        return BeginItem(
            key,
            self.attempt(key) + 1,
            (found[1].revision if found else 1) + self.slip(),
            self.of([*self.naive.executors, 7]),
            (launch.deadline_ms if launch else self.naive.at_ms) + self.slip(),
        )

    def launched(self) -> c.Report:
        key = self.key((LaunchState.BEGUN,))
        return c.Report((launched_item(key, self.attempt(key), 1),))

    def finished(self) -> c.Report:
        key, attempt = self.key((LaunchState.BEGUN, LaunchState.LAUNCHED)), 0
        if self.naive.lost and self.of((False, True)):
            key, attempt = self.of(self.naive.lost)
        attempt = attempt or self.attempt(key)
        state, reason = self.of(ENDS), self.of(ENDED_BY)
        code, after_ms = self.of([0, 1, 1, 7, 75]), self.of([0, 0, 0, 500, 20_000, 400_000])
        item = AttemptItem.of(key, attempt, state, reason, code, 1, 2, retry_after_ms=after_ms)
        return c.Report((item,))

    def refused(self) -> c.Report:
        key = self.key((LaunchState.BEGUN,))
        return c.Report((refused_item(key, self.attempt(key)),))

    def skip(self) -> c.Skip:
        return c.Skip((c.SkippedItem(self.key((LaunchState.DUE,)), self.of(REASONS)),))

    def lost(self) -> c.Report:
        key = self.key((LaunchState.BEGUN, LaunchState.LAUNCHED))
        until_ms = self.naive.at_ms + self.between(-10, 100) * 1000
        return c.Report((lost_item(key, self.attempt(key), until_ms),))

    def cancel(self) -> c.Cancel:
        return c.Cancel((c.CancelItem(self.key(), self.of(REASONS), "anna"),))

    def trigger(self) -> c.Trigger:
        return c.Trigger(self.name(), f"q{self.between(0, 30)}", "anna")

    def reopen(self) -> c.Reopen:
        ended = [row for row in self.naive.rows if row[0] == "ended"]
        key, state, attempt = self.key(), self.between(0, 9), self.of(SLIPS)
        if ended and self.between(0, 4):
            row = self.of(ended[-5:])
            key = (self.naive.jobs[row[1]].number, row[2], row[5])
            state, attempt = row[7], row[6] + max(0, self.slip())
        read_at = self.naive.index - self.of([0, 0, 0, 5])
        return c.Reopen((c.ReopenItem(key, -1, int(state), attempt),), read_at, "anna")

    def joined(self) -> c.ExecutorJoined:
        name = self.of(["e1", "e2"])
        return c.ExecutorJoined(name, self.of(["l1", "l2"]), 4)

    def left(self) -> c.ExecutorLeft:
        return c.ExecutorLeft(self.between(1, 4))

    def paused(self) -> c.Command:
        if self.of((False, True)):
            until_ms = self.naive.at_ms + self.between(-10, 100) * 1000
            return c.Pause((self.name(),), "", self.of((0, max(0, until_ms))), "anna")
        return c.Resume((self.name(),), "anna")

    # ---- the pool

    def dead_keys(self) -> tuple[c.Key, ...]:
        dead = [*self.naive.dead, self.key()]
        return tuple(self.of(dead) for _ in range(self.between(1, 2)))

    def redrive(self) -> pool.Redrive:
        return pool.Redrive(self.dead_keys(), "anna")

    def redrive_and_skip(self) -> list[c.Command]:
        """Launches are redriven, and one of them is skipped before it begins."""
        keys = self.dead_keys()
        skipped = c.SkippedItem(self.of(keys), self.of(REASONS))
        return [pool.Redrive(keys, "anna"), c.Skip((skipped,))]

    def drop_dead(self) -> pool.DropDead:
        return pool.DropDead(self.dead_keys(), "anna")

    def limits(self) -> pool.SetLimits:
        tenant = self.of(["default", "other", "*", "*", ""])
        scope = (tenant, self.of(["", "", "command"]), self.of([-1, -1, -1, 0, 9, 10]))
        limits = self.of([None, *(pool.Limits(retry_budget=n) for n in (-1, 0, 1, 1, 2))])
        return pool.SetLimits((pool.LimitItem(scope, limits),), "anna")

    def close_gate(self) -> pool.CloseGate:
        until_ms = self.of([0, self.naive.at_ms + self.between(-1, 50) * 1000])
        return pool.CloseGate(pool.Gate(7, pool.GateAction.PAUSE, "", "anna", 0, max(0, until_ms)))

    def lift_gates(self) -> pool.LiftGates:
        return pool.LiftGates((self.of([*self.naive.gates, 99]),), "anna")

    def drain(self) -> pool.Drain:
        return pool.Drain(
            self.of(["e1", "e2", "e3"]), self.of(["anna", "bea"]), self.of([0, 1]) > 0
        )
