"""A lane takes calls for which nobody waits, and makes each of them once."""

from __future__ import annotations

import threading

from cron.leader.lane import Lane


async def test_what_is_left_to_a_lane_is_done_after_what_is_under_way() -> None:
    lane, done, gate = Lane("test"), [], threading.Event()
    await lane.work(lambda: None)
    lane.leave(lambda: done.append(gate.wait(5)))
    lane.leave(lambda: done.append("second"))
    assert done == []
    gate.set()
    await lane.work(lambda: done.append("third"))
    assert done == [True, "second", "third"]
    lane.close()


async def test_what_is_left_before_the_lane_closes_is_done() -> None:
    lane, gate, done = Lane("test"), threading.Event(), threading.Event()
    await lane.work(lambda: None)
    lane.leave(lambda: gate.wait(5))
    lane.leave(done.set)
    lane.close()
    gate.set()
    assert done.wait(5)


async def test_where_no_thread_is_left_it_is_done_at_once() -> None:
    lane, done = Lane("test"), []
    lane.leave(lambda: done.append("before the first"))
    lane.close()
    lane.leave(lambda: done.append("after the last"))
    assert done == ["before the first", "after the last"]
