"""A State that keeps rows of batches in columns, and one in which every launch is an object as soon
as it begins, are the same State."""

from __future__ import annotations

from collections import Counter
from itertools import chain, repeat
from random import Random
from typing import Any

import msgspec
import pytest

from cron.job import Job, OnLost, Overlap, Retry, Schedule
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state import pool
from cron.state import state as state_module
from cron.state.archive import History
from cron.state.codec import encode_entry
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.machine import Machine
from cron.state.outcome import Outcome
from cron.state.state import State
from launcher.protocol.columns import differences
from launcher.protocol.reports import BatchReport
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch, WorkSpec
from tests.batches import AttemptItem, BeginItem, begin_of, lost_item, said_of
from tests.states import ended_rows
from tests.unit.state_rig import T0, executors_of

MINUTE = Schedule("* * * * *", "* * * * *")
ENTRIES = 200
LOOK_EVERY = 4
"""After how many entries all that can be seen of both is compared: it takes longer than they do."""
COMMAND, HANDLER = WorkSpec(("true",)), WorkSpec((), handler="billing.invoice")
ENDS = [(LaunchState.SUCCEEDED, Reason.NONE, 0)] * 8 + [
    (LaunchState.FAILED, Reason.NONE, 1),
    (LaunchState.FAILED, Reason.RETRY, 75),
    (LaunchState.CANCELLED, Reason.KILLED, -1),
    (LaunchState.CANCELLED, Reason.SNOOZE, 0),
    (LaunchState.LOST, Reason.NONE, 0),
]


def seen(state: State) -> list[object]:
    """What anybody can see of the launches of a State."""
    opened = {name: state.open_of(record) for name, record in state.jobs.items()}
    running = {name: len(state.active_of(record)) for name, record in state.jobs.items()}
    found = {
        (number, index, row): record.find(index, row)
        for number, record in state.executors.items()
        for index in record.batches
        for row in range(-3, 60)
    }
    rows = sorted(state.open_rows(), key=lambda row: row.key)
    history = ended_rows(state.history)
    return [
        dict(state.active), rows, opened, running, state.running, found, executors_of(state),
        len(state.active), state.dead,
        state.lost, state.lost_at, state.budgets, history,
    ]  # fmt: skip


def plain_image(state: State) -> bytes:
    """The image of a State once all is detailed, without history, which keeps chunks as is."""
    again = all_detailed(decode_state([encode_state(state)]))
    again.digest, again.history = bytes(16), History()
    return encode_state(again)


def moved(outcome: Outcome) -> set[c.Key]:
    """The launches that are due, active or over by an entry, or have one part less."""
    lines = ((number, at_s, 0) for _, at_s, numbers in outcome.begun_rows for number in numbers)
    rows = (zip(*columns, repeat(0)) for _, *columns in outcome.ended_rows)
    return {*outcome.begun, *outcome.moved, *lines, *chain.from_iterable(rows)}


def all_detailed(state: State) -> State:
    state.make_detailed(state.by_number.values())
    return state


class World:
    """Draws commands for a State of many jobs; knows nothing of what becomes of them."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.usual, self.detailed = Machine(), Machine()
        self.index, self.at_ms, self.epoch = 0, T0 * 1000, Epoch(1, 1, "r1")
        self.seen: Counter[str] = Counter()
        self.images: list[tuple[Any, list[bytes], bytes]] = []
        self.begun: list[tuple[int, int, int]] = []  # index, executor, rows, the newest last

    @property
    def state(self) -> State:
        return self.usual.state

    def append(self, *commands: c.Command) -> None:
        self.index += 1
        self.go_on_with_images()
        data = encode_entry(self.at_ms, self.epoch, commands)
        first = self.usual.apply(1, self.index, data)
        second = self.detailed.apply(1, self.index, data)
        assert (first.results, list(first.rows)) == (second.results, list(second.rows)), commands
        assert moved(first) == moved(second)
        all_detailed(self.detailed.state)
        assert not self.detailed.state.active.usual
        if self.index % LOOK_EVERY == 0:
            assert seen(self.state) == seen(self.detailed.state), commands
        self.note(first)

    def note(self, outcome: Outcome) -> None:
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            for verdict in result.items:
                self.seen[f"{type(command).__name__} {verdict}"] += 1
            if isinstance(command, c.Begin):
                for spec in command.batches:
                    self.begun.append((self.index, spec.executor, len(spec.jobs)))
        for row in outcome.rows:
            self.seen[row.state.label] += 1
        self.seen["usual"] += sum(map(len, self.state.active.usual.values()))
        self.seen["detailed"] += len(self.state.active.detailed)

    # ---- images

    def compare_images(self) -> None:
        """Both have the same image once all is detailed; one that is read says what it was of."""
        image = encode_state(self.state)
        again = decode_state([image])
        assert encode_state(again) == image
        assert seen(again) == seen(self.state)
        assert plain_image(self.state) == plain_image(self.detailed.state)
        if self.chance.random() < 0.5:
            self.usual = Machine(again)

    def begin_image(self) -> None:
        self.images.append((Imaging.begin(self.state).pieces(), [], encode_state(self.state)))

    def go_on_with_images(self) -> None:
        for pieces, got, whole in list(self.images):
            piece = next(pieces, None)
            if piece is not None:
                got.append(piece)
            else:
                assert b"".join(got) == whole
                self.images = [one for one in self.images if one[1] is not got]
                self.seen["images"] += 1

    # ---- commands

    def job(self, number: int) -> Job:
        chance = self.chance
        placed: dict[str, Any] = chance.choice([{}, {}, {}, {"parts": 2}, {"each": "role=web"}])
        return Job(
            f"default/j{number}",
            MINUTE,
            chance.choice([COMMAND, COMMAND, HANDLER]),
            chance.choice([Overlap.ALLOW, Overlap.ALLOW, Overlap.FORBID, Overlap.QUEUE]),
            on_lost=chance.choice(list(OnLost)),
            deadline_s=chance.choice([30, 300, 3600]),
            retry=chance.choice([Retry(), Retry(), Retry(tries=3, backoff_ms=1_000)]),
            concurrency=chance.choice([0, 0, 0, 2]),
            **placed,
        )

    def put(self) -> c.PutJobs:
        state, chance = self.state, self.chance
        now_s = self.at_ms // 1000
        level = [name for name, one in state.jobs.items() if one.horizon_s == now_s]
        some = chance.sample(level, min(len(level), 4))
        jobs = tuple(self.job(int(name.rsplit("j", 1)[1])) for name in some[1:])
        removed = tuple(name for name in some[:1] if state.jobs[name].job is not None)
        return c.PutJobs("a", state.catalog, now_s, jobs, removed, "anna")

    def account(self) -> c.Account:
        state, now_s = self.state, self.at_ms // 1000
        lines: dict[int, list[int]] = {}
        for number, record in state.by_number.items():
            if record.job is not None and record.horizon_s < now_s and self.chance.random() < 0.9:
                lines.setdefault(record.horizon_s, []).append(number)
        local_min = self.chance.choice([-1, -1, now_s // 60])
        due = (c.Instants(now_s, local_min, self.chance.random() < 0.2),)
        return c.Account(
            tuple(
                c.AccountLine(tuple(differences(numbers)), state.catalog, from_s, now_s, due)
                for from_s, numbers in lines.items()
            )
        )

    def begin(self) -> c.Begin:
        state, chance = self.state, self.chance
        due = [
            row
            for row in state.due.values()
            if chance.random() < 0.05 or max(row.not_before_ms, self.at_ms) <= row.deadline_ms
        ]
        items = []
        for row in chance.sample(due, min(len(due), chance.choice([1, 5, 20]))):
            job = state.by_number[row.number].job
            count = 1 if job is None else job.parts if not job.each else chance.randint(1, 3)
            first, *others = chance.sample([1, 2, 3], min(count, 3))
            held_ms = self.at_ms + 9_000 if chance.random() < 0.05 else 0
            slip = chance.choice([0] * 20 + [1])
            items.append(
                BeginItem(
                    row.key, row.attempt + 1 + slip, state.catalog - chance.choice([0] * 20 + [1]),
                    first, self.at_ms + chance.choice([5_000] * 9 + [-1]), tuple(others), held_ms,
                )
            )  # fmt: skip
        if items and chance.random() < 0.1:
            items.append(items[0])
        return begin_of(items)

    def rows(self) -> tuple[int, int, list[int]]:
        """Some rows of a batch: open or not, there or not."""
        chance = self.chance
        open_ = [
            (index, number, len(batch.states) or 9)
            for number, record in self.state.executors.items()
            for index, batch in record.batches.items()
        ]
        known = open_ if open_ and chance.random() < 0.95 else self.begun or [(1, 1, 1)]
        index, executor, size = chance.choice(known)
        size = max(1, size + chance.choice([0, 0, 0, 2]))
        rows = sorted(chance.sample(range(size), chance.randint(1, size)))
        return index, executor, differences(rows)

    def time(self, rows: list[int]) -> list[int]:
        if self.chance.random() < 0.3:
            return [self.at_ms]
        zero = self.chance.choice([0, self.at_ms, self.at_ms])
        return differences([self.chance.choice([self.at_ms, self.at_ms - 7, zero]) for _ in rows])

    def started(self, index: int, executor: int, rows: list[int]) -> tuple[int, BatchReport]:
        said = said_of(LaunchState.LAUNCHED)
        return executor, BatchReport(index, *said, rows, self.time(rows))

    def launched(self) -> c.Report:
        index, executor, rows = self.rows()
        return c.Report((), (self.started(index, executor, rows),))

    def finished(self) -> c.Report:
        ends = []
        for _ in range(self.chance.choice([1, 1, 3])):
            index, executor, rows = self.rows()
            some = [[], [7], list(range(len(rows)))]
            output, cpu, memory = (self.chance.choice(some) for _ in range(3))
            said, times = said_of(*self.chance.choice(ENDS)), (self.time(rows), self.time(rows))
            one = BatchReport(index, *said, rows, *times, output, "", cpu, memory)
            ends.append((executor, one))
        if self.chance.random() < 0.05:
            broken = self.chance.choice([[], [1, 2], [0, -1], [2**63, 2**63]])
            ends.append((executor, msgspec.structs.replace(one, rows=broken)))
        return c.Report(self.finished_items(), tuple(ends))

    def finished_items(self) -> tuple[AttemptItem, ...]:
        rows = list(self.state.active.values())
        if not rows or self.chance.random() < 0.6:
            return ()
        row, end = self.chance.choice(rows), self.chance.choice(ENDS)
        part = self.chance.choice([1, 1, 2])
        item = AttemptItem.of(row.key, row.attempt, *end, 1, 2, "said", part=part)
        return (item,)

    def never(self, index: int, executor: int, rows: list[int]) -> tuple[int, BatchReport]:
        return executor, BatchReport(index, *said_of(LaunchState.SKIPPED), rows)

    def refused(self) -> c.Report:
        return c.Report((), (self.never(*self.rows()),))

    def lost(self) -> c.Report:
        index, executor, _ = self.rows()
        held_ms = self.at_ms + self.chance.choice([-1, 3_000])
        if self.chance.random() < 0.3:
            whole = (c.LostExecutor(executor, index + self.chance.choice([-1, 0, 5]), held_ms),)
            return c.Report(executors=whole)
        some = self.chance.sample(
            list(self.state.active.values()), k=min(3, len(self.state.active))
        )
        items = [lost_item(one.key, one.attempt, held_ms) for one in some]
        return c.Report(tuple(items))

    def cancel(self) -> c.Cancel:
        rows = list(self.state.open_rows())
        some = self.chance.sample(rows, min(len(rows), 2))
        return c.Cancel(tuple(c.CancelItem(row.key, Reason.KILLED, "anna") for row in some))

    def redrive(self) -> pool.Redrive:
        return pool.Redrive(tuple(self.state.dead)[:2], "anna")

    def trigger(self) -> c.Trigger:
        name = self.chance.choice(list(self.state.jobs))
        return c.Trigger(name, f"q{self.index}", "anna")

    def reset(self) -> list[c.Command]:
        state = self.state
        to_ms = state.at_ms - 90_000
        items = tuple(
            c.HorizonItem(number, one.horizon_s, to_ms // 1000, self.index)
            for number, one in state.by_number.items()
            if one.horizon_s > to_ms // 1000
        )
        self.at_ms = to_ms
        return [c.ResetClock(to_ms, "anna"), c.ResetHorizons(items)]

    def any(self) -> list[c.Command]:
        kinds = [
            self.account, self.begin, self.begin, self.begin, self.launched, self.launched,
            self.account, self.begin, self.begin, self.begin, self.launched, self.launched,
            self.finished, self.finished, self.finished, self.finished, self.finished,
            self.refused, self.lost, self.cancel, self.put, self.redrive, self.trigger,
        ]  # fmt: skip
        if self.chance.random() < 0.01:
            return self.reset()
        return [self.chance.choice(kinds)() for _ in range(self.chance.choice([1, 1, 2]))]

    def run(self) -> None:
        self.append(c.Claim("", "", c.FORMAT))
        jobs = tuple(self.job(number) for number in range(24))
        self.append(c.PutJobs("a", 0, T0, jobs))
        for name in ("e1", "e2", "e3"):
            self.append(c.ExecutorJoined(name, f"l-{name}", 9))
        self.append(pool.SetLimits((pool.LimitItem(("*", "", -1), pool.Limits(retry_budget=3)),)))
        for number in range(ENTRIES):
            self.at_ms += self.chance.choice([0, 0, 1_000, 20_000])
            self.append(*self.any())
            if number % 10 == 0:
                self.compare_images()
            if number % 25 == 0:
                self.begin_image()


@pytest.mark.parametrize("seed", range(8))
def test_columns_say_what_objects_would(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:  # batches are small here: the last row of a few is a straggler
        monkeypatch.setattr(state_module, "STRAGGLERS_SHARE", 4)
    world = World(seed)
    world.run()
    assert min(world.seen["usual"], world.seen["detailed"]) > 300
    assert min(world.seen["succeeded"], world.seen["lost"], world.seen["images"]) > 3
