"""Guarded work is killed when its executor's lease ends (rule R6), by the child or its parent.

A child has a thread that kills the whole process at the deadline. If that thread cannot run (an
extension holds the interpreter's lock, the process is stopped), the parent kills it a moment later.
Both look at a *lease page*, a page of shared memory in which the child writes until when it has the
lease, how many guarded works run, and how many launches have ended. A page, unlike a pipe, is never
full, and has the newest values even if its writer is frozen.
"""

from __future__ import annotations

import mmap
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from launcher.clock import boot_ms

PARENT_MARGIN_MS: Final = 250
"""How much later than the child itself its parent kills it."""
_BYTES: Final = mmap.PAGESIZE


class _Number:
    """A number of a lease page, as an attribute."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, lease_page: LeasePage, owner: object) -> int:
        return lease_page.numbers[self._place]

    def __set__(self, lease_page: LeasePage, number: int) -> None:
        lease_page.numbers[self._place] = number


class LeasePage:
    """Numbers that parent and child share. Each is written with one store of eight bytes, and by
    one process: `is_renewed` by the parent, the others by the child."""

    lease_until_ms = _Number(0)
    """Until when the child has the lease, on the boot-time clock; 0 for not at all."""
    guarded = _Number(1)
    """How many works run that must not outlive the lease."""
    launches = _Number(2)
    """How many launches have ended in the child."""
    serves = _Number(3)
    """Whether the child was welcomed by its executor."""
    is_renewed = _Number(4)
    """Whether the child, when it is told to leave, may finish what it runs without a bound."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, _BYTES)
        self.numbers = memoryview(self._page).cast("q")

    def is_over(self, now_ms: int) -> bool:
        """Return whether guarded work runs although its lease is over."""
        return self.guarded > 0 and now_ms >= self.lease_until_ms

    def close(self) -> None:
        """Unmap the page."""
        self.numbers.release()
        self._page.close()


def make_lease_page() -> int:
    """Return a descriptor of an empty lease page; `LeasePage(fd)` at both ends."""
    fd = os.memfd_create("raftcron-lease-page", os.MFD_CLOEXEC)
    os.ftruncate(fd, _BYTES)
    return fd


def kill_self() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_group() -> None:
    """Kill this process and those that its handlers started; its parent made it lead a group."""
    os.killpg(os.getpid(), signal.SIGKILL)


class Watchdog:
    """The thread in a child that kills its process when guarded work outlives the lease."""

    def __init__(
        self, lease_page: LeasePage, die: Callable[[], None], now_ms: Callable[[], int] = boot_ms
    ) -> None:
        self.lease_page = lease_page
        self._die = die
        self._now_ms = now_ms
        self._wake_up = threading.Event()

    def start(self) -> None:
        """Start the thread; it ends with the process."""
        threading.Thread(target=self._watch, name="raftcron-watchdog", daemon=True).start()

    @property
    def lease_until_ms(self) -> int:
        """Return until when the lease lasts, on the boot-time clock."""
        return self.lease_page.lease_until_ms

    def guard(self, number: int) -> None:
        """Set how many guarded works run, before they begin."""
        was = self.lease_page.guarded
        self.lease_page.guarded = number
        if number and not was:
            self._wake_up.set()

    def renew(self, until_ms: int) -> None:
        """Set until when the lease lasts."""
        is_earlier = until_ms < self.lease_page.lease_until_ms
        self.lease_page.lease_until_ms = until_ms
        if is_earlier:
            self._wake_up.set()

    def look(self) -> float | None:
        """Kill the process if its time is over; else return the seconds until that may be, None if
        it cannot be before the next call of `guard` or `renew`."""
        now_ms = self._now_ms()
        if self.lease_page.is_over(now_ms):
            self._die()
        if not self.lease_page.guarded:
            return None
        return max(1, self.lease_page.lease_until_ms - now_ms) / 1000

    def _watch(self) -> None:
        while True:
            self._wake_up.clear()
            self._wake_up.wait(self.look())
