"""A Job as a crontab line declares it, with its schedule and policies.

These structs are in the log and in snapshots. Append fields at the end with a default; never
reorder them, change a meaning or reuse a position.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from cron.alert_rules import JobAlerts
from cron.limits import ATTEMPTS_MAX
from launcher.protocol.names import format_time
from launcher.protocol.work import WorkSpec

COMMAND: Final = "command"
"""The work pool of launches that are commands."""


class Overlap(enum.IntEnum):
    """What happens when a job is due while one of its launches is not over."""

    ALLOW = 0
    FORBID = 1
    QUEUE = 2
    REPLACE = 3


class Catchup(enum.IntEnum):
    """Which missed instants are launched late, within their deadline."""

    NONE = 0
    LAST = 1
    ALL = 2


class OnLost(enum.IntEnum):
    """What happens when a launch is lost: nobody knows whether it ran."""

    SKIP = 0
    RETRY = 1


class Bounds(msgspec.Struct, frozen=True, array_like=True):
    """Which instants of a schedule count: those from `start_s` to `end_s`, both included, 0 for no
    bound, in seconds since the epoch; and with a `calendar` those on days that it does not have, or
    with `is_only` on those that it has.

    `days` are the days of the calendar when the job was last applied, as days since 1970-01-01 of
    the schedule's zone: the first, and then how many days each is later than the one before.
    """

    start_s: int = 0
    end_s: int = 0
    calendar: str = ""
    is_only: bool = False
    days: tuple[int, ...] = ()


class Schedule(msgspec.Struct, frozen=True, array_like=True):
    """When a job is due.

    `text` is what the user wrote (five fields with `?`, an alias, or `@every 90s`). `resolved` is
    the same without `?` and without aliases: five plain fields, or "" for `@every`. `zone` is an
    IANA name. `every_s` is the period of `@every` in seconds, else 0; it is anchored to the epoch.
    `placement` is the version of the algorithm that chose the values of `?`, 0 without `?`. The
    leader that accepted the job chose them once; they are never computed again. `bounds` leave
    instants out.
    """

    text: str
    resolved: str = ""
    zone: str = "UTC"
    every_s: int = 0
    placement: int = 0
    bounds: Bounds | None = None

    @property
    def key(self) -> ScheduleKey:
        """All that its instants depend on."""
        return self.resolved, self.zone, self.every_s, self.bounds

    @property
    def is_placed(self) -> bool:
        """Return whether every `?` has a value."""
        return bool(self.every_s) or bool(self.resolved)


ScheduleKey: TypeAlias = tuple[str, str, int, Bounds | None]


TRIES_UNLIMITED: Final = ATTEMPTS_MAX
"""Tries of a launch that is tried until its deadline: more than there is time for, at a second
each."""
UNLIMITED: Final = "unlimited"
"""As retries, these in words."""


def retries_of(tries: int) -> int | str:
    """Return how often a launch is tried again, as files, commands and answers say it."""
    return UNLIMITED if tries >= TRIES_UNLIMITED else tries - 1


class Retry(msgspec.Struct, frozen=True, array_like=True):
    """The retry policy of a job.

    A launch has at most `tries` attempts; attempts that never started or were lost do not count.
    With TRIES_UNLIMITED its deadline alone ends them.
    The delay before attempt n + 1 is `backoff_ms * 2**(n - 1)`, at most `backoff_max_ms`, plus up
    to 10 %. If `retry_codes` is not empty, only these exit codes are retried; exit codes in
    `fatal_codes` are never retried.
    """

    tries: int = 1
    backoff_ms: int = 10_000
    backoff_max_ms: int = 3_600_000
    retry_codes: tuple[int, ...] = ()
    fatal_codes: tuple[int, ...] = ()


class Job(msgspec.Struct, frozen=True, array_like=True):
    """A job as declared. `name` is `tenant/job`.

    `deadline_s` is how long after ScheduledTime a launch may start; it is always set, if need be to
    a computed default. `line` is the line in its source, for messages. `concurrency` is how many
    launches may run at once if `overlap` is allowed, 0 for any number. `collection` is a label for
    gates and filters. `where` selects executors by label (`cron/scheduler/places.py`); a launch
    runs on `parts` of them, or on each that `each` selects. A launch waits for the newest launches
    that the jobs in `after` and `after_any` have at its instant or before; those in `after` have to
    succeed. A job with `metrics` has series of its own in `/metrics`. `alerts` says when people are
    told, None if never. After `pause_after` launches in a row that failed the job is paused, 0 for
    never. A launch begins up to `jitter_s` after its instant, by a hash of its name.
    """

    name: str
    schedule: Schedule
    work: WorkSpec
    overlap: Overlap = Overlap.ALLOW
    catchup: Catchup = Catchup.LAST
    on_lost: OnLost = OnLost.SKIP
    deadline_s: int = 3600
    line: int = 0
    retry: Retry = Retry()
    concurrency: int = 0
    collection: str = ""
    where: str = ""
    parts: int = 1
    each: str = ""
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    metrics: bool = False
    alerts: JobAlerts | None = None
    pause_after: int = 0
    jitter_s: int = 0

    @property
    def follows(self) -> tuple[str, ...]:
        """Return the full names of the jobs whose launches it waits for, its predecessors."""
        return self.after + self.after_any

    @property
    def is_limited(self) -> bool:
        """Return whether the job limits how many of its launches run at once. Such launches must
        end with their executor's lease, or the launch that replaces a lost one would run beside it.
        """
        return self.overlap is not Overlap.ALLOW or self.concurrency > 0

    @property
    def has_parts(self) -> bool:
        """Return whether its launches run on several executors at once."""
        return self.parts > 1 or bool(self.each)

    def delay_ms(self, scheduled_s: int) -> int:
        """Return how long after an instant its launch begins at the earliest, in milliseconds: the
        first 8 bytes of the BLAKE2b hash of the launch's name, modulo `jitter_s`. So every leader
        computes the same.
        """
        if not self.jitter_s:
            return 0
        name = f"{self.name}@{format_time(scheduled_s)}"
        drawn = hashlib.blake2b(name.encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "big") % (self.jitter_s * 1000)

    @property
    def pool(self) -> str:
        """Return the job's work pool: the name of its handler, or `command`."""
        return self.work.handler or COMMAND


def cycle_of(names: Iterable[str], follows: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the jobs of a cycle that one of `names` is in or leads to, the first one again at the
    end; empty if there is none. `follows` returns what a job follows."""
    done: dict[str, bool] = {}  # whether all that a job follows was looked at
    for first in names:
        path: list[str] = []
        ahead: list[Iterator[str]] = [iter((first,))]
        while ahead:
            name = next(ahead[-1], None)
            if name is None:
                ahead.pop()
                if path:
                    done[path.pop()] = True
            elif name not in done:
                done[name] = False
                path.append(name)
                ahead.append(iter(follows(name)))
            elif not done[name]:
                return [*path[path.index(name) :], name]
    return []
