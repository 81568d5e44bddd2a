"""Commands that wait at the executor for a slot: accepted, without a start record."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from launcher.clock import boot_ms, wall_ms
from launcher.executor import loop
from launcher.executor.commands.running import (
    ENDS_MIN,
    EVENTS_GAP_MS_MAX,
    KEPT_MS,
    START_MS_MIN,
    EventsGap,
    SlotPace,
)
from launcher.executor.loop import interrupt_all
from launcher.executor.refusals import KILLED, LATE, LEASE_OVER, STOPPING, WAITED, WITHDRAWN
from launcher.executor.rows import ACCEPTED, ENDED, INTERRUPTED, REFUSED
from launcher.executor.waiting import AHEAD_US
from launcher.protocol.reports import GroupOffer, RowReport
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.unit.journal_rig import read_only
from tests.unit.rows_rig import Start, found, number_of, orders
from tests.unit.test_executor_loop import Shop
from tests.unit.workers_rig import named

A, B, C, D = map(named, range(4))
AHEAD_MS = AHEAD_US // 1_000


class Queue(Shop):
    """An executor with few slots, all of which are taken."""

    async def fill(self, *names: str) -> None:
        """Let these have the slots."""
        self.executor_loop.attach(self.ear)
        self.order(names=names, command="sleep 60")
        await self.turns_until(lambda: {(one, ACCEPTED) for one in names} <= {*self.ear.told})

    def wait(self, name: str, **work: int) -> None:
        """Order a command that shows that it ran."""
        spec = WorkSpec(("/bin/sh", "-c", f"echo {name} >>{self.directory}/ran"), cwd="/", **work)
        start = Start(name, msgspec.msgpack.encode(spec), wall_ms() + 60_000)
        self.executor_loop.order(self.ear, orders(start))

    def end(self, *names: str) -> None:
        """Let the spawner report that these have ended."""
        ends = [["ended", name, 0, 0, wall_ms(), 0, "", 0, 0, 0] for name in names]
        self.executor_loop._take_events(ends)

    def row(self, name: str) -> RowReport:
        """A row as the next executor would find it."""
        return found(read_only(self.directory / "journal"))[name]

    async def until(self, name: str, status: int) -> RowReport:
        """Take turns until the leader was told of that status; return the row."""
        await self.turns_until(lambda: (name, status) in self.ear.told)
        return self.row(name)

    @property
    def ran(self) -> list[str]:
        """What ran, in this order."""
        path = self.directory / "ran"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[Queue]:
    """An executor with one slot, which A has; B waits."""
    queue = Queue(tmp_path)
    await queue.open(slots=1)
    await queue.fill(A)
    queue.wait(B)
    await queue.turn()
    yield queue
    await queue.close()


async def test_a_command_without_a_slot_is_accepted_and_has_no_start_record(queue: Queue) -> None:
    row = queue.row(B)
    assert (row.status, row.is_starting) == (ACCEPTED, False)
    assert (B, ACCEPTED) not in queue.ear.told, "it is pending"
    assert queue.executor_loop.running == 2


async def test_it_gets_the_slot_of_one_that_ended_once_its_start_record_is_durable(
    queue: Queue,
) -> None:
    queue.end(A)
    assert not queue.row(B).is_starting
    await queue.turn()
    assert queue.row(A).status == ENDED
    assert queue.row(B).is_starting
    await queue.until(B, ENDED)
    assert queue.ran == [B]


async def test_all_that_get_slots_in_one_turn_share_a_start_record(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    await queue.open(slots=2)
    try:
        await queue.fill(A, B)
        for name in (C, D):
            queue.wait(name)
        await queue.turn()
        queue.end(A, B)
        await queue.turn()
        assert all(queue.row(name).is_starting for name in (C, D))
    finally:
        await queue.close()


async def test_the_most_urgent_one_gets_the_slot_and_never_two_run_in_it(queue: Queue) -> None:
    queue.wait(C, priority=0)
    queue.wait(D, priority=9)
    await queue.turn()
    queue.end(A)
    await queue.until(D, ENDED)
    assert queue.ran == [C, B, D]


async def test_one_that_comes_while_others_wait_does_not_overtake_them(queue: Queue) -> None:
    queue.end(A)
    queue.wait(C)
    await queue.until(C, ENDED)
    assert queue.ran == [B, C]


async def test_a_restart_refuses_what_waited_for_it_has_never_run(queue: Queue) -> None:
    over = await asyncio.wrap_future(queue.thread.submit(interrupt_all, queue.ledger, "executor"))
    assert {(row.name, row.status) for row in over} == {(A, INTERRUPTED), (B, REFUSED)}
    assert queue.row(B).detail == WAITED
    assert queue.ran == []


async def test_with_a_dead_spawner_nothing_is_over_that_it_never_had(queue: Queue) -> None:
    os.kill(queue.executor_loop._children.pid, signal.SIGKILL)
    await queue.until(A, INTERRUPTED)
    assert (await queue.until(B, ENDED)).exit_code == 0
    assert queue.ran == [B]


async def test_what_has_waited_for_too_long_is_refused(queue: Queue) -> None:
    launches = queue.executor_loop.workers.launches
    launches.refuse_late(queue.executor_loop._commands, wall_ms())
    assert queue.executor_loop.running == 2
    launches.refuse_late(queue.executor_loop._commands, wall_ms() + 120_000)
    assert (await queue.until(B, REFUSED)).detail == LATE
    assert queue.executor_loop.running == 1


async def test_a_kill_refuses_what_waits_and_a_kill_of_what_runs_lets_the_next_one_run(
    queue: Queue,
) -> None:
    queue.wait(C)
    queue.order(kills=[(B, Reason.KILLED), (A, Reason.KILLED)])
    assert (await queue.until(B, REFUSED)).detail == KILLED
    await queue.until(C, ENDED)
    assert queue.row(A).reason == Reason.KILLED
    assert queue.ran == [C]


async def test_a_fence_refuses_what_waits(queue: Queue) -> None:
    queue.order(fences=[B])
    assert (await queue.until(B, REFUSED)).detail == WITHDRAWN


async def test_an_executor_that_stops_refuses_what_waits(queue: Queue) -> None:
    turns = asyncio.create_task(queue.executor_loop.run(queue.thread))
    await queue.executor_loop.drain(1_000, 60)
    turns.cancel()
    await asyncio.gather(turns, return_exceptions=True)
    assert (queue.row(B).status, queue.row(B).detail) == (REFUSED, STOPPING)
    assert queue.row(A).status == ENDED
    assert queue.ran == []


async def test_what_waited_when_the_lease_ended_is_refused_and_what_runs_goes_on(
    queue: Queue,
) -> None:
    queue.executor_loop.lease.until_ms = boot_ms() - 1
    queue.executor_loop.workers.tick()
    assert (await queue.until(B, REFUSED)).detail == LEASE_OVER
    assert queue.row(A).status == ACCEPTED


async def test_what_was_to_start_when_a_lease_ended_is_refused_although_another_one_came(
    queue: Queue,
) -> None:
    queue.end(A)  # B is about to get a start record
    executor_loop = queue.executor_loop
    executor_loop.lease.until_ms = boot_ms() - 1
    assert executor_loop.answered(executor_loop.lease.sent(boot_ms()))
    assert (await queue.until(B, REFUSED)).detail == LEASE_OVER
    assert queue.ran == []


async def test_no_more_wait_than_are_allowed_to(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    await queue.open(slots=1, worker_buffer=1)
    try:
        await queue.fill(A)
        queue.wait(B)
        queue.wait(C)
        assert (await queue.until(C, REFUSED)).detail == "no free slot"
        assert queue.row(B).status == ACCEPTED
    finally:
        await queue.close()


async def test_slots_that_come_free_soon_are_offered_and_no_more_than_may_wait(
    queue: Queue,
) -> None:
    commands, groups = queue.executor_loop._commands, queue.executor_loop.workers.groups
    commands.ahead = ENDS_MIN - 1
    assert not groups.changed()
    commands.ahead = ENDS_MIN
    assert groups.changed()
    assert groups.offers == (GroupOffer("", 1 + ENDS_MIN, ()),)
    queue.executor_loop.offered()
    await queue.turn()
    assert queue.ear.offers == [groups.offers]
    commands.ahead = 1_000_000
    assert groups.changed()
    assert groups.offers == (GroupOffer("", 1 + 1_000, ()),)


async def test_an_executor_that_starts_nothing_offers_slots_as_if_commands_had_held_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, now_ms = Queue(tmp_path), boot_ms()
    monkeypatch.setattr(loop, "boot_ms", lambda: now_ms)
    await queue.open(slots=100, start="none")
    try:
        queue.executor_loop.workers.groups.paced(now_ms)
        # In the order of their rows, which other tests may have given to some of these names.
        names = tuple(sorted(map(named, range(100)), key=number_of))
        queue.executor_loop.attach(queue.ear)
        await queue.turn()
        queue.order(names=names)
        await queue.turn()
        assert queue.ear.told == [(name, ENDED) for name in names]
        (offered,) = queue.ear.offers
        assert offered == (GroupOffer("", 100 + 100, ()),)
    finally:
        await queue.close()


# ---- how many are asked for


def paced(slots: int, *commands: tuple[int, int]) -> tuple[SlotPace, int]:
    """Let each of some commands, (count, ms), hold that many slots at once, one after the other;
    return the pace and the time."""
    pace, now_ms = SlotPace(), 0
    for count, took_ms in commands:
        assert count <= slots
        pace.hold(count, now_ms)
        now_ms += took_ms
        pace.hold(0, now_ms, ended=count)
    return pace, now_ms


def test_before_a_command_has_ended_no_more_are_asked_for_than_run() -> None:
    pace = SlotPace()
    for now_ms in (0, 500):
        pace.hold(64, now_ms)
        assert pace.ahead(64, now_ms) == 0


def test_as_many_are_asked_for_as_end_in_a_moment() -> None:
    pace, now_ms = paced(4, *[(4, 10)] * 40)
    assert pace.ahead(4, now_ms) == 4 * AHEAD_MS // 10


def test_no_more_are_asked_for_than_have_ended_lately() -> None:
    pace, now_ms = paced(64, (10, 1))
    assert pace.ahead(64, now_ms) == 9


def test_a_few_short_commands_beside_long_ones_ask_for_as_many_as_these_few_slots_end() -> None:
    pace = SlotPace()
    pace.hold(64, 0)
    for now_ms in range(10, 510, 10):
        pace.hold(64, now_ms, ended=1)
    assert pace.ahead(64, 500) == AHEAD_MS // 10


def test_long_commands_collect_no_queue_behind_short_ones() -> None:
    pace, now_ms = paced(4, *[(4, 10)] * 40)
    assert pace.ahead(4, now_ms) > 0
    asked: list[int] = []
    for at_ms in range(now_ms, now_ms + 2 * KEPT_MS, 100):
        pace.hold(4, at_ms)
        asked.append(pace.ahead(4, at_ms))
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] < ENDS_MIN, "too few to be asked for"


def test_what_is_known_is_forgotten_while_nothing_runs() -> None:
    pace, now_ms = paced(4, *[(4, 10)] * 40)
    assert pace.ahead(4, now_ms) > 0
    assert pace.ahead(4, now_ms + KEPT_MS) == 0


# ---- how long events of the spawner gather


def test_the_events_of_an_idle_spawner_do_not_gather() -> None:
    gap = EventsGap()
    assert [gap.after(started, 0, 1_000 * started) for started in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("start_ms", [1, 4])
def test_events_gather_for_half_the_time_for_which_the_spawner_has_commands_to_start(
    start_ms: int,
) -> None:
    gap, now_ms, gaps = EventsGap(), 0, list[int]()
    for started in range(0, 120, 10):
        gaps.append(gap.after(started, 40, now_ms))
        now_ms += 10 * start_ms
    assert gaps[0] == 40 * START_MS_MIN // 2
    assert gaps == sorted(gaps)
    assert 0.9 <= gaps[-1] / (40 * start_ms / 2) <= 1


def test_events_gather_no_longer_than_the_leader_has_time_to_refill_the_slots() -> None:
    gap = EventsGap()
    gaps = [gap.after(started, 64, 1_000 * started) for started in range(20)]
    assert gaps[-1] == EVENTS_GAP_MS_MAX <= AHEAD_MS // 2


def test_after_a_spawner_that_ran_dry_events_gather_less() -> None:
    gap = EventsGap()
    for started in range(10):
        before = gap.after(started, 8, 10 * started)
    assert gap.after(9 + 8, 8, 90 + 16) < before // 2


def test_the_pace_of_starts_is_forgotten_when_there_is_nothing_to_start() -> None:
    gap = EventsGap()
    slow = [gap.after(started, 40, 10 * started) for started in range(10)]
    gap.after(49, 0, 500)
    assert gap.after(49, 40, 1_000) == slow[0] < slow[-1]
