"""The parent of a worker's processes: it starts, restarts and stops them, and imports little.

Theory of operation. One thread polls a pidfd of each child and a pipe for signals, until the time
of the next action. A child that ends is started again, after a pause that doubles while its lives
are short. Each child shares a lease page with its parent (lease.py); a child that should have
killed itself and has not is killed here. Each child holds the other end of a pipe, and so notices
the end of this process, however it ends.

A child that is too big, or has run enough launches (renewal.py), is asked to leave, and another
takes its place when it has ended. This happens to one child at a time, and only while all others
serve: a worker never lacks more than one, and an app that cannot be started any more loses none.

A crashed child is not reaped at once. Meanwhile its executor, which is not its parent, can read how
it ended (`/proc/PID/stat`), and records that with its launches.
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

from launcher.clock import boot_ms
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
"""A child with too much memory is killed at this look in a row. Its executor usually kills it
before, and then records why with its launches."""
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
        self._slots = [ChildSlot(number) for number in range(1, options.processes + 1)]
        self._leavers: list[ChildSlot] = []
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
            while not (self.is_stopping and all(slot.child is None for slot in self._all)):
                self._turn(child, heard)
        return 1 if self._was_killed else EXIT_OK

    @property
    def _all(self) -> list[ChildSlot]:
        return self._slots + self._leavers

    def _turn(self, child: ChildOptions, heard: int) -> None:
        now_ms = boot_ms()
        for slot in self._all:
            self._look(slot, child, now_ms)
        self._measure(now_ms)
        poll = select.poll()
        poll.register(heard, select.POLLIN)
        for slot in self._all:
            if slot.pidfd >= 0 and not slot.ended_ms:
                poll.register(slot.pidfd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(self._wait_ms(boot_ms()))}
        now_ms = boot_ms()
        for slot in self._all:
            if slot.pidfd in ready:
                slot.end(now_ms)
            # Here and not before the wait: after the last one there is nothing to wait for.
            if slot.ended_ms and now_ms >= slot.bury_ms:
                self._bury(slot, now_ms)
        if heard in ready:
            os.read(heard, 64)
            self._stop(now_ms)
        self._report(now_ms)

    def _look(self, slot: ChildSlot, child: ChildOptions, now_ms: int) -> None:
        if slot.lease_page is None:
            if not self.is_stopping and now_ms >= slot.start_ms:
                try:
                    slot.start(child, now_ms)
                except OSError as error:
                    self._ends[f"could not be started: {error}"] += 1
        elif slot.ended_ms or slot.is_condemned:
            pass  # it is dead, is dying, or hangs in the kernel
        elif slot.lease_page.is_over(now_ms - PARENT_MARGIN_MS):
            self._say(f"kills process {slot.number}: its guarded work outlived the lease")
            slot.condemn()
        elif self.is_stopping and now_ms >= self._kill_ms:
            self._was_killed = True
            slot.condemn()

    # ---- children that leak

    def _measure(self, now_ms: int) -> None:
        """Check the memory and the launches of each child against their bounds."""
        if not self._bounds or now_ms < self._measured_ms + BOUNDS_EVERY_MS:
            return
        self._measured_ms = now_ms
        for slot in self._all:
            if slot.lease_page is None or slot.ended_ms or slot.is_condemned:
                continue
            memory_bytes = slot.memory_bytes
            if why := self._bounds.excess(memory_bytes):
                slot.excess += 1
                if slot.excess >= EXCESS_LOOKS:
                    self._say(f"kills process {slot.number}: {why}")
                    slot.condemn()
                continue
            slot.excess = 0
            if not self.is_stopping:
                self._renew(slot, now_ms, memory_bytes)

    def _renew(self, slot: ChildSlot, now_ms: int, memory_bytes: int) -> None:
        """Ask a child to leave if it is time, or start another one beside a child that is slow to
        leave. One child at a time: all slots serve, and no earlier child of this slot is left."""
        why = self._bounds.renewal(slot.number, slot.launches, memory_bytes)
        is_alone = all(one.number != slot.number for one in self._leavers)
        if why and is_alone and all(one.is_serving for one in self._slots):
            self._say(f"renews process {slot.number}: {why}")
            slot.renew(now_ms)
            return
        # A slow child runs something long, beside threads that are idle. With one thread none is,
        # and an author who counts on one launch at a time is not disappointed.
        has_waited = slot.leaving_ms and now_ms >= slot.leaving_ms + self._options.grace_ms
        if has_waited and slot not in self._leavers and self._options.threads > 1:
            following = ChildSlot(slot.number)
            following.start_ms = now_ms
            self._slots[slot.number - 1] = following
            self._leavers.append(slot)

    def _wait_ms(self, now_ms: int) -> int:
        times = [one.due_ms(now_ms) for one in self._all if one.lease_page or not self.is_stopping]
        if self._bounds:
            times.append(self._measured_ms + BOUNDS_EVERY_MS)
        if self.is_stopping:
            times.append(max(self._kill_ms, now_ms + LOOK_EVERY_MS))
        if self._ends:
            times.append(self._said_ms + SAY_EVERY_MS)
        return max(0, min(times, default=now_ms) - now_ms)

    def _bury(self, slot: ChildSlot, now_ms: int) -> None:
        was_renewed = slot.leaving_ms > 0
        # A child that has run all its launches may leave after a short life without a pause.
        has_done = self._bounds.has_run(slot.number, slot.launches)
        code = slot.bury(now_ms, is_pausing=not (was_renewed and has_done))
        if slot in self._leavers:
            self._leavers.remove(slot)
        if self.is_stopping:
            self._was_killed = self._was_killed or code == EXIT_STUCK
        elif code >= 0 and not (was_renewed and code == EXIT_OK):
            self._ends[_ENDS.get(code, f"ended with exit code {code}")] += 1
        elif code < 0:
            names = {number.value: number.name for number in signal.Signals}
            self._ends[f"was killed by {names.get(-code, f'signal {-code}')}"] += 1

    def _stop(self, now_ms: int) -> None:
        if self.is_stopping:
            return
        self._say("stops: takes no more, finishes what runs")
        graces_ms = self._options.grace_ms + self._options.cancelled_grace_ms
        self._kill_ms = now_ms + graces_ms + KILL_AFTER_MS
        for slot in self._all:
            slot.stop()

    def _report(self, now_ms: int) -> None:
        """Print how children ended: a crash loop of many is one line a second."""
        if not self._ends or now_ms < self._said_ms + SAY_EVERY_MS:
            return
        for end, times in self._ends.items():
            self._say(f"a process {end}" + (f", {times} times" if times > 1 else ""))
        self._ends.clear()
        self._said_ms = now_ms


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
"""After a life of this length the pause is the shortest again."""
LOOK_EVERY_MS: Final = 250
"""How often a child without a lease is looked at."""
REAP_AFTER_MS: Final = 100
"""For the executor to see how a child ended that did not end in order."""


class Pauses:
    """The pauses before the next child of a slot: each doubles after a short life."""

    def __init__(self) -> None:
        self._next_ms = PAUSE_MS_MIN

    def after(self, lived_ms: int) -> int:
        """Return the pause in milliseconds after a life of so many."""
        if lived_ms >= LONG_LIFE_MS:
            self._next_ms = PAUSE_MS_MIN
        pause_ms, self._next_ms = self._next_ms, min(PAUSE_MS_MAX, self._next_ms * 2)
        return pause_ms


class ChildSlot:
    """A slot for one of the worker's processes: its child, or the time of the next one.

    `ended_ms`: the child is dead, and is reaped at `bury_ms`. `leaving_ms`: the child was asked to
    leave, to be renewed. `excess`: how often in a row it had too much memory.
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
        """Return whether a child is here that takes launches."""
        if self.lease_page is None or self.ended_ms or self.is_condemned or self.leaving_ms:
            return False
        return self.lease_page.serves > 0

    @property
    def launches(self) -> int:
        """Return how many launches have ended in the child."""
        return self.lease_page.launches if self.lease_page is not None else 0

    @property
    def memory_bytes(self) -> int:
        """Return the resident memory of the child."""
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
        """Note that the child is dead. It is reaped soon, or at once if it ended in order."""
        self.ended_ms = self.bury_ms = now_ms
        # Processes that its handlers left. The group's id is not used again before the reaping.
        self.signal_group(signal.SIGKILL)
        if self.child is not None:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            end = os.waitid(os.P_PID, self.child.pid, options)
            if end is None or (end.si_code, end.si_status) != (os.CLD_EXITED, EXIT_OK):
                self.bury_ms += REAP_AFTER_MS

    def bury(self, now_ms: int, *, is_pausing: bool = True) -> int:
        """Reap a child, killing it if it has not ended; return its exit code, negative for a
        signal. The next child is due after a pause, counted from the end."""
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
        """Send a signal to the child, if there is one. It is not reaped before `bury`."""
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the child and the processes that its handlers started."""
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
        """Return when to look at this slot next."""
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
