"""Long work beside the event loop rests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from cron.pace import REST_S_MAX, RESTS, TURN_ITEMS, WakeUp, in_turns, paced


class Worker:
    """Makes pieces that take a known time, on a clock that only work and rests move."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.rests_s: list[float] = []

    def pieces(self, *takes_s: float) -> Iterator[int]:
        for number, take_s in enumerate(takes_s):
            self.now_s += take_s
            yield number

    def rest(self, seconds: float) -> None:
        self.rests_s.append(round(seconds, 9))
        self.now_s += seconds

    def paced(self, *takes_s: float) -> Iterator[int]:
        return paced(self.pieces(*takes_s), self.rest, lambda: self.now_s)


def test_all_pieces_come_in_their_order():
    assert list(Worker().paced(0.001, 0.002, 0.0)) == [0, 1, 2]
    assert list(Worker().paced()) == []


def test_a_rest_is_longer_than_the_work_before_it_and_does_not_count_as_work():
    worker = Worker()
    list(worker.paced(0.001, 0.004))
    assert worker.rests_s == [RESTS * 0.001, RESTS * 0.004]


def test_what_is_done_with_a_piece_is_work_as_well():
    worker = Worker()
    for _ in worker.paced(0.001):
        worker.now_s += 0.006
    assert worker.rests_s == [round(RESTS * 0.007, 9)]


def test_a_piece_that_took_long_costs_no_long_rest():
    worker = Worker()
    list(worker.paced(30.0, 0.001))
    assert worker.rests_s == [REST_S_MAX, RESTS * 0.001]


def test_a_long_list_lets_others_on_the_loop_have_their_turns():
    async def longest_stretch() -> int:
        others, stretch, longest = 0, 0, 0

        async def beat() -> None:
            nonlocal others, stretch, longest
            while others < 10_000:
                others, longest, stretch = others + 1, max(longest, stretch), 0
                await asyncio.sleep(0)

        beating = asyncio.create_task(beat())
        done = []
        async for item in in_turns(range(5 * TURN_ITEMS)):
            done.append(item)
            stretch += 1
        beating.cancel()
        assert done == list(range(5 * TURN_ITEMS))
        return longest

    assert 0 < asyncio.run(longest_stretch()) <= TURN_ITEMS


async def test_a_wake_up_ends_a_wait_or_was_there_before_it():
    wake = WakeUp()
    wake.set()
    assert await wake.wait(3_600)
    wake.clear()
    waiting = asyncio.create_task(wake.wait(3_600))
    await asyncio.sleep(0)
    wake.set()
    wake.set()
    assert await waiting


async def test_a_wait_ends_by_itself_and_when_it_is_cancelled():
    wake = WakeUp()
    assert not await wake.wait(0)
    waiting = asyncio.create_task(wake.wait(3_600))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    wake.set()  # nobody waits any more
    assert wake.is_set
