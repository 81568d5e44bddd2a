"""A child at work: it gets tasks from its executor, runs them in threads, and reports their ends.

Theory of operation. One thread, this one, owns the socket and the table of tasks. It submits a task
to the thread pool only when the `Started` of that task is with the kernel: bytes in a socket
outlive their writer, so an executor that reads what a dead child left in it knows what never began.
The threads queue their messages and ring a wake-up; this thread sends what is queued as one batch.
It wakes for the socket, the wake-up, and the time of queued messages. While tasks wait for a
thread, no thread rings, and ends are collected for GATHER_MS.

When the connection ends, the process ends at once: its handlers must not outlive the executor that
answers for them.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Final

from launcher.clock import boot_ms
from launcher.worker.context import reason_label
from launcher.worker.errors import NoExecutor
from launcher.worker.lease import Watchdog
from launcher.worker.registry import Registry
from launcher.worker.thread_pool import ThreadPool
from launcher.worker.wire import (
    PULSE_MS,
    Beat,
    Cancel,
    Done,
    Drain,
    Ends,
    FromChild,
    Hello,
    Lease,
    Leaving,
    Output,
    Refused,
    Result,
    Run,
    Started,
    ToChild,
    Welcome,
    encode,
    to_child,
)
from launcher.worker.work import Begun, Holding, Outgoing, WakeUp

NEVER_MS: Final = 1 << 62
GATHER_MS: Final = 5
"""How long ends of quick tasks wait while others of them wait for a thread. After this time more
threads are woken for these, and again after twice the time, up to NUDGE_MS_MAX."""
NUDGE_MS_MAX: Final = 50
_READ_BYTES: Final = 256 << 10
_UNLEASED: Final = "never began: the executor has no lease"


class ParentLost(Exception):
    """The parent of this child is gone, which would kill it at the end of the lease."""


class StillRunning(Exception):
    """A drain's time is over and handlers still run."""


class LinkLost(Exception):
    """The connection ended: the executor is gone, or does not want this child."""


class Link:
    """A connected socket that never blocks."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._frames = to_child()
        self._out = bytearray()
        self.fd = connected.fileno()

    @property
    def is_sent(self) -> bool:
        """Return whether all messages are with the kernel, and so survive this process."""
        return not self._out

    @property
    def mask(self) -> int:
        """Return the events to poll for."""
        return select.EPOLLIN | (select.EPOLLOUT if self._out else 0)

    def receive(self) -> list[ToChild]:
        """Return the messages that have arrived.

        Raises:
            LinkLost: the connection ended.
            BadFrame: the bytes are no message.
        """
        try:
            received = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise LinkLost(str(error)) from error
        if not received:
            raise LinkLost("the executor closed it")
        return self._frames.feed(received)

    def put(self, message: FromChild) -> None:
        """Queue a message; `flush` sends it."""
        self._out += encode(message)

    def flush(self) -> None:
        """Send as much as the socket takes.

        Raises:
            LinkLost: the connection ended.
        """
        while self._out:
            try:
                sent = self._socket.send(self._out)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise LinkLost(str(error)) from error
            del self._out[:sent]

    def close(self) -> None:
        """Close the socket; what was sent is still delivered."""
        self._socket.close()


class Serving:
    """One connection, from Hello to its end. `welcomed` is called with the executor's id once it
    takes this child."""

    def __init__(
        self,
        link: Link,
        wake_up: WakeUp,
        registry: Registry,
        hello: Hello,
        watchdog: Watchdog,
        welcomed: Callable[[str], None] = lambda _executor: None,
    ) -> None:
        self._link, self._wake_up, self._hello = link, wake_up, hello
        self._watchdog = watchdog
        self._welcomed = welcomed
        self._holding = Holding(registry, hello.threads)
        self._outgoing = Outgoing(self._holding, wake_up)
        self._announced: list[Begun] = []
        self._thread_pool = ThreadPool(registry, hello.threads, self._outgoing.end, wake_up.ring)
        self._nudge_at_ms = 0
        self._nudge_after_ms = GATHER_MS
        self._mask = link.mask
        self._drain_asked = False
        self._grace_ends_ms = 0
        self._graces_ms = (0, 0)
        self._has_cancelled = False
        self._has_left = False
        self._pulse_at_ms = 0

    def drain(self) -> None:
        """Ask for a drain; from a signal handler."""
        self._drain_asked = True
        self._wake_up.ring()

    def run(self, parent_fd: int, grace_ms: int, cancelled_grace_ms: int) -> None:
        """Serve until drained. Tasks that run then have `grace_ms`, are cancelled, and have
        `cancelled_grace_ms` more.

        Raises:
            NoExecutor: the executor refused this child, which has no tasks.
            LinkLost, ParentLost, StillRunning, BadFrame: the caller ends the process at once.
        """
        self._graces_ms = (grace_ms, cancelled_grace_ms)
        self._thread_pool.start()
        self._link.put(self._hello)
        self._link.flush()
        with select.epoll() as poll:
            poll.register(self._link.fd, self._mask)
            poll.register(self._wake_up.fd, select.EPOLLIN)
            if parent_fd >= 0:
                poll.register(parent_fd, select.EPOLLIN)
            while not (self._holding.is_leaving and not self._holding and self._link.is_sent):
                self._turn(poll, parent_fd)
                if self._has_left and self._link.is_sent:
                    return

    def _turn(self, poll: select.epoll, parent_fd: int) -> None:
        for fd, _ in poll.poll(self._pause_s()):
            if fd == parent_fd:
                raise ParentLost
            if fd == self._link.fd:
                for message in self._link.receive():
                    self._obey(message)
        self._wake_up.reset()
        if self._drain_asked:
            self._drain_asked = False
            self._leave()
        self._report()
        self._begin()
        self._link.flush()
        if self._announced and self._link.is_sent:
            some, self._announced = self._announced, []
            self._thread_pool.submit(some, self._holding.quick)
            self._nudge_after_ms = GATHER_MS
            self._nudge_at_ms = boot_ms() + GATHER_MS
        elif self._thread_pool.has_waiting and boot_ms() >= self._nudge_at_ms:
            self._thread_pool.nudge()
            self._nudge_after_ms = min(2 * self._nudge_after_ms, NUDGE_MS_MAX)
            self._nudge_at_ms = boot_ms() + self._nudge_after_ms
        if self._grace_ends_ms:
            self._hurry(boot_ms())
        if self._link.mask != self._mask:
            self._mask = self._link.mask
            poll.modify(self._link.fd, self._mask)

    def _pause_s(self) -> float | None:
        pulse_ms = self._pulse_at_ms if self._holding.begun else NEVER_MS
        due_ms = min(self._outgoing.due_ms(), self._grace_ends_ms or NEVER_MS, pulse_ms)
        if self._thread_pool.has_waiting:
            due_ms = min(due_ms, self._nudge_at_ms)
        elif self._outgoing.has_ends:  # since the last look, and no thread may have rung
            return 0
        return None if due_ms >= NEVER_MS else max(0, due_ms - boot_ms()) / 1000

    def _obey(self, message: ToChild) -> None:
        match message:
            case Run():
                self._take(message)
            case Cancel(tasks):
                for number, reason in tasks:
                    self._cancel(number, reason_label(reason))
            case Lease(until_ms):
                self._watchdog.renew(until_ms)
            case Welcome(lease_until_ms, executor=executor):
                self._watchdog.renew(lease_until_ms)
                self._watchdog.lease_page.serves = True
                self._welcomed(executor)
            case Refused(text):
                if self._holding:
                    raise LinkLost(f"the executor refused this worker: {text}")
                raise NoExecutor(f"the executor refused this worker: {text}")
            case Drain():
                self._watchdog.lease_page.is_renewed = False
                self._drain_asked = True

    def _take(self, run: Run) -> None:
        if self._holding.is_leaving:
            numbers = [one.first + place for one in run.tasks for place in range(len(one.works))]
            self._link.put(Leaving(numbers))
            return
        never = self._holding.take(run)
        if never:
            self._link.put(Done(never))

    def _cancel(self, number: int, reason: str) -> None:
        if self._holding.drop(number):
            said = f"cancelled before it began: {reason}"
            self._link.put(Done([Ends(Result.CANCELLED, [(number, 0, 0)], 0, said)]))
        elif begun := self._holding.begun.get(number):
            self._thread_pool.cancel(*begun, reason)

    def _leave(self) -> None:
        """Accept no more tasks. A child that is renewed finishes those that run; one that is
        stopped has its grace for that."""
        if not self._holding.is_leaving:
            self._link.put(Leaving(self._holding.leave()))
        if not self._grace_ends_ms and not self._watchdog.lease_page.is_renewed:
            self._grace_ends_ms = boot_ms() + self._graces_ms[0]

    def _hurry(self, now_ms: int) -> None:
        """At the end of a drain's grace: first cancel what runs, then give up. Work that another
        worker can look up is not cancelled: this process ends and leaves it to that one."""
        begun = list(self._holding.begun.values())
        ending = [one for one in begun if not one[0].served.resumes]
        if now_ms < self._grace_ends_ms and (ending or not self._has_cancelled):
            return
        if not ending:
            self._has_left = bool(begun)
            return
        if self._has_cancelled:
            raise StillRunning
        self._has_cancelled = True
        self._grace_ends_ms = now_ms + self._graces_ms[1]
        for handler, context in ending:
            self._thread_pool.cancel(handler, context, "the worker is stopped")

    def _report(self) -> None:
        """Send what the threads have queued; if they are silent, send that this process lives."""
        now_ms = boot_ms()
        batch = self._outgoing.take(now_ms)
        for number, piece in batch.output:
            self._link.put(Output(number, piece))
        is_pulse_due = bool(self._holding.begun) and now_ms >= self._pulse_at_ms
        if batch.beats or is_pulse_due:
            self._link.put(Beat(batch.beats))
            self._pulse_at_ms = now_ms + PULSE_MS
        if batch.ends:
            self._link.put(Done(self._holding.end(batch.ends)))
            self._watchdog.guard(self._holding.guarded)
            self._watchdog.lease_page.launches += len(batch.ends)

    def _begin(self) -> None:
        """Announce the tasks that begin now."""
        if self._announced:
            return
        until_ms = self._watchdog.lease_until_ms
        beginning, unleased = self._holding.begin(self._outgoing, boot_ms(), until_ms)
        if unleased:
            never = [(number, 0, 0) for number in unleased]
            self._link.put(Done([Ends(Result.CANCELLED, never, 0, _UNLEASED)]))
        if beginning:
            self._watchdog.guard(self._holding.guarded)
            self._pulse_at_ms = max(self._pulse_at_ms, boot_ms() + PULSE_MS)
            self._link.put(Started([context.number for _, context in beginning]))
            self._announced = beginning
