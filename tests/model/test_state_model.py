"""The machine against the naive state: random commands, right, wrong, old, repeated, reordered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cron.job import Job, Overlap, Schedule
from cron.state import commands as c
from cron.state.codec import decode_entry, encode_entry
from cron.state.image import decode_state, encode_state
from cron.state.machine import Machine
from cron.state.outcome import Outcome, Verdict
from cron.state.rows import Row, RowKind
from launcher.launch import LaunchState, Reason
from launcher.work import Epoch, WorkSpec
from tests.model.naive_state import NaiveState

T = TypeVar("T")
T0 = 1_795_190_400
STEP_S = 60
"""Every job is due every minute; that is all that commands know of schedules."""
OVERLAPS = {
    "default/allow": Overlap.ALLOW,
    "default/forbid": Overlap.FORBID,
    "default/queue": Overlap.QUEUE,
}
NAMES = [*OVERLAPS, "default/nobody"]
KINDS = {RowKind.ENDED: "ended", RowKind.RANGE: "range", RowKind.AMENDMENT: "amendment"}
ENDS = [LaunchState.SUCCEEDED, LaunchState.FAILED, LaunchState.CANCELLED] * 4 + list(LaunchState)
REASONS = [Reason.KILLED, Reason.NONE, Reason.REPLACED, Reason.MISSED]
SLIPS = [0] * 30 + [1, -1]
"""Added to what would be right."""


def job(name: str, deadline_s: int, zone: str) -> Job:
    schedule = Schedule("* * * * *", "* * * * *", zone=zone)
    overlap = OVERLAPS.get(name, Overlap.ALLOW)
    return Job(name, schedule, WorkSpec(("true",)), overlap, deadline_s=deadline_s)


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
            self.paused,
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
        return (self.between(1, 4), second, self.between(0, 2))

    def attempt(self, key: c.Key) -> int:
        launch = self.naive.open.get(key)
        return (launch.attempt if launch else 1) + self.slip()

    def put(self) -> c.PutJobs:
        naive = self.naive
        names = [self.name() for _ in range(self.between(0, 3))]
        jobs = tuple(job(name, self.of([60, 300, 0]), self.of("XY")) for name in names[:2])
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

    def account(self) -> c.Account:
        return c.Account(tuple(self.account_item() for _ in range(self.between(1, 2))))

    def account_item(self) -> c.AccountItem:
        """All minutes of a period, each due or skipped."""
        known = self.naive.jobs.get(self.name())
        number, from_s, revision, local = 9, T0, 1, -1
        if known is not None:
            number, from_s, revision = known.number, known.horizon_s, known.revision
            local = known.local_min
        from_s += STEP_S * self.slip()
        to_s = from_s + self.between(1, 200)
        instants = range((from_s // STEP_S + 1) * STEP_S, to_s + 1, STEP_S)
        count = self.between(0, len(instants))
        has_local = self.of((False, True))
        times = iter(range(local + 1 + self.slip(), local + 10))
        skipped: tuple[c.SkipItem, ...] = ()
        if count:
            wrong = self.slip()
            local_min = next(times) if has_local else -1
            last_s = instants[count - 1]
            item = c.SkipItem(instants[0], last_s, count + wrong, Reason.MISSED, local_min)
            skipped = (item,)
        due = tuple(c.DueItem(s, next(times) if has_local else -1) for s in instants[count:])
        return c.AccountItem(number, revision + self.slip(), from_s, to_s, due, skipped)

    def begin(self) -> c.Begin:
        return c.Begin(tuple(self.begin_item() for _ in range(self.between(1, 3))))

    def begin_item(self) -> c.BeginItem:
        key = self.key((LaunchState.DUE,))
        found = self.naive.job_of(key[0])
        launch = self.naive.open.get(key)
        return c.BeginItem(
            key,
            self.attempt(key) + 1,
            (found[1].revision if found else 1) + self.slip(),
            self.of([*self.naive.executors, 7]),
            (launch.deadline_ms if launch else self.naive.at_ms) + self.slip(),
        )

    def launched(self) -> c.Launched:
        key = self.key((LaunchState.BEGUN,))
        return c.Launched((c.LaunchedItem(key, self.attempt(key), 1),))

    def finished(self) -> c.Finished:
        key, attempt = self.key((LaunchState.BEGUN, LaunchState.LAUNCHED)), 0
        if self.naive.lost and self.of((False, True)):
            key, attempt = self.of(self.naive.lost)
        attempt = attempt or self.attempt(key)
        state, reason = self.of(ENDS), self.of(REASONS)
        return c.Finished((c.FinishedItem(key, attempt, state, reason, 0, 1, 2),))

    def refused(self) -> c.Refused:
        key = self.key((LaunchState.BEGUN,))
        return c.Refused((c.RefusedItem(key, self.attempt(key)),))

    def skip(self) -> c.Skip:
        return c.Skip((c.SkippedItem(self.key((LaunchState.DUE,)), self.of(REASONS)),))

    def lost(self) -> c.Lost:
        key = self.key((LaunchState.BEGUN, LaunchState.LAUNCHED))
        until_ms = self.naive.at_ms + self.between(-10, 100) * 1000
        return c.Lost((c.LostItem(key, self.attempt(key), until_ms),))

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
            return c.Pause((self.name(),), "", 0, "anna")
        return c.Resume((self.name(),), "anna")


class StateAgainstNaive(RuleBasedStateMachine):
    """Two machines, one of which is restored from its image now and then, and the naive state."""

    def __init__(self) -> None:
        super().__init__()
        self.machine, self.twin, self.naive = Machine(), Machine(), NaiveState()
        self.log: list[bytes] = []
        self.index = 0
        self.rows: list[Row] = []
        self.now_ms = T0 * 1000

    def feed(self, entry: bytes) -> None:
        self.log.append(entry)
        self.index += 1
        outcome = self.machine.apply(1, self.index, entry)
        assert self.twin.apply(1, self.index, entry) == outcome
        self.rows += outcome.rows
        self.compare(outcome, self.naive.apply(self.index, decode_entry(entry)))

    def compare(self, outcome: Outcome, answers: Any) -> None:
        if answers is None:
            assert outcome.verdict is Verdict.STALE_EPOCH
            return
        assert outcome.verdict is Verdict.ACCEPTED
        for result, (objections, items) in zip(outcome.results, answers, strict=True):
            assert result.verdict in (objections or {Verdict.ACCEPTED}), outcome
            assert len(result.items) == len(items)
            for verdict, item in zip(result.items, items, strict=True):
                assert verdict in (item or {Verdict.ACCEPTED}), outcome

    def append(self, *commands: c.Command, epoch: Epoch | None = None) -> None:
        self.feed(encode_entry(self.now_ms, epoch or self.naive.epoch, commands))

    @initialize()
    def begin_with_jobs(self) -> None:
        self.append(c.Claim(), epoch=Epoch(1, 1, "r1"))
        jobs = tuple(job(name, 300, "X") for name in OVERLAPS)
        self.append(c.PutJobs("a", 0, T0, jobs))
        self.append(c.ExecutorJoined("e1", "l1", 4))

    def drawn(self, data: st.DataObject) -> Commands:
        return Commands(self.naive, lambda low, high: data.draw(st.integers(low, high)))

    @rule(data=st.data(), count=st.integers(1, 3))
    def command(self, data: st.DataObject, count: int) -> None:
        commands = self.drawn(data)
        self.append(*(commands.any() for _ in range(count)))

    @rule(seconds=st.integers(-100, 200))
    def time(self, seconds: int) -> None:
        self.now_ms += seconds * 1000

    @rule(term=st.integers(0, 4), replica=st.sampled_from(["r1", "r2"]))
    def claim(self, term: int, replica: str) -> None:
        self.append(c.Claim(), epoch=Epoch(1, term, replica))

    @rule(data=st.data(), term=st.integers(0, 5))
    def command_of_another_epoch(self, data: st.DataObject, term: int) -> None:
        self.append(self.drawn(data).any(), epoch=Epoch(1, term, "r1"))

    @rule(data=st.data())
    def an_old_entry_again(self, data: st.DataObject) -> None:
        self.feed(data.draw(st.sampled_from(self.log)))

    @rule()
    def restart(self) -> None:
        """From a snapshot, as if nothing had been."""
        self.twin = Machine(decode_state(encode_state(self.twin.state)))

    # ---- what holds at all times

    @invariant()
    def both_machines_hold_the_same(self) -> None:
        assert self.machine.state.digest == self.twin.state.digest
        assert encode_state(self.machine.state) == encode_state(self.twin.state)

    @invariant()
    def open_launches_are_the_same(self) -> None:
        state = self.machine.state
        actual = {
            row.key: (row.state, row.attempt, row.deadline_ms, row.cancel)
            for row in state.open_rows()
        }
        assert actual == {
            key: (one.state, one.attempt, one.deadline_ms, one.cancel)
            for key, one in self.naive.open.items()
        }
        by_executor = {key: number for number, one in state.executors.items() for key in one.open}
        assert by_executor == {
            key: one.executor
            for key, one in self.naive.open.items()
            if one.state is not LaunchState.DUE
        }

    @invariant()
    def history_is_the_same(self) -> None:
        actual = [
            (
                KINDS[row.kind], row.job, row.scheduled_s, row.last_s, row.count, row.trigger,
                row.attempt, row.state, row.reason,
            )
            for row in self.rows
        ]  # fmt: skip
        assert actual == self.naive.rows
        assert list(self.machine.state.recent.rows_after(0)) == self.rows

    @invariant()
    def jobs_are_the_same(self) -> None:
        actual = [
            (name, one.number, one.revision, one.horizon_s, one.job, one.paused is not None)
            for name, one in self.machine.state.jobs.items()
        ]
        assert actual == [
            (name, one.number, one.revision, one.horizon_s, one.job, one.paused)
            for name, one in self.naive.jobs.items()
        ]

    @invariant()
    def every_accounted_instant_has_one_row_and_one_more_for_each_reopening(self) -> None:  # R1
        found: Counter[tuple[str, int]] = Counter()
        for row in self.rows:
            if row.kind is not RowKind.AMENDMENT and not row.trigger:
                for second in range(row.scheduled_s, row.last_s + 1, STEP_S):
                    found[row.job, second] += 1
        by_number = {one.number: name for name, one in self.naive.jobs.items()}
        for number, second, trigger in self.naive.open:
            if not trigger:
                found[by_number[number], second] += 1
        for number, second, trigger in self.naive.reopened:
            if not trigger:
                found[by_number[number], second] -= 1
        expected: Counter[tuple[str, int]] = Counter()
        for name, one in self.naive.jobs.items():
            for from_s, to_s in one.accounted:
                first_s = (from_s // STEP_S + 1) * STEP_S
                expected.update((name, second) for second in range(first_s, to_s + 1, STEP_S))
        assert set(expected.values()) <= {1}
        before_the_job = {key for key, count in found.items() if count == 0}
        assert +found == expected, before_the_job

    @invariant()
    def an_attempt_ends_at_most_once(self) -> None:
        ends = Counter(
            (row.job, row.scheduled_s, row.trigger, row.attempt)
            for row in self.rows
            if row.kind is RowKind.ENDED and row.begun_index
        )
        # A reader that lies about the last attempt may reopen it under an old number; R1 leaves
        # that to the leader, who reads history at an index.
        lied = {(key[0], key[1], key[2]) for key in self.naive.reopened}
        numbers = {name: one.number for name, one in self.naive.jobs.items()}
        for (name, second, trigger, _), count in ends.items():
            assert count == 1 or (numbers[name], second, trigger) in lied

    @invariant()
    def no_two_launches_overlap_unless_they_may(self) -> None:  # promise 5
        for record in self.machine.state.jobs.values():
            if OVERLAPS.get(record.name, Overlap.ALLOW) is not Overlap.ALLOW:
                running = [row for row in record.open.values() if row.state is not LaunchState.DUE]
                assert len(running) <= 1


StateAgainstNaive.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestStateAgainstNaive = StateAgainstNaive.TestCase


@pytest.mark.parametrize("seed", range(40))
def test_long_runs_agree_as_well(seed: int) -> None:
    """A long way with few mistakes: what hypothesis seldom walks."""
    chance = Random(seed)
    world = StateAgainstNaive()
    world.begin_with_jobs()
    commands = Commands(world.naive, chance.randint)
    for step in range(150):
        event = chance.random()
        if event < 0.04:
            world.claim(chance.randint(1, 9), "r1")
        elif event < 0.08:
            world.feed(chance.choice(world.log))
        elif event < 0.12:
            world.restart()
        elif event < 0.25:
            world.time(chance.randint(-20, 60))
        else:
            world.append(*(commands.any() for _ in range(chance.randint(1, 3))))
        if step % 10 == 0:
            for check in CHECKS:
                check(world)
    for check in CHECKS:
        check(world)


CHECKS: list[Callable[[StateAgainstNaive], None]] = [
    StateAgainstNaive.both_machines_hold_the_same,
    StateAgainstNaive.open_launches_are_the_same,
    StateAgainstNaive.history_is_the_same,
    StateAgainstNaive.jobs_are_the_same,
    StateAgainstNaive.every_accounted_instant_has_one_row_and_one_more_for_each_reopening,
    StateAgainstNaive.an_attempt_ends_at_most_once,
    StateAgainstNaive.no_two_launches_overlap_unless_they_may,
]
