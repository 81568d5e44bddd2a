"""The parent of a worker's processes: starts them, starts them again, stops them. Imports little.

Theory of operation. One thread polls: a pidfd for each child, a pipe for signals, and the time at
which something is to be done. A child that ends is started again, after a pause that doubles while
its lives are short. Each child shares a lease page with its parent (lease.py); one that should have
killed itself and has not is killed here. A pipe whose other end each child holds tells them of this
process's own end, however it comes.

A child that has become too big, or has run as much as it should (renewal.py), is asked to leave,
and another takes its place when it has ended. One child at a time, and only while all others serve:
a worker never does without more than one, and an app that cannot be started any more costs none.

A child that ends is not reaped at once: while a dead process waits for that, its executor, which is
not its parent, can read how it ended (`/proc/PID/stat`), and tells it to whoever asks for its
launches.
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
from launcher.worker.lease import PARENT_MARGIN_MS, LeasePage, make_lease_page
from launcher.worker.options import (
    EXIT_LOST,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_STUCK,
    ChildOptions,
    WorkerOptions,
)
from launcher.worker.renewal import Bounds, resident_bytes

SAY_EVERY_MS: Final = 1_000
BOUNDS_EVERY_MS: Final = 500
"""How often children are measured, where they have bounds."""
EXCESS_LOOKS: Final = 3
"""Who has too much memory is killed at this look in a row: its executor, who kills it before that,
tells those who ask for its launches why."""
KILL_AFTER_MS: Final = 2_000
"""After the graces of a drain, at whose end a child ends by itself if it can."""
_ENDS: Final = {
    EXIT_OK: "was told to leave",
    EXIT_REFUSED: "was refused",
    EXIT_LOST: "lost its executor",
    EXIT_STUCK: "left handlers behind",
}
_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Parent:
    """All processes of one worker."""

    def __init__(self, options: WorkerOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._places = [Place(number) for number in range(1, options.processes + 1)]
        self._leavers: list[Place] = []
        self._bounds = Bounds(options)
        self._measured_ms = 0
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
        heard, wake_up = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        child = ChildOptions(worker=self._options, parent_fd=life)
        with _signals_to(wake_up), contextlib.ExitStack() as closing:
            for fd in (life, mine, heard, wake_up):
                closing.callback(os.close, fd)
            while not (self.is_stopping and all(place.child is None for place in self._all)):
                self._turn(child, heard)
        return 1 if self._was_killed else EXIT_OK

    @property
    def _all(self) -> list[Place]:
        return self._places + self._leavers

    def _turn(self, child: ChildOptions, heard: int) -> None:
        now_ms = boot_ms()
        for place in self._all:
            self._look(place, child, now_ms)
        self._measure(now_ms)
        poll = select.poll()
        poll.register(heard, select.POLLIN)
        for place in self._all:
            if place.pidfd >= 0 and not place.ended_ms:
                poll.register(place.pidfd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(self._wait_ms(boot_ms()))}
        now_ms = boot_ms()
        for place in self._all:
            if place.pidfd in ready:
                place.end(now_ms)
            # Here and not before the wait: after the last one there is nothing to wait for.
            if place.ended_ms and now_ms >= place.bury_ms:
                self._bury(place, now_ms)
        if heard in ready:
            os.read(heard, 64)
            self._stop(now_ms)
        self._report(now_ms)

    def _look(self, place: Place, child: ChildOptions, now_ms: int) -> None:
        if place.lease_page is None:
            if not self.is_stopping and now_ms >= place.start_ms:
                self._start(place, child, now_ms)
        elif place.ended_ms or place.is_condemned:
            pass  # it is dead, is dying, or hangs in the kernel
        elif place.lease_page.is_over(now_ms - PARENT_MARGIN_MS):
            self._say(f"kills process {place.number}: its guarded work outlived the lease")
            place.condemn()
        elif self.is_stopping and now_ms >= self._kill_ms:
            self._was_killed = True
            place.condemn()

    # ---- children that leak

    def _measure(self, now_ms: int) -> None:
        """Look at what each child has taken and done, where that is bounded."""
        if not self._bounds or now_ms < self._measured_ms + BOUNDS_EVERY_MS:
            return
        self._measured_ms = now_ms
        for place in self._all:
            if place.lease_page is None or place.ended_ms or place.is_condemned:
                continue
            memory_bytes = place.memory_bytes
            if why := self._bounds.excess(memory_bytes):
                self._exceeds(place, why)
                continue
            place.excess = 0
            why = self._bounds.renewal(place.number, place.launches, memory_bytes)
            if why and self._may_renew(place):
                self._say(f"renews process {place.number}: {why}")
                place.renew(now_ms)
            elif self._is_slow_to_leave(place, now_ms):
                self._replace(place, now_ms)

    def _exceeds(self, place: Place, why: str) -> None:
        place.excess += 1
        if place.excess >= EXCESS_LOOKS:
            self._say(f"kills process {place.number}: {why}")
            place.condemn()

    def _may_renew(self, place: Place) -> bool:
        """One at a time: all places serve, and what left this one before is gone."""
        is_alone = all(one.number != place.number for one in self._leavers)
        return not self.is_stopping and is_alone and all(one.is_serving for one in self._places)

    def _is_slow_to_leave(self, place: Place, now_ms: int) -> bool:
        """Whether something long runs in a child that leaves, beside threads that stand idle. With
        one thread none does, and who counts on one launch at a time is not disappointed."""
        has_waited = place.leaving_ms and now_ms >= place.leaving_ms + self._options.grace_ms
        is_first = place not in self._leavers and not self.is_stopping
        return bool(has_waited) and is_first and self._options.threads > 1

    def _replace(self, place: Place, now_ms: int) -> None:
        """Start another child beside one that takes its time to leave."""
        following = Place(place.number)
        following.start_ms = now_ms
        self._places[place.number - 1] = following
        self._leavers.append(place)

    def _start(self, place: Place, child: ChildOptions, now_ms: int) -> None:
        try:
            place.start(child, now_ms)
        except OSError as error:
            self._ends[f"could not be started: {error}"] += 1

    def _wait_ms(self, now_ms: int) -> int:
        times = [one.due_ms(now_ms) for one in self._all if one.lease_page or not self.is_stopping]
        if self._bounds:
            times.append(self._measured_ms + BOUNDS_EVERY_MS)
        if self.is_stopping:
            times.append(max(self._kill_ms, now_ms + LOOK_EVERY_MS))
        if self._ends:
            times.append(self._said_ms + SAY_EVERY_MS)
        return max(0, min(times, default=now_ms) - now_ms)

    def _bury(self, place: Place, now_ms: int) -> None:
        was_renewed = place.leaving_ms > 0
        # One that has run all that it should leaves after a life that may be short in order.
        has_done = self._bounds.has_run(place.number, place.launches)
        code = place.bury(now_ms, is_pausing=not (was_renewed and has_done))
        if place in self._leavers:
            self._leavers.remove(place)
        if self.is_stopping:
            self._was_killed = self._was_killed or code == EXIT_STUCK
        elif not (was_renewed and code == EXIT_OK):
            self._ends[_ENDS.get(code) or _ended(code)] += 1

    def _stop(self, now_ms: int) -> None:
        if self.is_stopping:
            return
        self._say("stops: takes no more, finishes what runs")
        graces_ms = self._options.grace_ms + self._options.cancelled_grace_ms
        self._kill_ms = now_ms + graces_ms + KILL_AFTER_MS
        for place in self._all:
            place.stop()

    def _report(self, now_ms: int) -> None:
        """Say how children ended: a crash loop of many is one line a second."""
        if not self._ends or now_ms < self._said_ms + SAY_EVERY_MS:
            return
        for end, times in self._ends.items():
            self._say(f"a process {end}" + (f", {times} times" if times > 1 else ""))
        self._ends.clear()
        self._said_ms = now_ms


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


@contextlib.contextmanager
def _signals_to(wake_up: int) -> Iterator[None]:
    """Have the signals that stop a worker wake its thread, while this is open."""
    before = {number: signal.signal(number, lambda *_: None) for number in _STOPS}
    wakeup = signal.set_wakeup_fd(wake_up, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, action in before.items():
            signal.signal(number, action)


PAUSE_MS_MIN: Final = 100
PAUSE_MS_MAX: Final = 5_000
LONG_LIFE_MS: Final = 10_000
"""A child that lived so long is started again at once, or nearly."""
LOOK_EVERY_MS: Final = 250
"""How often a child without a lease is looked at."""
REAP_AFTER_MS: Final = 100
"""For the executor to see how a child ended that did not end in order."""


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
    """One of the worker's processes: the child that is there, or the time of the next one.

    `ended_ms`: it is dead, and buried at `bury_ms`. `leaving_ms`: it was asked to leave, and is to
    be renewed. `excess`: how often in a row it had more memory than it may ever have.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: subprocess.Popen[bytes] | None = None
        self.lease_page: LeasePage | None = None
        self.pidfd = -1
        self.is_condemned = False
        self.start_ms = 0
        self.ended_ms = 0
        self.bury_ms = 0
        self.leaving_ms = 0
        self.excess = 0
        self._born_ms = 0
        self._pauses = Pauses()

    @property
    def is_serving(self) -> bool:
        """Whether a child is here that takes launches."""
        is_alive = self.lease_page is not None and not self.ended_ms and not self.is_condemned
        return (
            is_alive
            and not self.leaving_ms
            and self.lease_page is not None
            and self.lease_page.serves > 0
        )

    @property
    def launches(self) -> int:
        """How many launches have ended in the child that is here."""
        return self.lease_page.launches if self.lease_page is not None else 0

    @property
    def memory_bytes(self) -> int:
        """The resident memory of the child that is here."""
        return resident_bytes(self.child.pid) if self.child is not None else 0

    def start(self, options: ChildOptions, now_ms: int) -> None:
        """Start a child.

        Raises:
            OSError: the system has no room for one; the next is due after a pause.
        """
        self._born_ms = now_ms
        lease_page_fd = -1
        try:
            lease_page_fd = make_lease_page()
            said = msgspec.structs.replace(options, number=self.number, lease_page_fd=lease_page_fd)
            self.lease_page = LeasePage(lease_page_fd)
            self.child = start_child(said)
            self.pidfd = os.pidfd_open(self.child.pid)
        except OSError:
            self.signal(signal.SIGKILL)
            self.bury(now_ms)
            raise
        finally:
            if lease_page_fd >= 0:
                os.close(lease_page_fd)

    def end(self, now_ms: int) -> None:
        """Note that the child is dead: it is to be buried soon, at once if it ended in order."""
        self.ended_ms = self.bury_ms = now_ms
        # What its handlers started and left. The group's id is nobody else's until the wait.
        self.signal_group(signal.SIGKILL)
        if self.child is not None:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            end = os.waitid(os.P_PID, self.child.pid, options)
            if end is None or (end.si_code, end.si_status) != (os.CLD_EXITED, EXIT_OK):
                self.bury_ms += REAP_AFTER_MS

    def bury(self, now_ms: int, *, is_pausing: bool = True) -> int:
        """Let go of a child that has ended, and end it if it has not; return its exit code.

        Negative for a signal. The next is due after a pause, counted from the end.
        """
        code = EXIT_OK
        if self.child is not None:
            self.signal_group(signal.SIGKILL)
            code = self.child.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        if self.lease_page is not None:
            self.lease_page.close()
        ended_ms = self.ended_ms or now_ms
        pause_ms = self._pauses.after(ended_ms - self._born_ms) if is_pausing else 0
        self.child, self.lease_page, self.pidfd, self.is_condemned = None, None, -1, False
        self.ended_ms, self.leaving_ms, self.excess = 0, 0, 0
        self.start_ms = ended_ms + pause_ms
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

    def renew(self, now_ms: int) -> None:
        """Ask the child to leave once it has finished what it runs, however long that takes."""
        if self.lease_page is not None:
            self.leaving_ms = now_ms
            self.lease_page.is_renewed = True
            self.signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask the child to leave within the graces of the worker."""
        if self.lease_page is not None:
            self.lease_page.is_renewed = False
        self.signal(signal.SIGTERM)

    def condemn(self) -> None:
        """Kill the child."""
        self.is_condemned = True
        self.signal_group(signal.SIGKILL)

    def due_ms(self, now_ms: int) -> int:
        """Return when to look at it next."""
        if self.lease_page is None:
            return self.start_ms
        if self.ended_ms:
            return self.bury_ms
        lease_ms = self.lease_page.lease_until_ms + PARENT_MARGIN_MS
        return lease_ms if lease_ms > now_ms else now_ms + LOOK_EVERY_MS


def start_child(options: ChildOptions) -> subprocess.Popen[bytes]:
    """Start a child: a program of its own, at the head of a process group of its own."""
    fds = [fd for fd in (options.lease_page_fd, options.parent_fd) if fd >= 0]
    said = msgspec.json.encode(options).decode()
    command = [sys.executable, "-m", "launcher.worker.child", said]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, process_group=0)
