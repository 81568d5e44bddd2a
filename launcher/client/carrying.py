"""What relay and intake share: tasks from outside are submitted, and each learns its end.

A row or message is deleted where it came from only after the cell has committed its task. Killed
before that, it is submitted again, with the same key, and is known to the cell. So nothing is lost
or doubled, wherever a relay is killed, and however many of them there are.
"""

from __future__ import annotations

import abc
import logging
import random
import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from launcher.client.batching import Parcel
from launcher.client.core import Core
from launcher.client.errors import (
    Denied,
    OutcomeUnknown,
    QueueFull,
    TaskError,
    Unavailable,
)
from launcher.client.messages import Submission
from launcher.failpoints import Failpoints

log = logging.getLogger("raftcron")

POINTS: Final = {
    "carry-taken": "rows were taken, nothing is submitted",
    "carry-submitted": "the cell has the tasks, nothing is deleted",
    "carry-deleted": "rows are deleted, and the deletion is not committed",
    "carry-committed": "rows are deleted for good, or the messages are",
}
"""Places where a test can kill a relay or an intake."""
failpoints: Final = Failpoints(POINTS)

PAUSE_S_MIN: Final = 0.2
PAUSE_S_MAX: Final = 30.0
_REASON_CHARS_MAX: Final = 500


class End(Enum):
    """What became of a row or message."""

    DONE = auto()  # the cell has its task
    REFUSED = auto()  # the cell never will
    FULL = auto()  # its queue was full for the whole time: later, and others first
    KEPT = auto()  # nobody could say: again, with the same key


class Carried(NamedTuple):
    """The end of one, and why, for people."""

    end: End
    reason: str = ""


class Counts(NamedTuple):
    """What one turn did."""

    done: int = 0
    refused: int = 0
    kept: int = 0

    def __add__(self, other: object) -> Counts:
        """Return both together."""
        if not isinstance(other, Counts):
            return NotImplemented
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def total(self) -> int:
        """Return how many were looked at."""
        return sum(self)


class Source(Protocol):
    """What `carry` empties: `turn` carries some, `wait` returns when there may be more."""

    name: str

    @abc.abstractmethod
    def turn(self) -> Counts:
        """Carry entries that are ready, at most a bound, and return how many ended how.

        Raises:
            Denied: the cell does not let this program submit.
            Exception: one of `faults`.
        """

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return when there may be more, at the latest after so many seconds, or on `stop`."""
        stop.wait(seconds)

    def reopen(self) -> None:
        """Connect anew after one of `faults`."""

    def close(self) -> None:
        """Close what is open; idempotent."""

    @property
    def faults(self) -> tuple[type[BaseException], ...]:
        """Return the errors after which another try is worth it."""
        return (OSError,)


def submit_all(core: Core, submissions: Sequence[Submission]) -> list[Carried]:
    """Submit tasks, each for itself; return the end of each, at the client's timeout at the
    latest.

    Raises:
        Denied: the cell does not let this program submit.
    """
    deadline_s = core.deadline_s()
    parcels = [Parcel([one], deadline_s) for one in submissions]
    core.batcher.put(*parcels)
    outcomes = [outcome for parcel in parcels for outcome in parcel.wait()]
    denied = next((one for one in outcomes if isinstance(one, Denied)), None)
    if denied is not None and all(isinstance(one, Denied) for one in outcomes):
        raise denied  # whose token it is, not whose row
    return [_judged(one) for one in outcomes]


def _judged(outcome: object) -> Carried:
    if not isinstance(outcome, Exception):
        return Carried(End.DONE)
    if isinstance(outcome, QueueFull):
        return Carried(End.FULL, str(outcome))
    if isinstance(outcome, Unavailable | OutcomeUnknown):
        return Carried(End.KEPT, str(outcome))
    if isinstance(outcome, TaskError):
        return Carried(End.REFUSED, f"{outcome.code}: {outcome}"[:_REASON_CHARS_MAX])
    raise outcome


def carry(
    source: Source,
    stop: threading.Event,
    *,
    is_once: bool = False,
    tell: Callable[[Counts], object] = lambda counts: None,
) -> Counts:
    """Empty a source until `stop` is set, with `is_once` until it is empty; return what was done.

    `tell` hears of each turn that found something. After a fault the source is connected anew, with
    growing pauses; with `is_once` the fault is raised.

    Raises:
        Denied: with `is_once`; otherwise it is logged and tried again, as tokens are replaced.
    """
    total = Counts()
    pause_s = PAUSE_S_MIN
    jitter = random.Random()  # noqa: S311
    while not stop.is_set():
        faults: tuple[type[BaseException], ...] = (*source.faults, Denied)
        try:
            counts = source.turn()
        except faults as error:
            if is_once:
                raise
            log.warning("%s: %s; again in %.1f s", source.name, error, pause_s)
            stop.wait(pause_s * (0.5 + jitter.random()))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            source.reopen()
            continue
        total += counts
        if counts.total:
            tell(counts)
        if counts.kept == counts.total and counts.total:
            if is_once:
                return total
            stop.wait(pause_s * (0.5 + jitter.random()))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            continue
        pause_s = PAUSE_S_MIN
        if not counts.total:
            if is_once:
                return total
            source.wait(1.0, stop)
    return total
