"""What is watched of one attempt that a worker has: its time, its signs of life, its end.

Theory of operation. Whatever is to end an attempt, the worker is asked first; when it has not ended
it within the grace, its process is killed, and all that it ran ends with it. The first reason is
the one that is reported; a later one can only shorten the grace.

Pure: whoever calls brings the time, milliseconds of the boot-time clock where nothing else is said.
"""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple

import msgspec

from launcher.executor.buffer import Waiting
from launcher.launch import Reason
from launcher.limits import DETAIL_CHARS_MAX, RETRY_AFTER_MS_MAX
from launcher.worker.wire import Outcome, Result

NEVER_MS: Final = 1 << 62
ANSWER_MS: Final = 30_000
"""For a worker to give back what it has not begun; then it is taken for stuck. Longer than a grace:
that a handler computes for seconds and lets nobody else run is no reason to kill its neighbours."""
_REASONS: Final = {
    Result.OK: Reason.NONE,
    Result.RETRY: Reason.RETRY,
    Result.FATAL: Reason.FATAL,
    Result.SNOOZE: Reason.SNOOZE,
    Result.RAISED: Reason.RAISED,
    Result.CANCELLED: Reason.KILLED,
}


class Step(enum.Enum):
    """What is to be done about an attempt now."""

    NOTHING = enum.auto()
    ASK = enum.auto()
    KILL = enum.auto()


class Watch(msgspec.Struct):
    """One attempt that a worker was given. `began_ms` is 0 until it said that it has begun;
    `started_ms` is that moment on the wall clock. `reason` is why it has to end, if it has to."""

    waiting: Waiting
    timeout_ms: int = 0
    heartbeat_ms: int = 0
    began_ms: int = 0
    started_ms: int = 0
    timeout_at_ms: int = NEVER_MS
    silent_at_ms: int = NEVER_MS
    kill_at_ms: int = NEVER_MS
    reason: Reason = Reason.NONE
    has_output: bool = False

    def begin(self, now_ms: int, wall_ms: int) -> None:
        """It runs; its time counts from now."""
        self.began_ms, self.started_ms = now_ms, wall_ms
        if self.timeout_ms:
            self.timeout_at_ms = now_ms + self.timeout_ms
        if self.heartbeat_ms:
            self.silent_at_ms = now_ms + self.heartbeat_ms

    def beat(self, now_ms: int) -> None:
        """It said that it is alive."""
        if self.heartbeat_ms and self.began_ms:
            self.silent_at_ms = now_ms + self.heartbeat_ms

    def order(self, reason: Reason, now_ms: int, grace_ms: int) -> bool:
        """Let it end within the grace; return whether the worker has to be asked."""
        is_first = self.reason is Reason.NONE
        if is_first:
            self.reason = reason
        self.kill_at_ms = min(self.kill_at_ms, now_ms + grace_ms)
        return is_first

    def look(self, now_ms: int, grace_ms: int) -> Step:
        """Return what is to be done now; what is asked for is ordered by that."""
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
        """Whether it should have begun by now, and nobody has said so or told it to end."""
        waiting = self.waiting
        is_idle = not self.began_ms and not waiting.was_announced and self.reason is Reason.NONE
        return is_idle and wall_ms > waiting.not_after_ms

    def verdict(self, outcome: Outcome) -> Reason:
        """Return why it ended as it says: success counts, otherwise what was ordered does."""
        if outcome.result is Result.OK:
            return Reason.NONE
        return self.reason or _REASONS[outcome.result]


class Ending(NamedTuple):
    """How an attempt ended that had begun; `after_ms` is when its handler wants another try."""

    name: str
    reason: Reason
    detail: str
    started_ms: int
    finished_ms: int
    after_ms: int = 0

    def news(self, kept: int, problem: str) -> list[Any]:
        """Return it for the ledger, with how much output is kept and why not more."""
        exit_code = 0 if self.reason is Reason.NONE else 1
        return [
            "done",
            self.name,
            exit_code,
            int(self.reason),
            self.finished_ms,
            kept,
            self.detail or problem,
            self.after_ms,
            self.started_ms,
        ]


def ending(watch: Watch, outcome: Outcome, wall_ms: int) -> Ending:
    """Return how an attempt ended, as its worker says. Nothing of it is believed that cannot be:
    times lie between its start and now, and text is such that every reader takes it."""
    reason = watch.verdict(outcome)
    started_ms = watch.started_ms or min(outcome.started_ms, wall_ms)
    finished_ms = min(max(outcome.finished_ms, started_ms), wall_ms)
    after_ms = 0
    if reason in (Reason.RETRY, Reason.SNOOZE):
        after_ms = min(outcome.after_ms, RETRY_AFTER_MS_MAX)
    detail = outcome.detail[:DETAIL_CHARS_MAX].replace("\0", "")
    return Ending(watch.waiting.name, reason, detail, started_ms, finished_ms, after_ms)


def pace_us(before_us: int, ran_ms: int) -> int:
    """Return how long launches of a worker take, in microseconds: an average that forgets, by an
    eighth each time."""
    return before_us + (ran_ms * 1_000 - before_us) // 8
