"""Between the two threads: pending appends, rounds of barriers, the handover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from consensus.engine.handover import Committed, Event, Handover, Refused
from consensus.engine.pending import Barriers, Pending, within
from consensus.errors import NotLeader, OutcomeUnknown, QueueFull
from consensus.leadership import Position
from consensus.limits import (
    BARRIERS_MAX,
    HANDOVER_BYTES_MAX,
    HANDOVER_ENTRIES_MAX,
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
)
from consensus.log import Applied


def applied(index: int) -> Applied:
    return Applied(Position(1, index), None)


async def test_number_and_bytes_are_bounded_and_come_free_again() -> None:
    pending = Pending()
    counter, _ = pending.admit(IN_FLIGHT_BYTES_MAX)
    with pytest.raises(QueueFull, match="bytes"):
        pending.admit(1)
    pending.resolve(counter, applied(1))
    for _ in range(IN_FLIGHT_MAX):
        pending.admit(1)
    with pytest.raises(QueueFull, match="appends"):
        pending.admit(1)


async def test_an_append_that_was_given_up_holds_its_place_until_its_status_is_known() -> None:
    pending = Pending()
    counter, answer = pending.admit(5)
    with pytest.raises(OutcomeUnknown):
        await within(answer, 1)
    assert len(pending) == 1
    pending.resolve(counter, applied(1))
    assert len(pending) == 0


class Rounds:
    """Submits barriers and remembers their futures."""

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[Applied]] = []
        self.refuses = False

    def submit(self) -> asyncio.Future[Applied]:
        if self.refuses:
            raise NotLeader(None)
        self.begun.append(asyncio.get_running_loop().create_future())
        return self.begun[-1]


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_calls_during_a_round_share_the_next_one_and_never_the_running_one() -> None:
    rounds = Rounds()
    barriers = Barriers(rounds.submit)
    first = barriers.join()
    late = [barriers.join() for _ in range(10)]
    assert len(rounds.begun) == 1
    rounds.begun[0].set_result(applied(1))
    await settle()
    assert first.result() == applied(1)
    assert len(rounds.begun) == 2
    assert not any(turn.done() for turn in late)
    rounds.begun[1].set_result(applied(2))
    await settle()
    assert [turn.result() for turn in late] == [applied(2)] * 10
    barriers.join()
    assert len(rounds.begun) == 3


async def test_too_many_calls_for_a_barrier_are_refused_and_those_that_gave_up_do_not_count() -> (
    None
):
    rounds = Rounds()
    barriers = Barriers(rounds.submit)
    first = barriers.join()
    waiting = [barriers.join() for _ in range(BARRIERS_MAX)]
    with pytest.raises(QueueFull, match="barrier"):
        barriers.join()
    waiting[7].cancel()
    later = barriers.join()
    with pytest.raises(QueueFull):
        barriers.join()
    rounds.begun[0].set_result(applied(1))
    await settle()
    rounds.begun[1].set_result(applied(2))
    await settle()
    assert first.result() == applied(1)
    assert later.result() == waiting[8].result() == applied(2)
    barriers.join()


async def test_entries_on_their_way_are_counted_until_they_are_applied() -> None:
    counts: list[int] = []
    handover = Handover(asyncio.get_running_loop(), lambda _: counts.append(handover.entries))
    handover.post(Committed([(b"", 1, 1), (b"", 2, 1)]))
    handover.post(Committed([(b"", 3, 1)]))
    assert handover.entries == 3
    await settle()
    assert counts == [3, 2, 1]
    assert handover.entries == 0


class SlowLoop:
    """A loop whose clock moves only when a test moves it, and that runs what is due on demand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    call_soon_threadsafe = call_soon

    def turn(self) -> float:
        """Run what is due once; return how long that held the loop."""
        began, due = self.now, self.due
        self.due = []
        for callback in due:
            callback()
        return self.now - began


def test_the_loop_turns_to_others_between_two_large_entries_of_one_handover() -> None:
    loop: Any = SlowLoop()
    got: list[int] = []

    def take(event: Event) -> None:
        assert isinstance(event, Committed)
        got.extend(index for _, index, _ in event.entries)
        loop.now += 0.09 * len(event.entries)  # 5,000 launches each

    handover = Handover(loop, take)
    handover.post(Committed([(b"large", index, 1) for index in range(1, 129)]))
    holds = [loop.turn() for _ in range(128)]
    assert got == list(range(1, 129))
    assert max(holds) < 0.1
    assert loop.due == []


async def test_entries_on_their_way_have_bounds_in_number_and_bytes() -> None:
    handover = Handover(asyncio.get_running_loop(), lambda _: None)
    for command, count in ((b"x" * (HANDOVER_BYTES_MAX // 4), 4), (b"", HANDOVER_ENTRIES_MAX)):
        assert handover.has_room
        handover.post(Committed([(command, index, 1) for index in range(1, count)]))
        assert handover.has_room
        handover.post(Committed([(command, count, 1)]))
        assert not handover.has_room
        await settle()
    assert handover.has_room


async def test_nothing_arrives_after_the_end() -> None:
    got: list[Event] = []
    handover = Handover(asyncio.get_running_loop(), got.append)
    handover.post(Refused([1]))
    handover.close()
    handover.post(Refused([2]))
    await settle()
    assert got == []
