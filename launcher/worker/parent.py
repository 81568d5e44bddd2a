"""The parent of a worker's processes: starts them, starts them again, stops them. Imports little.

Theory of operation. One thread polls: a pidfd for each child, a pipe for signals, and the time at
which something is to be done. A child that ends is started again, after a pause that doubles while
its lives are short. Each child shares a slate with its parent (lease.py); one that should have
killed itself and has not is killed here. A pipe whose other end each child holds tells them of this
process's own end, however it comes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from launcher.worker.clock import boot_ms
from launcher.worker.lease import PARENT_MARGIN_MS, Slate, make_slate
from launcher.worker.options import (
    EXIT_LOST,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_STUCK,
    ChildOptions,
    WorkerOptions,
)

PAUSE_MS_MIN: Final = 100
PAUSE_MS_MAX: Final = 5_000
LONG_LIFE_MS: Final = 10_000
"""A child that lived so long is started again at once, or nearly."""
SAY_EVERY_MS: Final = 1_000
LOOK_EVERY_MS: Final = 250
"""How often a child without a lease is looked at."""
KILL_AFTER_MS: Final = 2_000
"""After the graces of a drain, at whose end a child ends by itself if it can."""
_ENDS: Final = {
    EXIT_OK: "was told to leave",
    EXIT_REFUSED: "was refused",
    EXIT_LOST: "lost its executor",
    EXIT_STUCK: "left handlers behind",
}
_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Pauses:
    """How long to wait before the next child of a place: twice as long after each short life."""

    def __init__(self) -> None:
        self._next_ms = PAUSE_MS_MIN

    def after(self, lived_ms: int) -> int:
        """Return the pause in milliseconds after a life of so many."""
        if lived_ms >= LONG_LIFE_MS:
            self._next_ms = PAUSE_MS_MIN
        pause_ms, self._next_ms = self._next_ms, min(PAUSE_MS_MAX, self._next_ms * 2)
        return pause_ms


class Place:
    """One of the worker's processes: the child that is there, or the time of the next one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: subprocess.Popen[bytes] | None = None
        self.slate: Slate | None = None
        self.pidfd = -1
        self.is_condemned = False
        self.start_ms = 0
        self._born_ms = 0
        self._pauses = Pauses()

    def start(self, options: ChildOptions, now_ms: int) -> None:
        """Start a child.

        Raises:
            OSError: the system has no room for one; the next is due after a pause.
        """
        self._born_ms = now_ms
        slate_fd = -1
        try:
            slate_fd = make_slate()
            said = msgspec.structs.replace(options, number=self.number, slate_fd=slate_fd)
            self.slate = Slate(slate_fd)
            self.child = start_child(said)
            self.pidfd = os.pidfd_open(self.child.pid)
        except OSError:
            self.signal(signal.SIGKILL)
            self.bury(now_ms)
            raise
        finally:
            if slate_fd >= 0:
                os.close(slate_fd)

    def bury(self, now_ms: int) -> int:
        """Let go of a child that has ended, and end it if it has not; return its exit code.

        Negative for a signal.
        """
        code = EXIT_OK
        if self.child is not None:
            # What its handlers started and left. The group's id is nobody else's until the wait.
            self.signal_group(signal.SIGKILL)
            code = self.child.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        if self.slate is not None:
            self.slate.close()
        self.child, self.slate, self.pidfd, self.is_condemned = None, None, -1, False
        self.start_ms = now_ms + self._pauses.after(now_ms - self._born_ms)
        return code

    def signal(self, number: int) -> None:
        """Send a signal to the child, if one is there. It is not reaped before `bury`."""
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the child and to what its handlers started."""
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, number)

    def condemn(self) -> None:
        """Kill the child."""
        self.is_condemned = True
        self.signal_group(signal.SIGKILL)

    def due_ms(self, now_ms: int) -> int:
        """Return when to look at it next."""
        if self.slate is None:
            return self.start_ms
        lease_ms = self.slate.lease_until_ms + PARENT_MARGIN_MS
        return lease_ms if lease_ms > now_ms else now_ms + LOOK_EVERY_MS


class Parent:
    """All processes of one worker."""

    def __init__(self, options: WorkerOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._places = [Place(number) for number in range(1, options.processes + 1)]
        self._ends: Counter[str] = Counter()
        self._said_ms = 0
        self._kill_ms = 0
        self._was_killed = False

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._kill_ms > 0

    def run(self) -> int:
        """Supervise until a signal says to stop and all children have ended; return the exit code.

        0: all ended by themselves. 1: some had to be killed, or were stuck.
        """
        life, mine = os.pipe()
        heard, bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        child = ChildOptions(worker=self._options, parent_fd=life)
        with _signals_to(bell), contextlib.ExitStack() as closing:
            for fd in (life, mine, heard, bell):
                closing.callback(os.close, fd)
            while not (self.is_stopping and all(place.child is None for place in self._places)):
                self._turn(child, heard)
        return 1 if self._was_killed else EXIT_OK

    def _turn(self, child: ChildOptions, heard: int) -> None:
        now_ms = boot_ms()
        for place in self._places:
            self._look(place, child, now_ms)
        poll = select.poll()
        poll.register(heard, select.POLLIN)
        for place in self._places:
            if place.pidfd >= 0:
                poll.register(place.pidfd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(self._wait_ms(boot_ms()))}
        now_ms = boot_ms()
        for place in self._places:
            if place.pidfd in ready:
                self._bury(place, now_ms)
        if heard in ready:
            os.read(heard, 64)
            self._stop(now_ms)
        self._report(now_ms)

    def _look(self, place: Place, child: ChildOptions, now_ms: int) -> None:
        if place.slate is None:
            if not self.is_stopping and now_ms >= place.start_ms:
                self._start(place, child, now_ms)
        elif place.is_condemned:
            pass  # it is dying, or hangs in the kernel
        elif place.slate.is_over(now_ms - PARENT_MARGIN_MS):
            self._say(f"kills process {place.number}: its guarded work outlived the lease")
            place.condemn()
        elif self.is_stopping and now_ms >= self._kill_ms:
            self._was_killed = True
            place.condemn()

    def _start(self, place: Place, child: ChildOptions, now_ms: int) -> None:
        try:
            place.start(child, now_ms)
        except OSError as error:
            self._ends[f"could not be started: {error}"] += 1

    def _wait_ms(self, now_ms: int) -> int:
        times = [one.due_ms(now_ms) for one in self._places if one.slate or not self.is_stopping]
        if self.is_stopping:
            times.append(max(self._kill_ms, now_ms + LOOK_EVERY_MS))
        if self._ends:
            times.append(self._said_ms + SAY_EVERY_MS)
        return max(0, min(times, default=now_ms) - now_ms)

    def _bury(self, place: Place, now_ms: int) -> None:
        code = place.bury(now_ms)
        if self.is_stopping:
            self._was_killed = self._was_killed or code == EXIT_STUCK
        else:
            self._ends[_ENDS.get(code) or _ended(code)] += 1

    def _stop(self, now_ms: int) -> None:
        if self.is_stopping:
            return
        self._say("stops: takes no more, finishes what runs")
        graces_ms = self._options.grace_ms + self._options.cancelled_grace_ms
        self._kill_ms = now_ms + graces_ms + KILL_AFTER_MS
        for place in self._places:
            place.signal(signal.SIGTERM)

    def _report(self, now_ms: int) -> None:
        """Say how children ended: a crash loop of many is one line a second."""
        if not self._ends or now_ms < self._said_ms + SAY_EVERY_MS:
            return
        for end, times in self._ends.items():
            self._say(f"a process {end}" + (f", {times} times" if times > 1 else ""))
        self._ends.clear()
        self._said_ms = now_ms


def start_child(options: ChildOptions) -> subprocess.Popen[bytes]:
    """Start a child: a program of its own, at the head of a process group of its own."""
    fds = [fd for fd in (options.slate_fd, options.parent_fd) if fd >= 0]
    said = msgspec.json.encode(options).decode()
    command = [sys.executable, "-m", "launcher.worker.child", said]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, process_group=0)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


@contextlib.contextmanager
def _signals_to(bell: int) -> Iterator[None]:
    """Have the signals that stop a worker wake its thread, while this is open."""
    before = {number: signal.signal(number, lambda *_: None) for number in _STOPS}
    wakeup = signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, action in before.items():
            signal.signal(number, action)
