"""An attempt on this host, from its acceptance until its end is recorded.

Theory of operation of an attempt that a worker runs: to end it, for whatever reason, the executor
asks the worker first. If the attempt has not ended within the grace, the worker's process is
killed, and everything that it ran ends with it. The first reason is reported; a later one only
shortens the grace.

Pure: the caller passes the time, in milliseconds of the boot-time clock unless stated otherwise.
"""

from __future__ import annotations

import enum
from typing import Final

from launcher.executor.rows import ACCEPTED, REFUSED, Batch
from launcher.limits import DETAIL_BYTES_MAX
from launcher.protocol.limits import RETRY_AFTER_MS_MAX
from launcher.protocol.reports import RowReport
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from launcher.texts import cut
from launcher.worker.wire import Ends, Result

NEVER_MS: Final = 1 << 62
ANSWER_MS: Final = 30_000
"""How long a worker may take to return what it has not begun, before it counts as stuck. Longer
than a grace: a handler that computes for seconds is no reason to kill the others in its process."""
_REASONS: Final = {
    Result.OK: Reason.NONE,
    Result.RETRY: Reason.RETRY,
    Result.FATAL: Reason.FATAL,
    Result.SNOOZE: Reason.SNOOZE,
    Result.RAISED: Reason.RAISED,
    Result.CANCELLED: Reason.KILLED,
}


class Step(enum.Enum):
    """What to do about an attempt now."""

    NOTHING = enum.auto()
    ASK = enum.auto()
    KILL = enum.auto()


class Attempt(RowReport, eq=False, gc=False, kw_only=True):
    """A row, at `place` of its batch, with everything that is needed to run it. Its status is
    ACCEPTED until it is over; then the rest of the row describes how it ended.

    It is refused if it has not begun at `not_after_ms` (wall clock), unless it `was_announced`:
    reported to the leader as started. `group` is its group of workers, and `number` that of its
    task at the worker that has it. `returns` counts how often a worker gave it back. `began_ms` is
    0 until a worker reports that it began it; `started_ms` is the same moment, or a command's
    start, on the wall clock. `stopping` is why it has to end. `resumes` counts how often it had
    begun at a worker that died, so that another one looks up what became of it. `is_lost`: it is
    over, and nobody knows how it ended.
    """

    batch: Batch
    place: int
    spec: WorkSpec
    not_after_ms: int
    group: str = ""
    number: int = 0
    was_announced: bool = False
    returns: int = 0
    timeout_ms: int = 0
    heartbeat_ms: int = 0
    began_ms: int = 0
    timeout_at_ms: int = NEVER_MS
    silent_at_ms: int = NEVER_MS
    kill_at_ms: int = NEVER_MS
    stopping: Reason = Reason.NONE
    has_output: bool = False
    resumes: int = 0
    is_lost: bool = False

    # ---- at a worker

    def rewind(self) -> None:
        """Let it wait again, after a worker gave it back."""
        self.was_announced = self.was_announced or self.began_ms > 0
        self.began_ms, self.stopping = 0, Reason.NONE
        self.silent_at_ms = self.kill_at_ms = NEVER_MS
        if not self.resumes:
            self.timeout_at_ms = NEVER_MS
        self.heartbeat_ms = 0

    def begin(self, now_ms: int, wall_ms: int) -> None:
        """Record that it runs; its timeouts count from now, or from its first start."""
        self.began_ms = now_ms
        if not self.resumes:
            self.started_ms = wall_ms
        if self.timeout_ms and not self.resumes:
            self.timeout_at_ms = now_ms + self.timeout_ms
        if self.heartbeat_ms:
            self.silent_at_ms = now_ms + self.heartbeat_ms

    def beat(self, now_ms: int) -> None:
        """Record a heartbeat of its handler."""
        if self.heartbeat_ms and self.began_ms:
            self.silent_at_ms = now_ms + self.heartbeat_ms

    def order(self, reason: Reason, now_ms: int, grace_ms: int) -> bool:
        """Order its end within the grace; return whether the worker has to be asked."""
        is_first = self.stopping is Reason.NONE
        if is_first:
            self.stopping = reason
        self.kill_at_ms = min(self.kill_at_ms, now_ms + grace_ms)
        return is_first

    def look(self, now_ms: int, grace_ms: int) -> Step:
        """Return what to do now. A timeout orders its end."""
        if now_ms >= self.kill_at_ms:
            return Step.KILL
        if now_ms >= self.timeout_at_ms:
            self.timeout_at_ms = NEVER_MS
            return Step.ASK if self.order(Reason.TIMEOUT, now_ms, grace_ms) else Step.NOTHING
        if now_ms >= self.silent_at_ms:
            self.silent_at_ms = NEVER_MS
            return Step.ASK if self.order(Reason.SILENT, now_ms, grace_ms) else Step.NOTHING
        return Step.NOTHING

    def is_late(self, wall_ms: int) -> bool:
        """Whether its window is over, and it has not begun, nor been announced or stopped."""
        is_idle = not self.began_ms and not self.was_announced and self.stopping is Reason.NONE
        return is_idle and wall_ms > self.not_after_ms

    # ---- its end

    def refuse(self, detail: str) -> None:
        """Refuse it: it has not started, and never will."""
        if self.status == ACCEPTED:
            self.status, self.detail = REFUSED, detail

    def end(self, how: Ends, started_ms: int, finished_ms: int, wall_ms: int) -> None:
        """Record its end as its worker reports it. A success counts; any other end gets the ordered
        reason, if there is one. Times are limited to those between its start and now, and text to
        what every reader accepts."""
        if not self.started_ms:
            self.started_ms = min(started_ms, wall_ms)
        if not self.started_ms <= finished_ms <= wall_ms:
            finished_ms = min(max(finished_ms, self.started_ms), wall_ms)
        self.finished_ms = finished_ms
        if how.result is Result.LOST:
            self.is_lost, self.detail = True, _text(how.detail)
        elif how.result is not Result.OK:
            self.fail(self.stopping or _REASONS[how.result], how.detail)
            if self.reason in (Reason.RETRY, Reason.SNOOZE):
                self.retry_after_ms = min(how.after_ms, RETRY_AFTER_MS_MAX)
        elif how.detail:
            self.detail = _text(how.detail)

    def fail(self, reason: Reason, detail: str) -> None:
        """Record why it failed."""
        self.exit_code, self.reason, self.detail = 1, reason, _text(detail)

    def die(self, default: Reason, detail: str, wall_ms: int) -> None:
        """Record that it ended with its worker, or will not begin although it was announced."""
        self.started_ms = self.started_ms or wall_ms
        self.finished_ms = wall_ms
        self.fail(self.stopping or default, detail)

    def lose(self, detail: str, wall_ms: int) -> None:
        """Record that it is over, and that nobody knows how it ended."""
        self.is_lost, self.finished_ms, self.detail = True, wall_ms, _text(detail)


def _text(detail: str) -> str:
    return cut(detail, DETAIL_BYTES_MAX).replace("\0", "")
