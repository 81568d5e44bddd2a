"""The machine against the naive state: random commands, right, wrong, old, repeated, reordered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cron.job import Overlap
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import letters, retries
from cron.state.archive import stream_of
from cron.state.codec import decode_entry, encode_entry
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.letters import LETTERS
from cron.state.machine import Machine
from cron.state.outcome import Outcome, Verdict
from cron.state.rows import Row, RowKind
from launcher.protocol.work import Epoch
from tests.batches import answered
from tests.drawn import MODEL_EXAMPLES, seeds
from tests.model.drawn_commands import OVERLAPS, STEP_S, T0, Commands, job
from tests.model.naive_state import NaiveState
from tests.states import ended_rows
from tests.unit.state_rig import open_on, running_in

KINDS = {RowKind.ENDED: "ended", RowKind.RANGE: "range", RowKind.AMENDMENT: "amendment"}


class StateAgainstNaive(RuleBasedStateMachine):
    """Two machines, one of which is restored from its image now and then, and the naive state."""

    def __init__(self) -> None:
        super().__init__()
        self.machine, self.duplicate_id, self.naive = Machine(), Machine(), NaiveState()
        self.log: list[bytes] = []
        self.index = 0
        self.rows: list[Row] = []
        self.now_ms = T0 * 1000

    def feed(self, entry: bytes) -> None:
        self.log.append(entry)
        self.index += 1
        outcome = self.machine.apply(1, self.index, entry)
        assert self.duplicate_id.apply(1, self.index, entry) == outcome
        self.rows += outcome.rows
        self.compare(outcome, self.naive.apply(self.index, decode_entry(entry)))

    def compare(self, outcome: Outcome, answers: Any) -> None:
        if answers is None:
            assert outcome.verdict is Verdict.STALE_EPOCH
            return
        assert outcome.verdict is Verdict.ACCEPTED
        pairs = zip(outcome.commands, outcome.results, answers, strict=True)
        for command, result, (objections, items) in pairs:
            assert result.verdict in (objections or {Verdict.ACCEPTED}), outcome
            verdicts: Sequence[int] = result.items
            if isinstance(command, c.Begin):
                verdicts = [verdict for _, verdict in answered(command, result)]
            assert len(verdicts) == len(items)
            for verdict, item in zip(verdicts, items, strict=True):
                assert verdict in (item or {Verdict.ACCEPTED}), outcome

    def append(self, *commands: c.Command, epoch: Epoch | None = None) -> None:
        self.feed(encode_entry(self.now_ms, epoch or self.naive.epoch, commands))

    @initialize()
    def begin_with_jobs(self) -> None:
        self.append(c.Claim(format=self.naive.format), epoch=Epoch(1, 1, "r1"))
        jobs = tuple(job(name, 300, "X", pause_after=2) for name in OVERLAPS)
        self.append(c.PutJobs("a", 0, T0, jobs))
        self.append(c.ExecutorJoined("e1", "l1", 4))

    def drawn(self, data: st.DataObject) -> Commands:
        return Commands(self.naive, lambda low, high: data.draw(st.integers(low, high)))

    @rule(data=st.data(), count=st.integers(1, 3))
    def command(self, data: st.DataObject, count: int) -> None:
        commands = self.drawn(data)
        self.append(*(commands.any() for _ in range(count)))

    @rule(data=st.data())
    def a_job_is_removed_and_its_due_launches_wait_on(self, data: st.DataObject) -> None:
        self.append(*self.drawn(data).removal())

    @rule(data=st.data())
    def a_redriven_launch_is_skipped(self, data: st.DataObject) -> None:
        self.append(*self.drawn(data).redrive_and_skip())

    @rule(seconds=st.integers(-100, 200))
    def time(self, seconds: int) -> None:
        self.now_ms += seconds * 1000

    @rule(term=st.integers(0, 4), replica=st.sampled_from(["r1", "r2"]))
    def claim(self, term: int, replica: str) -> None:
        self.append(c.Claim(format=c.FORMAT), epoch=Epoch(1, term, replica))

    @rule(data=st.data(), term=st.integers(0, 5))
    def command_of_another_epoch(self, data: st.DataObject, term: int) -> None:
        self.append(self.drawn(data).any(), epoch=Epoch(1, term, "r1"))

    @rule(data=st.data())
    def an_old_entry_again(self, data: st.DataObject) -> None:
        self.feed(data.draw(st.sampled_from(self.log)))

    @rule()
    def restart(self) -> None:
        """From a snapshot, as if nothing had been."""
        self.duplicate_id = Machine(decode_state([encode_state(self.duplicate_id.state)]))

    # ---- what holds at all times

    @invariant()
    def both_machines_hold_the_same(self) -> None:
        assert self.machine.state.digest == self.duplicate_id.state.digest
        assert encode_state(self.machine.state) == encode_state(self.duplicate_id.state)

    @invariant()
    def open_launches_are_the_same(self) -> None:
        state = self.machine.state
        actual = {
            row.key: (
                row.state, row.attempt, row.deadline_ms, row.cancel, row.not_before_ms, row.tries,
                row.unpaid_ms,
            )
            for row in state.open_rows()
        }  # fmt: skip
        assert actual == {
            key: (
                one.state, one.attempt, one.deadline_ms, one.cancel, one.not_before_ms, one.tries,
                one.unpaid_ms,
            )
            for key, one in self.naive.open.items()
        }  # fmt: skip
        by_executor = {
            key: number for number, one in state.executors.items() for key in open_on(one)
        }
        assert by_executor == {
            key: one.executor
            for key, one in self.naive.open.items()
            if one.state is not LaunchState.DUE
        }

    @invariant()
    def what_runs_is_counted(self) -> None:
        for state in (self.machine.state, self.duplicate_id.state):
            assert state.running == running_in(state)

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
        # Within one entry the tails say nothing of the order between them.
        ordered = sorted(self.rows, key=lambda row: (row.ended_index, stream_of(row)))
        assert ended_rows(self.machine.state.history) == ordered

    @invariant()
    def jobs_are_the_same(self) -> None:
        actual = [
            (
                name,
                one.number,
                one.revision,
                one.horizon_s,
                one.job,
                one.paused and one.paused.until_ms,
                one.failed_in_a_row,
            )
            for name, one in self.machine.state.jobs.items()
        ]
        assert actual == [
            (name, one.number, one.revision, one.horizon_s, one.job, one.paused, one.failed)
            for name, one in self.naive.jobs.items()
        ]

    @invariant()
    def dead_letters_are_the_same(self) -> None:
        state, naive = self.machine.state, self.naive
        found = {
            key: (one.attempt, one.tries, one.state, one.reason) for key, one in state.dead.items()
        }
        expected = {key: naive.dead[key] for key in naive.groups()}
        assert found == {
            key: (one.attempt, one.tries, one.state, one.reason) for key, one in expected.items()
        }
        stand_for = {
            (number, *place): (
                one.count,
                (number, one.first_s, one.first_trigger),
                [(number, *other.place) for other in one.others],
            )
            for number, record in state.by_number.items()
            for place, one in record.repeats.items()
        }
        many = {key: keys for key, keys in naive.groups().items() if len(keys) > 1}
        assert {key: (count, others) for key, (count, _, others) in stand_for.items()} == {
            key: (len(keys), keys[:-1]) for key, keys in many.items()
        }
        assert all(first <= min(many[key]) for key, (_, first, _) in stand_for.items())
        assert not naive.dead.keys() & naive.open.keys()
        serials = [(one.ended_index, one.number) for one in state.dead.values()]
        assert len(set(serials)) == len(serials)
        if naive.format < LETTERS:  # of too many the oldest goes
            assert list(found) == list(expected)
            assert serials == sorted(serials)

    @invariant()
    def the_pool_is_the_same(self) -> None:
        state = self.machine.state
        assert state.limits == self.naive.limits
        assert {one.number: one.until_ms for one in state.gates.values()} == self.naive.gates
        drained = {n: one.drained_by for n, one in state.executors.items() if one.drained_by}
        assert drained == self.naive.drained
        spent = {tenant: Fraction(milli, 1000) for tenant, milli in state.budgets.items()}
        assert spent == {tenant: one for tenant, one in self.naive.retries_spent.items() if one}
        waiting = [key for mine in state.unpaid.values() for _, key in mine]
        unpaid = [key for key, one in self.naive.open.items() if one.unpaid_ms]
        assert sorted(waiting) == sorted(unpaid)

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
        for number, second, trigger in [*self.naive.reopened, *self.naive.again]:
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
        state = self.machine.state
        for record in state.jobs.values():
            if OVERLAPS.get(record.name, Overlap.ALLOW) is not Overlap.ALLOW:
                assert len(state.active_of(record)) <= 1


TestStateAgainstNaive = StateAgainstNaive.TestCase
TestStateAgainstNaive.settings = settings(
    max_examples=MODEL_EXAMPLES, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)


@pytest.mark.nightly
class TestStateAgainstNaiveAtLength(TestStateAgainstNaive):
    settings = settings(TestStateAgainstNaive.settings, max_examples=80)


@pytest.mark.parametrize("seed", seeds(40))
def test_long_runs_agree_as_well(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long way with few mistakes: what hypothesis seldom walks."""
    chance = Random(seed)
    world = StateAgainstNaive()
    monkeypatch.setattr(letters, "OTHERS_KEPT", 1_000)
    if seed % 2:
        world.naive.format, world.naive.dead_kept = LETTERS - 1, 2
        monkeypatch.setattr(retries, "DEAD_KEPT", 2)
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
        elif event < 0.28:
            world.append(*commands.redrive_and_skip())
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
    StateAgainstNaive.dead_letters_are_the_same,
    StateAgainstNaive.the_pool_is_the_same,
    StateAgainstNaive.every_accounted_instant_has_one_row_and_one_more_for_each_reopening,
    StateAgainstNaive.an_attempt_ends_at_most_once,
    StateAgainstNaive.no_two_launches_overlap_unless_they_may,
]
