"""Plan, due heap and machine over simulated time: leaders die, executors fall silent, results vary.

At the end every instant of every schedule has exactly one row, nothing began past its deadline,
and nothing overlapped that may not (promises 1 and 5, rules R1, R6, R7).
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from random import Random

import pytest

from cron.calendar.schedule import compile as compile_schedule
from cron.history.audit import audit
from cron.history.census import count
from cron.job import Catchup, Job, Overlap, Schedule
from cron.launch_state import LaunchState
from cron.scheduler import plan as planning
from cron.scheduler.indexes import LeaderIndexes
from cron.scheduler.places import Capacity, Place
from cron.scheduler.plan import View, plan
from cron.service.catalog import _build as build_change
from cron.service.catalog import waiting_of_removed
from cron.service.proofs import audited_job
from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.context import row_of
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from cron.state.rows import Row, RowKind
from cron.state.state import State
from launcher.protocol.columns import differences
from launcher.protocol.reports import BatchReport
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch, WorkSpec
from tests.batches import (
    AttemptItem,
    answered,
    launched_item,
    lost_item,
    refused_item,
    said_of,
)
from tests.drawn import seeds
from tests.places import counts_what_runs, used

T0 = 1_795_190_400
SCHEDULES = [
    Schedule("@every 1s", every_s=1),
    Schedule("@every 7s", every_s=7),
    Schedule("@every 90s", every_s=90),
    Schedule("* * * * *", "* * * * *"),
    Schedule("*/3 * * * *", "*/3 * * * *", zone="Asia/Kathmandu"),
    Schedule("5 16 * * *", "5 16 * * *"),
]


def behind(state: State, now_s: int) -> list[str]:
    """The jobs with an instant between their horizon and now: the due heap has to bring them up."""
    return [
        record.name
        for record in state.jobs.values()
        if record.job is not None
        and compile_schedule(record.job.schedule).count(record.horizon_s, now_s)
    ]


class World:
    """One leader at a time, executors that do as chance has it."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.look_every = 1  # of so many entries the queues are compared with State after one
        self.machine = Machine()
        self.index = 0
        self.now_ms = T0 * 1000
        self.epoch = Epoch(1, 0, "r1")
        self.rows: list[Row] = []
        self.began: list[tuple[c.Key, int, int]] = []  # key, attempt, deadline
        self.lead()
        jobs = tuple(self.job(number) for number in range(8))
        self.append(c.PutJobs("a", 0, T0, jobs))
        self.indexes = LeaderIndexes(self.machine.state)
        self.append(c.ExecutorJoined("e1", "l1", 4), c.ExecutorJoined("e2", "l2", 4))

    def name(self, number: int) -> str:
        return f"default/j{number}"

    def job(self, number: int) -> Job:
        chance = self.chance
        return Job(
            self.name(number),
            chance.choice(SCHEDULES),
            WorkSpec(("true",)),
            chance.choice(list(Overlap)),
            chance.choice(list(Catchup)),
            deadline_s=chance.choice([1, 10, 60, 600]),
        )

    def append(self, *commands: c.Command) -> None:
        entry = encode_entry(self.now_ms, self.epoch, commands)
        self.index += 1
        outcome = self.machine.apply(self.epoch.term, self.index, entry)
        assert outcome.verdict is Verdict.ACCEPTED
        self.rows += outcome.rows
        self.indexes.follow(outcome)
        if self.index % self.look_every == 0:
            self.check_queues()
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Account):
                # One leader that sees what is committed has no account refused.
                assert set(result.items) == {Verdict.ACCEPTED}
            if isinstance(command, c.Begin):
                for item, verdict in answered(command, result):
                    if verdict == Verdict.ACCEPTED:
                        row = self.machine.state.active[item.key]
                        assert self.now_ms <= row.not_after_ms <= row.deadline_ms
                        assert self.now_ms < row.deadline_ms
                        self.began.append((item.key, item.attempt, row.deadline_ms))

    def lead(self) -> None:
        """A new leader, on a replica that may have come from a snapshot."""
        if self.chance.random() < 0.5:
            self.machine = Machine(decode_state([encode_state(self.machine.state)]))
        self.epoch = Epoch(1, self.epoch.term + 1, self.chance.choice(["r1", "r2", "r3"]))
        self.indexes = LeaderIndexes(self.machine.state)
        self.append(c.Claim(format=c.FORMAT))

    def place(self, slots: dict[int, int]) -> None:
        """Executors with so many free slots, and no others, may get work."""
        places = self.indexes.queues.places
        for number in [number for number in places.views if number not in slots]:
            places.drop(number)
        for number, free in slots.items():
            taken = used(places, number).get("command", 0)
            places.put(Place(number, {}, (Capacity(taken + free),)))

    def tick(self, *, slots: dict[int, int], expired: list[int]) -> None:
        """One turn of the leader."""
        state = self.machine.state
        chance = self.chance
        self.place(slots)
        if not self.indexes.let_go():
            return
        view = View(
            state,
            self.indexes.due_heap.take(self.now_ms // 1000, limit=chance.choice([1, 3, 100])),
            expired=expired,
            late_budget=chance.choice([0, 2, 50]),
            queues=self.indexes.queues,
            rows_max=5,
            start_window_ms=chance.choice([1000, 30_000]),
            reports=self.successes(),
        )
        commands = [*view.reports, *plan(view, self.now_ms)]
        self.indexes.due_heap.put_back(view.postponed)
        if commands and chance.random() < 0.97:
            self.append(*commands)
        elif commands:
            # It died before its entry was agreed on; what it took from its due heap is nobody's.
            self.lead()

    def free_slots(self) -> dict[int, int]:
        records = self.machine.state.executors.items()
        free = {n: self.chance.randint(0, one.slots) - one.count_open() for n, one in records}
        return {number: count for number, count in free.items() if count > 0}

    def successes(self) -> list[c.Command]:
        """Ends that share the entry of a plan, in columns; some come twice."""
        rows: list[tuple[int, BatchReport]] = []
        for number, record in self.machine.state.executors.items():
            for batch in record.batches.values():
                some = [row for row, is_open in enumerate(batch.states) if is_open]
                some = [row for row in some if self.chance.random() < 0.1]
                if some:
                    ends = (differences(some), [self.now_ms], [self.now_ms])
                    said = BatchReport(batch.index, *said_of(LaunchState.SUCCEEDED), *ends)
                    rows += [(number, said)] * self.chance.choice([1, 1, 2])
        return [c.Report(rows=tuple(rows))] if rows else []

    def results(self) -> None:
        """What becomes of what runs."""
        chance, news = self.chance, []
        for row in list(self.machine.state.active.values()):
            dice = chance.random()
            if row.state is LaunchState.BEGUN and dice < 0.1:
                news.append(c.Report((refused_item(row.key, row.attempt, "no"),)))
            elif row.state is LaunchState.BEGUN and dice < 0.5:
                news.append(c.Report((launched_item(row.key, row.attempt, self.now_ms),)))
            elif dice < 0.7:
                news.append(self.end_of(row.key, row.attempt, row.cancel))
            elif dice < 0.73:
                held_ms = self.now_ms + chance.choice([0, 20_000])
                news.append(c.Report((lost_item(row.key, row.attempt, held_ms),)))
        if news:
            self.append(*news)

    def end_of(self, key: c.Key, attempt: int, cancel: Reason) -> c.Report:
        state = LaunchState.CANCELLED if cancel else LaunchState.SUCCEEDED
        item = AttemptItem.of(key, attempt, state, cancel, 0, self.now_ms, self.now_ms)
        return c.Report((item,))

    def meddle(self) -> None:
        """What people do: edit, remove, bring back, trigger, kill, fill back."""
        chance, state = self.chance, self.machine.state
        event = chance.randrange(5)
        number = chance.randrange(8)
        name = self.name(number)
        record = state.jobs[name]
        if event == 0:
            removed = (name,) if record.job is not None and chance.random() < 0.4 else ()
            jobs = () if removed else (self.job(number),)
            self.put(jobs, removed)
        elif event == 1:
            self.append(c.Trigger(name, f"q{self.index}", "anna"))
        elif event == 2:
            keys = [row.key for row in state.open_rows()]
            items = tuple(c.CancelItem(key, Reason.KILLED, "anna") for key in keys[:2])
            self.append(c.Cancel(items))
        else:
            newest = {
                (row.scheduled_s, row.trigger): row
                for row in self.rows
                if row.job == name and row.kind is RowKind.ENDED
            }
            items = tuple(
                c.ReopenItem((record.number, *key), -1, int(row.state), row.attempt)
                for key, row in list(newest.items())[-3:]
            )
            self.append(c.Reopen(items, self.index, "anna"))

    def put(self, jobs: tuple[Job, ...], removed: tuple[str, ...]) -> None:
        """Change jobs as the leader's catalog does."""
        state = self.machine.state
        names = [one.name for one in jobs]
        while waiting := waiting_of_removed(state, names):
            self.append(c.Cancel(waiting))
        put = c.PutJobs("a", state.catalog, 0, jobs, removed)
        self.append(*build_change(state, self.now_ms, put, [*names, *removed]))
        assert state.catalog == put.base + 1

    def run(self, steps: int, *, people: bool = False) -> None:
        chance = self.chance
        for _ in range(steps):
            if people and chance.random() < 0.2:
                self.meddle()
            self.now_ms += chance.choice([10, 200, 1000, 5000])
            event = chance.random()
            if event < 0.03:
                self.now_ms += chance.randint(1, 900) * 1000  # nobody led
                self.lead()
            elif event < 0.05:
                names = tuple(chance.sample(list(self.machine.state.jobs), 2))
                until_ms = chance.choice([0, self.now_ms + 60_000])
                self.append(c.Pause(names, "", until_ms, "anna"))
            elif event < 0.1:
                self.append(c.Resume(tuple(self.machine.state.jobs), "anna"))
            elif event < 0.12:
                number = chance.randint(1, len(self.machine.state.by_number))
                self.indexes.due_heap.retry(number)  # as after a jump of the clock
            expired = []
            if chance.random() < 0.02 and self.machine.state.executors:
                gone = chance.choice(list(self.machine.state.executors))
                expired = [gone]
            slots = self.free_slots()
            for one in expired:
                slots.pop(one, None)
            self.tick(slots=slots, expired=expired)
            self.results()
            if len(self.machine.state.executors) < 2:
                self.append(c.ExecutorJoined("e", f"l{self.index}", 4))
            self.check_overlap()

    def check_queues(self) -> None:
        """The queues have what State has, and nothing of what a plan took and did not get."""
        state, queues = self.machine.state, self.indexes.queues
        other = set(copy(queues._loading))
        assert set(queues._waiting) | other == set(state.due) | other
        assert counts_what_runs(queues)
        assert set(queues.fair.running) == set(queues._running)
        ready = len(queues.fair) + len(queues._new) + len(queues._removed)
        assert ready >= len(set(queues._waiting) - other)
        for number, record in state.executors.items():
            mark = queues.placement.reservation
            held = int(mark is not None and number in mark.held)
            assert sum(used(queues.places, number).values()) == record.count_open() + held

    def check_overlap(self) -> None:
        """Of what began under a policy that forbids it (an edit may forbid what is running)."""
        state = self.machine.state
        for record in state.by_number.values():
            jobs = [row.job for row in state.active_of(record)]
            strict = [one for one in jobs if one and one.overlap is not Overlap.ALLOW]
            assert len(strict) <= 1

    def check_audit(self) -> None:
        """What `raftcron audit` would say, in the middle of all this."""
        for record in self.machine.state.by_number.values():
            state = self.machine.state
            mine = [row for row in self.rows if row.job == record.name]
            mine += [row_of(state, row) for row in state.open_of(record).values()]
            mine.sort(key=lambda row: row.scheduled_s)
            found = audit(audited_job(record), mine, T0, self.now_ms // 1000)
            assert [finding for finding in found if finding.is_violation] == []
            n = count(audited_job(record), mine, T0, self.now_ms // 1000)
            assert n.instants == n.ran + n.not_started + n.skipped + n.skipped_in_runs + n.open

    def settle(self) -> None:
        """No more trouble, until nothing is open and everything is accounted."""
        self.append(c.Resume(tuple(self.machine.state.jobs), "anna"))
        self.look_every = 5
        for step in range(3000):
            self.now_ms += 400
            state = self.machine.state
            ends = [self.end_of(r.key, r.attempt, r.cancel) for r in state.active.values()]
            if ends:
                self.append(*ends)
            self.place({n: 9 for n in state.executors})
            while not self.indexes.let_go():
                pass
            due = self.indexes.due_heap.take(self.now_ms // 1000, limit=100)
            view = View(state, due, late_budget=9, queues=self.indexes.queues)
            commands = plan(view, self.now_ms)
            if commands:
                self.append(*commands)
            if step % 10:
                continue
            waiting = [r for r in state.open_rows() if r.scheduled_s * 1000 < self.now_ms - 30_000]
            if not waiting and not behind(state, self.now_ms // 1000):
                return
        raise AssertionError(f"something is never done: {waiting}")


@pytest.mark.parametrize("seed", seeds(60))
def test_every_instant_has_one_row_whatever_happens(seed: int) -> None:
    world = World(seed)
    world.run(150)
    world.check_audit()
    world.settle()
    world.check_audit()
    state = world.machine.state
    found: Counter[tuple[str, int]] = Counter()
    for row in world.rows:
        assert row.trigger == 0
        assert row.kind is not RowKind.AMENDMENT
        ticks = compile_schedule(state.jobs[row.job].job.schedule)  # type: ignore[union-attr]
        covered = ticks.between(row.scheduled_s - 1, row.last_s, limit=10**6)
        assert len(covered) == row.count
        found.update((row.job, tick.scheduled_s) for tick in covered)
    found.update((state.by_number[row.number].name, row.scheduled_s) for row in state.open_rows())
    expected = {
        (record.name, tick.scheduled_s)
        for record in state.jobs.values()
        if record.job is not None
        for tick in compile_schedule(record.job.schedule).between(
            T0, world.now_ms // 1000, limit=10**6
        )
    }
    assert set(found) == expected
    assert set(found.values()) <= {1}
    assert len({(key, attempt) for key, attempt, _ in world.began}) == len(world.began)
    assert world.began


@pytest.mark.parametrize("seed", seeds(60))
def test_the_audit_holds_whatever_people_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edits, removals, triggers, kills and backfills amid all the trouble (R1, R2, R8)."""
    if seed % 2:  # what waits of a removed job is ended in many portions
        monkeypatch.setattr(planning, "REMOVED_MAX", 1)
    world = World(seed)
    for _ in range(5):
        world.run(30, people=True)
        world.check_audit()
    world.settle()
    world.check_audit()
    attempts = Counter((key, attempt) for key, attempt, _ in world.began)
    assert set(attempts.values()) <= {1}


@pytest.mark.nightly
def test_the_worlds_see_all_that_can_happen() -> None:
    """A test of the test: its launches end in every way, for many reasons."""
    states: Counter[tuple[LaunchState, Reason]] = Counter()
    for seed in range(12):
        world = World(seed)
        world.run(150)
        states.update((row.state, row.reason) for row in world.rows)
    assert {
        (LaunchState.SUCCEEDED, Reason.NONE),
        (LaunchState.LOST, Reason.EXECUTOR_LOST),
        (LaunchState.CANCELLED, Reason.REPLACED),
        (LaunchState.SKIPPED, Reason.MISSED),
        (LaunchState.SKIPPED, Reason.OVERLAP),
        (LaunchState.SKIPPED, Reason.PAUSED),
        (LaunchState.SKIPPED, Reason.DEADLINE),
        (LaunchState.SKIPPED, Reason.FENCED),
    } <= set(states)
