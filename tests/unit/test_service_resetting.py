"""The cell's time is set back after a clock that was an hour ahead (rule R10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cron.api.members import ClockRequest
from cron.calendar.schedule import compile as compile_schedule
from cron.errors import NotNow
from cron.history.store import RowStore
from cron.job import Overlap
from cron.scheduler.policy import Given, account_for, as_lines
from cron.service.replica import Replica
from cron.service.resetting import reset
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.pool import CloseGate, Gate, GateAction
from launcher.protocol.status import Reason
from tests.unit.state_rig import MINUTE, T0, StateRig, job
from tests.unit.test_service_questions import JOB, Asked, Machine

HOUR_S = 3_600
BY = "ada"


@pytest.fixture
def row_store(tmp_path: Path) -> Iterator[RowStore]:
    made = RowStore()
    yield made
    made.stop()


class _Leader:
    """The leader of a story; `reason` is why it may not tick."""

    def __init__(self, story: Story, reason: str) -> None:
        self._story = story
        self._reason = reason

    def may_tick(self) -> str:
        return self._reason

    def awaits_row(self, _number: int) -> str:
        return ""

    async def append(self, *commands: c.Command, changes_jobs: bool = False) -> Any:
        story = self._story
        story.at_ms = max(story.clock.now_ms, story.state.at_ms)
        outcome = story.append(*commands)
        return story.state.index, outcome.results


class Story(Asked):
    """A job every minute, a leader that may be an hour ahead, and its reset."""

    def __init__(self, row_store: RowStore, reason: str = "") -> None:
        super().__init__(row_store, Overlap.ALLOW)
        self.transferred = 0
        leader: Any = _Leader(self, reason)
        machine: Machine = self.machine
        me: Any = self
        self.served = Replica(
            leader, machine._applier, row_store, self.clock, log=me, cluster_status=me
        )

    async def poll(self) -> None:
        """All clocks are known."""

    async def transfer(self) -> None:
        self.transferred += 1

    def set_clock(self, second: int) -> None:
        """The leader's own clock, and the time of its entries: never before State's."""
        self.clock.now_ms = (T0 + second) * 1000
        self.at_ms = max(self.clock.now_ms, self.state.at_ms)

    def tick(self, second: int) -> None:
        """Account for what is due by then, and run it."""
        self.set_clock(second)
        record = self.state.jobs[JOB]
        while True:
            item = account_for(record, compile_schedule(MINUTE), Given(self.at_ms))
            if item is None:
                return
            lines = as_lines(self.state.catalog, [(item, [1])])
            assert self.item(c.Account(lines)) is Verdict.ACCEPTED
            for due in item.due:
                self.run(due.scheduled_s - T0)

    async def reset(self, *, is_dry_run: bool = False) -> Any:
        return await reset(self.served, ClockRequest(is_dry_run=is_dry_run, by=BY))

    async def violations(self) -> list[str]:
        report = await self.audit(JOB, 0)
        return [one.message for one in report.violations]

    def begun(self) -> Counter[int]:
        return Counter(row.scheduled_s - T0 for row in self.rows if row.begun_index)


async def test_jobs_go_on_from_now_and_what_began_ahead_is_not_repeated(
    row_store: RowStore,
) -> None:
    story = Story(row_store)
    for second in (60, 120):
        story.tick(second)
    story.tick(HOUR_S + 90)  # the wrong clock
    story.tick(HOUR_S + 150)
    ahead = {HOUR_S + 60, HOUR_S + 120}
    assert ahead <= set(story.begun())
    story.set_clock(150)
    plan = await story.reset(is_dry_run=True)
    assert (plan.jobs, plan.is_done, story.state.resets) == (1, False, [])
    done = await story.reset()
    assert (done.jobs, done.spent, done.is_done) == (1, 2, True)
    record = story.state.jobs[JOB]
    assert story.state.at_ms == (T0 + 150) * 1000
    assert record.horizon_s == T0 + 150
    assert set(record.spent) == {T0 + second for second in ahead}
    assert [(one.by, one.to_ms) for one in story.state.resets] == [(BY, (T0 + 150) * 1000)]
    assert story.transferred == 1
    for second in range(180, HOUR_S + 400, 60):
        story.tick(second)
        if second % 600 == 0:
            assert await story.violations() == []
    assert set(story.begun().values()) == {1}, "no name begins twice"
    assert set(story.begun()) == set(range(60, HOUR_S + 361, 60))
    assert await story.violations() == []
    assert record.spent == []


async def test_the_stretch_is_clean_right_after_the_reset_and_after_an_outage_over_it(
    row_store: RowStore,
) -> None:
    story = Story(row_store)
    story.tick(60)
    story.tick(HOUR_S + 90)
    story.set_clock(150)
    await story.reset()
    assert await story.violations() == []
    story.tick(2 * HOUR_S)  # nobody led for two hours
    assert await story.violations() == []
    assert story.begun()[HOUR_S + 60] == 1


async def test_times_that_came_from_the_wrong_clock_come_back_with_it(
    row_store: RowStore,
) -> None:
    story = Story(row_store)
    story.tick(60)
    story.set_clock(HOUR_S)
    until_ms = story.at_ms + 600_000
    story.append(c.Pause((JOB,), "tired", until_ms, "bob"))
    gate = Gate(0, GateAction.PAUSE, "storm", "bob", story.at_ms, until_ms, jobs="*")
    story.append(CloseGate(gate))
    story.append(c.Trigger(JOB, "r-1", "bob"))
    story.set_clock(150)
    await story.reset()
    paused = story.state.jobs[JOB].paused
    assert paused is not None
    assert paused.until_ms == (T0 + 150 + 600) * 1000
    (closed,) = story.state.gates.values()
    assert closed.until_ms == (T0 + 150 + 600) * 1000
    (row,) = story.state.due.values()
    assert row.deadline_ms == (T0 + 150 + 300) * 1000


async def test_a_manual_launch_of_a_second_that_comes_again_gets_a_new_name(
    row_store: RowStore,
) -> None:
    story = Story(row_store)
    story.set_clock(HOUR_S)
    first = story.answer(c.Trigger(JOB, "r-1", "bob"))
    story.set_clock(150)
    await story.reset()
    story.set_clock(HOUR_S)
    second = story.answer(c.Trigger(JOB, "r-2", "bob"))
    assert first.scheduled_s == second.scheduled_s
    assert first.number != second.number


async def test_what_was_due_ahead_and_never_began_comes_up_in_its_time(
    row_store: RowStore,
) -> None:
    story = Story(row_store)
    story.set_clock(HOUR_S)
    record = story.state.jobs[JOB]
    item = account_for(record, compile_schedule(MINUTE), Given(story.at_ms))
    assert item is not None
    story.item(c.Account(as_lines(story.state.catalog, [(item, [1])])))
    assert [row.scheduled_s for row in story.state.due.values()] == [T0 + HOUR_S]
    story.set_clock(150)
    await story.reset()
    assert not story.state.due
    for second in range(180, HOUR_S + 1, 60):
        story.tick(second)
    assert story.begun()[HOUR_S] == 1
    assert await story.violations() == []


async def test_a_time_that_is_right_and_a_leader_that_is_wrong_reset_nothing(
    row_store: RowStore,
) -> None:
    story = Story(row_store)
    story.tick(60)
    with pytest.raises(NotNow, match="is not ahead"):
        await story.reset()
    wrong = Story(row_store, "its clock is +3600.0 s from the replicas' median")
    wrong.set_clock(-HOUR_S)
    with pytest.raises(NotNow, match="wrong itself"):
        await wrong.reset()
    assert wrong.state.resets == []


def test_a_reset_survives_a_snapshot_and_refuses_rows_of_spent_names() -> None:
    rig = StateRig()
    rig.put(job())
    rig.to(HOUR_S)
    rig.append(c.Account((c.AccountLine((1,), 1, T0, T0 + HOUR_S, (c.Instants(T0 + HOUR_S),)),)))
    rig.append(c.ResetClock((T0 + 60) * 1000, BY))
    read_at = rig.state.index
    item = c.HorizonItem(1, T0 + HOUR_S, T0 + 60, read_at, (T0 + 120,))
    assert rig.item(c.ResetHorizons((item,))) is Verdict.ACCEPTED
    again = decode_state([encode_state(rig.state)])
    assert again.resets == rig.state.resets
    assert again.by_number[1].spent == [T0 + 120]
    rig.at_ms = (T0 + 130) * 1000
    due = c.AccountLine((1,), 1, T0 + 60, T0 + 130, (c.Instants(T0 + 120),))
    assert rig.item(c.Account((due,))) is Verdict.BAD_TIMES
    skipped = c.Instants(T0 + 120, -1, False, Reason.MISSED, 1, T0 + 120)
    missed = c.AccountLine((1,), 1, T0 + 60, T0 + 130, (), (skipped,))
    assert rig.item(c.Account((missed,))) is Verdict.BAD_TIMES
    over = c.AccountLine((1,), 1, T0 + 60, T0 + 130)
    assert rig.item(c.Account((over,))) is Verdict.ACCEPTED
    assert rig.state.by_number[1].spent == []
