"""Which task begins when, what threads say on its way to the socket, and the lease's two hands."""

from __future__ import annotations

import os
import select
import socket
import threading

import pytest

from launcher.worker.errors import BadFrame
from launcher.worker.lease import Slate, Watchdog, make_slate
from launcher.worker.link import Bell, Link, LinkLost
from launcher.worker.news import (
    BEATS_EVERY_MS,
    OUTPUT_EVERY_MS,
    OUTPUT_WAITING_BYTES_MAX,
    News,
)
from launcher.worker.outcome import Ended
from launcher.worker.registry import Registry
from launcher.worker.wire import (
    OUTPUT_PIECE_BYTES_MAX,
    Drain,
    FromChild,
    Lease,
    Output,
    Result,
    Task,
    encode,
    from_child,
)
from launcher.worker.work import AHEAD_MAX, Holding, Work

OK = Ended(Result.OK)
LEASE_MS = 1_000


class Nobody:
    """Hears nothing."""

    def beat(self, name: str) -> None: ...

    def write(self, name: str, text: str) -> None: ...


def task(n: int, handler: str = "a", guarded: bool = False) -> Task:
    return Task(f"t/j{n}@2026-11-20T15:00:00Z#1", handler, b"", 1, 0, guarded=guarded)


@pytest.fixture
def holding() -> Holding:
    registry = Registry()
    for name in ("a", "b"):

        @registry.handler(name, timeout="5s")
        def function() -> None: ...

        del function
    return Holding(registry, threads=2)


def begin(holding: Holding, now_ms: int = 0) -> list[Work]:
    beginning, unleased = holding.begin(Nobody(), now_ms, LEASE_MS)
    assert unleased == []
    return beginning


def names(works: list[Work]) -> list[str]:
    return [work.task.name for work in works]


def test_as_many_begin_as_there_are_threads_in_order(holding: Holding) -> None:
    tasks = [task(n) for n in range(4)]
    assert holding.take(tasks) == []
    first = begin(holding)
    assert names(first) == [tasks[0].name, tasks[1].name]
    assert begin(holding) == []
    outcome = holding.end(first[1], Ended(Result.RETRY, 5, "busy"), 10, 900)
    assert (outcome.name, outcome.after_ms, outcome.started_ms) == (tasks[1].name, 5, 10)
    assert names(begin(holding)) == [tasks[2].name]
    assert len(holding) == 3


def test_the_handlers_bound_is_the_contexts(holding: Holding) -> None:
    holding.take([task(1)])
    (work,) = begin(holding)
    assert work.context is not None
    assert work.context.remaining is not None
    assert work.context.remaining <= 5


def test_quick_handlers_begin_ahead_of_the_threads_and_slow_ones_do_not(holding: Holding) -> None:
    for n in range(20):
        holding.take([task(n)])
        (work,) = begin(holding)
        holding.end(work, OK, 10, 10)
    many = [task(n) for n in range(100, 400)]
    holding.take(many)
    ahead = begin(holding)
    assert len(ahead) == 2 + AHEAD_MAX
    for work in ahead[:5]:
        holding.end(work, OK, 10, 600)
    assert begin(holding) == []


def test_a_slow_handler_waits_although_a_quick_one_is_behind_it(holding: Holding) -> None:
    # First in, first out: what is behind may be the next second's, and must not starve it.
    holding.take([task(n, "b") for n in range(3)] + [task(9, "a")])
    assert len(begin(holding)) == 2
    assert begin(holding) == []


def test_a_name_is_taken_once(holding: Holding) -> None:
    holding.take([task(1), task(1)])
    holding.take([task(1)])
    assert len(begin(holding)) == 1
    assert begin(holding) == []


def test_a_handler_that_is_not_here_is_fatal_and_never_began(holding: Holding) -> None:
    (outcome,) = holding.take([task(1, "other")])
    assert (outcome.result, outcome.started_ms) == (Result.FATAL, 0)
    assert len(holding) == 0


def test_guarded_work_does_not_begin_without_a_lease(holding: Holding) -> None:
    holding.take([task(1, guarded=True), task(2)])
    beginning, unleased = holding.begin(Nobody(), LEASE_MS, LEASE_MS)
    assert names(unleased) == [task(1).name]
    assert names(beginning) == [task(2).name]
    assert holding.guarded == 0


def test_guarded_work_is_counted_while_it_runs(holding: Holding) -> None:
    holding.take([task(1, guarded=True), task(2)])
    works = begin(holding, LEASE_MS - 1)
    assert holding.guarded == 1
    for work in works:
        holding.end(work, OK, 1, 2)
    assert holding.guarded == 0


def test_what_waits_can_be_dropped_and_what_has_begun_cannot(holding: Holding) -> None:
    holding.take([task(n) for n in range(4)])
    begin(holding)
    assert not holding.drop(task(0).name)
    assert holding.drop(task(2).name)
    assert not holding.drop(task(2).name)
    assert not holding.drop("nobody")
    for work in holding.begun():
        holding.end(work, OK, 1, 2)
    assert names(begin(holding)) == [task(3).name]


def test_who_leaves_gives_back_what_waits_and_keeps_what_has_begun(holding: Holding) -> None:
    holding.take([task(n) for n in range(5)])
    begin(holding)
    holding.drop(task(3).name)
    assert holding.leave() == [task(2).name, task(4).name]
    assert names(holding.begun()) == [task(0).name, task(1).name]
    assert begin(holding) == []


# ---- news


@pytest.fixture
def news(holding: Holding) -> News:
    holding.take([task(1), task(2)])
    begin(holding)
    return News(holding, Bell())


def test_what_a_handler_wrote_comes_with_or_before_its_end(holding: Holding, news: News) -> None:
    name = task(1).name
    work = holding.get(name)
    assert work is not None
    news.write(name, "one\n")
    news.write(name, "two\n")
    news.end(work, Ended(Result.RAISED, 0, "", "Traceback\n"), 1, 2)
    batch = news.take(0)
    assert batch.output == [(name, b"one\ntwo\nTraceback\n")]
    assert [end.work for end in batch.ends] == [work]
    assert news.take(0) == ([], [], [])


def test_heartbeats_are_sent_at_their_time_once_for_any_number(news: News) -> None:
    for _ in range(1000):
        news.beat(task(1).name)
    news.beat("nobody")
    assert news.take(0).beats == [task(1).name]
    assert news.due_ms() > 1 << 40
    news.beat(task(1).name)
    assert news.take(BEATS_EVERY_MS - 1).beats == []
    assert news.due_ms() == BEATS_EVERY_MS
    assert news.take(BEATS_EVERY_MS).beats == [task(1).name]


def test_lines_are_sent_at_their_time_or_with_an_end(holding: Holding, news: News) -> None:
    one, two = holding.get(task(1).name), task(2).name
    assert one is not None
    news.write(two, "a")
    assert news.take(0).output == [(two, b"a")]
    news.write(two, "b")
    assert news.take(OUTPUT_EVERY_MS - 1).output == []
    assert news.due_ms() == OUTPUT_EVERY_MS
    news.write(two, "c")
    assert news.take(OUTPUT_EVERY_MS).output == [(two, b"bc")]
    news.write(one.task.name, "last")
    news.end(one, OK, 1, 2)
    batch = news.take(OUTPUT_EVERY_MS)
    assert batch.output == [(one.task.name, b"last")]
    assert len(batch.ends) == 1


def test_output_that_nobody_reads_is_bounded_and_the_loss_is_said(news: News) -> None:
    name, line = task(1).name, "x" * 1023 + "\n"
    lines = OUTPUT_WAITING_BYTES_MAX // 1024
    for _ in range(lines + 3):
        news.write(name, line)
    pieces = news.take(0).output
    assert all(len(piece) <= OUTPUT_PIECE_BYTES_MAX for _, piece in pieces)
    whole = b"".join(piece for _, piece in pieces)
    assert whole.startswith(line.encode() * lines)
    assert whole[lines * 1024 :] == b"[3072 bytes dropped: written faster than they are read]\n"
    news.write(name, "again\n")
    assert news.take(OUTPUT_EVERY_MS).output == [(name, b"again\n")]


def test_what_a_thread_writes_after_the_end_is_nobodys(holding: Holding, news: News) -> None:
    work = holding.get(task(1).name)
    assert work is not None
    news.end(work, OK, 1, 2)
    (end,) = news.take(0).ends
    news.write(task(1).name, "between\n")
    holding.end(*end)
    news.write(task(1).name, "late\n")
    assert news.take(0).output == []


def test_text_that_is_no_text_is_written_all_the_same(news: News) -> None:
    news.write(task(1).name, "a\udcffb")
    assert news.take(0).output == [(task(1).name, b"a?b")]


# ---- bell and link


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_a_bell_wakes_once_until_it_is_heard() -> None:
    bell = Bell()
    assert not readable(bell.fd)
    bell.ring()
    bell.ring()
    assert readable(bell.fd)
    bell.hear()
    assert not readable(bell.fd)
    bell.hear()
    bell.ring()
    assert readable(bell.fd)


@pytest.fixture
def ends() -> tuple[Link, socket.socket]:
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Link(mine), other


def test_a_link_takes_in_what_has_arrived_and_never_waits(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    assert link.receive() == []
    other.sendall(encode(Lease(5)) + encode(Drain()))
    assert link.receive() == [Lease(5), Drain()]
    other.close()
    with pytest.raises(LinkLost, match="closed"):
        link.receive()
    link.close()


def test_a_link_whose_other_end_does_not_read_keeps_the_rest(
    ends: tuple[Link, socket.socket],
) -> None:
    link, other = ends
    message = Output("n", bytes(4 << 20))
    link.say(message)
    link.flush()
    assert not link.is_sent
    assert link.mask & select.EPOLLOUT
    frames = from_child()
    heard: list[FromChild] = []
    while not heard:
        link.flush()
        heard += frames.feed(other.recv(1 << 20))
    assert heard == [message]
    assert link.is_sent
    assert link.mask == select.EPOLLIN
    other.close()
    link.say(message)
    with pytest.raises(LinkLost):
        link.flush()
    link.close()


def test_garbage_from_the_executor_is_told(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    other.sendall(b"GET / HTTP/1.1\r\n")
    with pytest.raises(BadFrame):
        link.receive()
    other.close()
    link.close()


# ---- the lease


class Clock:
    """The boot-time clock, turned by hand."""

    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def test_a_slate_shows_the_parent_what_the_child_wrote() -> None:
    fd = make_slate()
    mine, theirs = Slate(fd), Slate(fd)
    os.close(fd)
    assert (mine.lease_until_ms, mine.guarded) == (0, 0)
    theirs.lease_until_ms, theirs.guarded = 1 << 50, 3
    assert (mine.lease_until_ms, mine.guarded) == (1 << 50, 3)
    assert not mine.is_over((1 << 50) - 1)
    assert mine.is_over(1 << 50)
    theirs.guarded = 0
    assert not mine.is_over(1 << 50)
    mine.close()
    theirs.close()


def test_the_watchdog_kills_when_guarded_work_outlives_the_lease() -> None:
    clock, killed = Clock(), threading.Event()
    watchdog = Watchdog(Slate(make_slate()), killed.set, clock)
    watchdog.renew(5_000)
    assert watchdog.look() is None
    watchdog.guard(1)
    assert watchdog.look() == 5.0
    clock.now_ms = 4_999
    assert watchdog.look() == 0.001
    watchdog.renew(9_000)
    clock.now_ms = 8_999
    watchdog.look()
    assert not killed.is_set()
    clock.now_ms = 9_000
    watchdog.look()
    assert killed.is_set()


def test_the_watchdog_wakes_when_guarded_work_begins_or_the_lease_is_taken_back() -> None:
    clock, killed = Clock(), threading.Event()
    watchdog = Watchdog(Slate(make_slate()), killed.set, clock)
    watchdog.start()
    watchdog.renew(3_600_000)
    watchdog.guard(1)
    watchdog.renew(0)
    assert killed.wait(30)
    watchdog.guard(0)  # its thread rests again


def test_the_watchdog_leaves_a_process_without_guarded_work_alone() -> None:
    clock, killed = Clock(), threading.Event()
    watchdog = Watchdog(Slate(make_slate()), killed.set, clock)
    watchdog.renew(5)
    watchdog.guard(2)
    watchdog.guard(0)
    clock.now_ms = 1_000_000
    assert watchdog.look() is None
    assert not killed.is_set()
