"""A lane: calls that may hang, in a thread of their own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

from cron.errors import Shutdown
from cron.lane import Lane


async def test_calls_come_one_after_the_other_in_a_thread_of_their_own() -> None:
    lane = Lane("backup")
    seen: list[tuple[int, str]] = []

    def call(number: int) -> int:
        seen.append((number, threading.current_thread().name))
        return number * 2

    answers = await asyncio.gather(*(lane.work(partial(call, number)) for number in range(5)))
    lane.close()
    assert answers == [0, 2, 4, 6, 8]
    assert seen == [(number, "backup") for number in range(5)]


async def test_what_a_call_raises_is_its_askers() -> None:
    lane = Lane("backup")
    with pytest.raises(ZeroDivisionError):
        await lane.work(lambda: 1 // 0)
    assert await lane.work(lambda: 1) == 1
    lane.close()


async def test_who_stops_waiting_harms_nobody() -> None:
    lane = Lane("backup")
    goes_on = threading.Event()
    waiting = asyncio.create_task(lane.work(goes_on.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    goes_on.set()
    assert await lane.work(lambda: "next") == "next"
    lane.close()


async def test_a_closed_lane_takes_nothing() -> None:
    lane = Lane("backup")
    lane.close()
    lane.close()
    with pytest.raises(Shutdown, match="backup is stopped"):
        await lane.work(lambda: 1)


HANGS = """
import asyncio, threading
from cron.lane import Lane

async def main():
    lane = Lane("backup")
    hangs = threading.Event()
    def hang():
        hangs.set()
        threading.Event().wait()
    asyncio.create_task(lane.work(hang))
    while not hangs.is_set():
        await asyncio.sleep(0.01)
    lane.close()

asyncio.run(main())
print("ended")
"""


def test_a_call_that_hangs_keeps_no_process_from_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", HANGS], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


# --- calls for which nobody waits


async def test_what_is_left_to_a_lane_is_done_after_what_is_under_way() -> None:
    lane, done, gate = Lane("test"), [], threading.Event()
    await lane.work(lambda: None)
    lane.leave(lambda: done.append(gate.wait(30)))
    lane.leave(lambda: done.append("second"))
    assert done == []
    gate.set()
    await lane.work(lambda: done.append("third"))
    assert done == [True, "second", "third"]
    lane.close()


async def test_what_is_left_before_the_lane_closes_is_done() -> None:
    lane, gate, done = Lane("test"), threading.Event(), threading.Event()
    await lane.work(lambda: None)
    lane.leave(lambda: gate.wait(30))
    lane.leave(done.set)
    lane.close()
    gate.set()
    assert done.wait(30)


async def test_where_no_thread_is_left_it_is_done_at_once() -> None:
    lane, done = Lane("test"), []
    lane.leave(lambda: done.append("before the first"))
    lane.close()
    lane.leave(lambda: done.append("after the last"))
    assert done == ["before the first", "after the last"]
