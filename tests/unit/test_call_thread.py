"""A thread: calls that may hang, in a thread of their own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

from cron.call_thread import CallThread
from cron.errors import Shutdown


async def test_calls_come_one_after_the_other_in_a_thread_of_their_own() -> None:
    call_thread = CallThread("backup")
    seen: list[tuple[int, str]] = []

    def call(number: int) -> int:
        seen.append((number, threading.current_thread().name))
        return number * 2

    answers = await asyncio.gather(
        *(call_thread.work(partial(call, number)) for number in range(5))
    )
    call_thread.close()
    assert answers == [0, 2, 4, 6, 8]
    assert seen == [(number, "backup") for number in range(5)]


async def test_what_a_call_raises_is_its_askers() -> None:
    call_thread = CallThread("backup")
    with pytest.raises(ZeroDivisionError):
        await call_thread.work(lambda: 1 // 0)
    assert await call_thread.work(lambda: 1) == 1
    call_thread.close()


async def test_who_stops_waiting_harms_nobody() -> None:
    call_thread = CallThread("backup")
    goes_on = threading.Event()
    waiting = asyncio.create_task(call_thread.work(goes_on.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    goes_on.set()
    assert await call_thread.work(lambda: "next") == "next"
    call_thread.close()


async def test_a_closed_call_thread_takes_nothing() -> None:
    call_thread = CallThread("backup")
    call_thread.close()
    call_thread.close()
    with pytest.raises(Shutdown, match="backup is stopped"):
        await call_thread.work(lambda: 1)


HANGS = """
import asyncio, threading
from cron.call_thread import CallThread

async def main():
    call_thread = CallThread("backup")
    hangs = threading.Event()
    def hang():
        hangs.set()
        threading.Event().wait()
    asyncio.create_task(call_thread.work(hang))
    while not hangs.is_set():
        await asyncio.sleep(0.01)
    call_thread.close()

asyncio.run(main())
print("ended")
"""


def test_a_call_that_hangs_keeps_no_process_from_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", HANGS],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


# --- calls for which nobody waits


async def test_what_is_left_to_a_call_thread_is_done_after_what_is_under_way() -> None:
    call_thread, done, gate = CallThread("test"), [], threading.Event()
    await call_thread.work(lambda: None)
    call_thread.leave(lambda: done.append(gate.wait(60)))
    call_thread.leave(lambda: done.append("second"))
    assert done == []
    gate.set()
    await call_thread.work(lambda: done.append("third"))
    assert done == [True, "second", "third"]
    call_thread.close()


async def test_what_is_left_before_the_call_thread_closes_is_done() -> None:
    call_thread, gate, done = CallThread("test"), threading.Event(), threading.Event()
    await call_thread.work(lambda: None)
    call_thread.leave(lambda: gate.wait(60))
    call_thread.leave(done.set)
    call_thread.close()
    gate.set()
    assert done.wait(60)


async def test_where_no_thread_is_left_it_is_done_at_once() -> None:
    call_thread, done = CallThread("test"), []
    call_thread.leave(lambda: done.append("before the first"))
    call_thread.close()
    call_thread.leave(lambda: done.append("after the last"))
    assert done == ["before the first", "after the last"]
