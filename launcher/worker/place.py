"""A place of a worker: where one child is at a time, is started, measured, asked to leave, buried.

Who ends is not reaped at once: while a dead process waits for that, its executor, who is not its
parent, can read how it ended (`/proc/PID/stat`), and tells it to whoever asks for its launches.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Final

import msgspec

from launcher.worker.lease import PARENT_MARGIN_MS, Slate, make_slate
from launcher.worker.memory import resident_bytes
from launcher.worker.options import EXIT_OK, ChildOptions

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
        self.slate: Slate | None = None
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
        is_alive = self.slate is not None and not self.ended_ms and not self.is_condemned
        return is_alive and not self.leaving_ms and self.slate is not None and self.slate.serves

    @property
    def launches(self) -> int:
        """How many launches have ended in the child that is here."""
        return self.slate.launches if self.slate is not None else 0

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
        if self.slate is not None:
            self.slate.close()
        ended_ms = self.ended_ms or now_ms
        pause_ms = self._pauses.after(ended_ms - self._born_ms) if is_pausing else 0
        self.child, self.slate, self.pidfd, self.is_condemned = None, None, -1, False
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
        if self.slate is not None:
            self.leaving_ms = now_ms
            self.slate.is_renewed = True
            self.signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask the child to leave within the graces of the worker."""
        if self.slate is not None:
            self.slate.is_renewed = False
        self.signal(signal.SIGTERM)

    def condemn(self) -> None:
        """Kill the child."""
        self.is_condemned = True
        self.signal_group(signal.SIGKILL)

    def due_ms(self, now_ms: int) -> int:
        """Return when to look at it next."""
        if self.slate is None:
            return self.start_ms
        if self.ended_ms:
            return self.bury_ms
        lease_ms = self.slate.lease_until_ms + PARENT_MARGIN_MS
        return lease_ms if lease_ms > now_ms else now_ms + LOOK_EVERY_MS


def start_child(options: ChildOptions) -> subprocess.Popen[bytes]:
    """Start a child: a program of its own, at the head of a process group of its own."""
    fds = [fd for fd in (options.slate_fd, options.parent_fd) if fd >= 0]
    said = msgspec.json.encode(options).decode()
    command = [sys.executable, "-m", "launcher.worker.child", said]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, process_group=0)
