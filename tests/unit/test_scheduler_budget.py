"""Small parts of the leader: its pace, its notice of jumps, its queue of changes."""

from __future__ import annotations

import asyncio

import pytest

from cron.errors import CronError, LimitExceeded, NotLeader, UnknownJob
from cron.leader.clocks import Jump, Steady
from cron.leader.requests import (
    WAITING_MAX,
    Build,
    Change,
    Changes,
    answer,
    fail,
    halves,
    rows_of,
)
from cron.scheduler.budget import (
    BUSY_ROWS,
    HALF_MS,
    LEAD_KEPT_MS,
    LEAD_MAX_MS,
    PORTIONS,
    ROWS_MIN,
    TURN_MS,
    Every,
    TurnPace,
)
from cron.scheduler.plan import ROWS_MAX
from cron.state import commands as c
from cron.state.outcome import Result, Verdict
from cron.state.state import State
from tests.batches import lost_item
from tests.unit.state_rig import with_job

RESUME = c.Resume(("default/backup",), "anna")


def appending(*commands: c.Command) -> Build:
    """Build a change that does not depend on State."""
    return lambda _state, _now_ms: [*commands]


def test_a_turn_has_as_many_rows_as_it_has_time_for() -> None:
    pace = TurnPace()
    assert pace.rows_max == ROWS_MAX
    assert pace.portion == ROWS_MAX // PORTIONS
    for _ in range(20):
        pace.took(1_000, 100, 120, 0)  # 100 us for each row
    assert TURN_MS * 10 <= pace.rows_max <= TURN_MS * 11
    pace.took(10, 100, 5_000, 0)  # few rows say nothing of what a row costs
    assert TURN_MS * 10 <= pace.rows_max <= TURN_MS * 11
    for _ in range(20):
        pace.took(1_000, 10_000, 40, 0)
    assert pace.rows_max == pace.portion == ROWS_MIN
    for _ in range(40):
        pace.took(1_000, 0, 1, 0)
    assert pace.rows_max == ROWS_MAX


def test_an_order_takes_as_long_to_leave_as_the_median_of_the_turns_before() -> None:
    pace = TurnPace()
    assert pace.lead_ms(0) == 0
    for at_ms in range(10):
        pace.took(5, 1, 40, at_ms)
    assert pace.lead_ms(10) == 40
    for at_ms in range(10, 20):
        pace.took(5, 1, 5_000, at_ms)
    assert pace.lead_ms(20) == LEAD_MAX_MS


@pytest.mark.parametrize("before", [0, 1, 9])
def test_one_slow_entry_makes_no_launch_too_late(before: int) -> None:
    """A disk that stood still for two seconds must not skip the next launches of a job with a
    deadline of one second."""
    pace = TurnPace()
    for at_ms in range(before):
        pace.took(1, 1, 3, at_ms)
    pace.took(1, 1, 2_000, 2_100)
    assert pace.lead_ms(2_101) <= 3


def test_slow_turns_of_a_while_ago_make_no_launch_too_late() -> None:
    pace = TurnPace()
    for at_ms in range(9):
        pace.took(1, 1, 2_000, at_ms)
    assert pace.lead_ms(9) == LEAD_MAX_MS
    assert pace.lead_ms(LEAD_KEPT_MS + 9) == 0


def test_launches_of_an_executor_that_is_lost_are_rows_of_a_turn() -> None:
    """Of a turn without rows the pace learns nothing; these take as long as others."""
    rig = with_job().to(60)
    rig.account(60)
    rig.begin(60)
    index = rig.state.index
    rig.trigger("q")
    rig.begin(60, trigger=1)
    for through, count in ((index - 1, 0), (index, 1), (rig.state.index, 2)):
        assert rows_of(c.Report(executors=(c.LostExecutor(1, through),)), rig.state) == count
    assert rows_of(c.Report(executors=(c.LostExecutor(9, index),)), rig.state) == 0


def test_halves_of_what_is_lost_say_each_thing_once_in_its_order() -> None:
    items = tuple(lost_item((1, second, 0), 1) for second in range(3))
    gone = (c.LostExecutor(1, 7),)
    first, second = halves(c.Report(items, executors=gone))
    assert first == c.Report(items[:1])
    assert second == c.Report(items[1:], executors=gone)


def test_work_is_steady_from_a_failover_before_it_or_the_end_of_its_last_break() -> None:
    steady = Steady(5_000)
    assert [steady.since(now) for now in (1_000, 2_000, 6_999)] == [-4_000] * 3
    assert steady.since(11_999) == 11_999  # it was stopped, or its clock was set forward
    assert steady.since(12_500) == 11_999
    assert steady.since(7_000) == 7_000  # or back


def test_something_is_due_once_a_period() -> None:
    every = Every(500)
    assert [every.is_due(now) for now in (100, 101, 599, 600, 2000, 2001)] == [
        True,
        False,
        False,
        True,
        True,
        False,
    ]


class Clocks:
    """Two clocks that a test turns."""

    def __init__(self) -> None:
        self.wall = 1_000_000
        self.mono = 5_000

    def wall_ms(self) -> int:
        return self.wall

    def mono_ms(self) -> int:
        return self.mono


def test_a_jump_is_what_one_clock_moves_against_the_other() -> None:  # R10
    clocks = Clocks()
    jump = Jump(clocks)
    clocks.wall += 700
    clocks.mono += 700
    assert jump.since_last() == 0
    clocks.wall += 3_600_000
    assert jump.since_last() == 3_600_000
    assert jump.since_last() == 0
    clocks.wall -= 7_200_000
    clocks.mono += 10
    assert jump.since_last() == -7_200_010


async def test_changes_are_answered_with_the_results_of_their_own_commands() -> None:
    one = Change(appending(RESUME, RESUME), changes_jobs=False)
    other = Change(appending(RESUME), changes_jobs=False)
    changes = Changes()
    changes.put(one)
    changes.put(other)
    taken = changes.take(State(), 0)
    assert taken == [one, other]
    assert not changes
    one.first, other.first = 1, 3
    results = [Result(Verdict.ACCEPTED, number=n) for n in range(5)]
    answer(taken, 77, results)
    assert await one.done == (77, tuple(results[1:3]))
    assert await other.done == (77, (results[3],))


async def test_a_change_of_jobs_ends_the_batch() -> None:
    changes = Changes()
    batch = [Change(appending(RESUME), changes_jobs=n == 1) for n in range(3)]
    for change in batch:
        changes.put(change)
    assert changes.take(State(), 0) == batch[:2]
    assert changes.take(State(), 0) == batch[2:]


async def test_a_refused_or_broken_change_is_answered_and_does_not_stop_the_others() -> None:
    def refuse(_state: State, _now_ms: int) -> list[c.Command]:
        raise UnknownJob("no job nobody")

    def fail_to_build(_state: State, _now_ms: int) -> list[c.Command]:
        raise ZeroDivisionError

    changes = Changes()
    refused = Change(refuse, changes_jobs=False)
    broken = Change(fail_to_build, changes_jobs=False)
    empty, good = (Change(appending(*x), changes_jobs=False) for x in ((), (RESUME,)))
    for change in (refused, broken, empty, good):
        changes.put(change)
    assert changes.take(State(), 0) == [good]
    with pytest.raises(UnknownJob):
        await refused.done
    with pytest.raises(CronError, match="ZeroDivisionError"):
        await broken.done
    assert await empty.done == (0, ())


async def test_a_change_whose_caller_is_gone_is_not_made() -> None:
    changes = Changes()
    change = Change(appending(RESUME), changes_jobs=False)
    changes.put(change)
    change.done.cancel()
    assert changes.take(State(), 0) == []


async def test_what_waits_at_the_end_of_a_leader_term_did_not_happen() -> None:
    changes = Changes()
    change = Change(appending(RESUME), changes_jobs=False)
    changes.put(change)
    changes.refuse_all("127.0.0.1:7401")
    with pytest.raises(NotLeader):
        await change.done
    assert changes.take(State(), 0) == []


async def test_too_many_changes_are_refused() -> None:
    changes = Changes()
    for _ in range(WAITING_MAX):
        changes.put(Change(appending(RESUME), changes_jobs=False))
    with pytest.raises(LimitExceeded):
        changes.put(Change(appending(RESUME), changes_jobs=False))


async def test_a_failed_append_fails_each_of_its_changes_once() -> None:
    changes = [Change(appending(RESUME), changes_jobs=False) for _ in range(2)]
    changes[0].done.set_result((1, ()))
    fail(changes, NotLeader(None))
    assert await changes[0].done == (1, ())
    with pytest.raises(NotLeader):
        await asyncio.wait_for(changes[1].done, 1)


def test_rows_make_a_leader_busy_in_few_turns_or_in_many_and_count_less_with_time() -> None:
    pace = TurnPace()
    pace.took(BUSY_ROWS - 1, 1, 5, 1_000)
    assert pace.busy_until_ms == 0
    for turn in range(10):  # turns without an entry between them change nothing
        pace.took(BUSY_ROWS // 5, 1, 5, 1_000 + 100 * turn)
    assert pace.busy_until_ms >= 2_000
    pace.took(BUSY_ROWS, 1, 5, 60_000)
    assert 60_000 <= pace.busy_until_ms < 60_000 + HALF_MS
