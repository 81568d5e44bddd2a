"""The worlds of the pool with launches of several parts, each of which ends as chance has it."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from cron.job import Job
from cron.launch_state import ACTIVE, LaunchState
from cron.scopes import Scope
from cron.state import commands as c
from cron.state.launch_row import LaunchRow
from cron.state.state import JobRecord
from launcher.protocol.status import Reason
from tests.batches import AttemptItem, launched_item, lost_item, refused_item
from tests.drawn import seeds
from tests.model.test_leader_pool_worlds import PoolWorld
from tests.places import has_room


class PartsWorld(PoolWorld):
    """Some jobs run on two executors at once, or on each of some."""

    def job(self, number: int) -> Job:
        parts, each = self.chance.choice([(1, ""), (2, ""), (2, ""), (1, "disk=ssd")])
        where = "" if each else self.chance.choice(["", "disk=ssd"])
        return msgspec.structs.replace(super().job(number), parts=parts, each=each, where=where)

    def run(self, steps: int, *, people: bool = False) -> None:
        for _ in range(steps):
            while len(self.machine.state.executors) < 4:
                number = self.machine.state.executor_numbers
                self.append(c.ExecutorJoined(f"x{number}", f"l{number}", 4))
            super().run(1, people=people)

    def results(self) -> None:
        news: list[c.Command] = []
        for row in self.machine.state.active.values():
            for number, part in enumerate(row.parts, 1):
                if part.state in ACTIVE and (one := self.news_of(row, number)) is not None:
                    news.append(one)
        if news:
            self.append(*news)
        super().results()

    def news_of(self, row: LaunchRow, number: int) -> c.Command | None:
        """What an executor says of a part, if anything."""
        dice, key, attempt = self.chance.random(), row.key, row.attempt
        if row.parts[number - 1].state is LaunchState.BEGUN and dice < 0.3:
            if dice < 0.15:
                return c.Report((refused_item(key, attempt, "no", number),))
            return c.Report((launched_item(key, attempt, self.now_ms, number),))
        if dice < 0.35:
            return c.Report((lost_item(key, attempt, self.now_ms + 5000, "gone", number),))
        if dice > 0.6:
            return None
        fails = self.chance.random() < 0.3
        state, code = (LaunchState.FAILED, 1) if fails else (LaunchState.SUCCEEDED, 0)
        return c.Report((self.end_of_part(row, number, state, code),))

    def end_of_part(
        self, row: LaunchRow, number: int, state: LaunchState, code: int
    ) -> AttemptItem:
        now_ms = self.now_ms
        return AttemptItem.of(
            row.key, row.attempt, state, Reason.NONE, code, now_ms, now_ms, part=number
        )

    def end_of(self, key: c.Key, attempt: int, cancel: Reason) -> c.Report:
        row = self.machine.state.active[key]
        if not row.parts:
            return super().end_of(key, attempt, cancel)
        if not self.is_calm:  # its parts have their say
            return c.Report(())
        return c.Report(
            tuple(
                self.end_of_part(row, number, LaunchState.SUCCEEDED, 0)
                for number, part in enumerate(row.parts, 1)
                if part.state in ACTIVE
            )
        )

    # ---- what must hold

    def check_room(self, row: LaunchRow, declared: Job) -> None:
        starts = list(row.starts())
        self.seen["parts"] += len(starts) > 1
        for start in starts:
            seat = self.indexes.queues.places.views[start.executor].by_pool[declared.pool]
            assert seat.used <= seat.slots
        executors = [start.executor for start in starts]
        assert len(set(executors)) == len(executors)
        if declared.each:
            assert set(executors) == self.described(declared)
        else:
            assert len(executors) == declared.parts

    def described(self, declared: Job) -> set[int]:
        """The executors that a job runs on each of, with room or not."""
        record = self.machine.state.jobs[declared.name]
        need = self.indexes.queues.placed(record, declared).wanted.need
        return set(self.indexes.queues.places.each(need, declared.each))

    def elsewhere(self, record: JobRecord, declared: Job, counts: Counter[Scope]) -> str:
        reason = super().elsewhere(record, declared, counts)
        if reason or not declared.has_parts:
            return reason
        places = self.indexes.queues.places
        need = self.indexes.queues.placed(record, declared).wanted.need
        fitting = {number for number in places.views if has_room(places, number, need)}
        if declared.each:
            described = self.described(declared)
            return "" if described and described <= fitting else "no room for each"
        return "" if len(fitting) >= declared.parts else "no room for all parts"


@pytest.mark.parametrize("seed", seeds(30))
def test_launches_of_several_parts_begin_whole_and_when_they_may(seed: int) -> None:
    world = PartsWorld(seed)
    world.run(120, people=seed % 2 == 0)
    world.check_audit()
    world.settle()
    world.check_audit()


@pytest.mark.nightly
def test_the_worlds_of_parts_see_all_that_can_happen() -> None:
    """A test of the test."""
    seen: Counter[str] = Counter()
    for seed in range(10):
        world = PartsWorld(seed)
        world.run(120)
        seen.update(world.seen)
    wanted = {"parts", "no room for each", "no room for all parts", "tried again", "refused"}
    assert wanted <= {what for what, count in seen.items() if count}
