"""What a crontab line declares: a Job, its schedule and its policies.

These structs are in the log and in snapshots: append fields at the end with a default, never
reorder, rename a meaning or reuse a place.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from launcher.work import WorkSpec

COMMAND: Final = "command"
"""The pool of launches that are commands."""


class Overlap(enum.IntEnum):
    """What happens when a launch is due while an earlier one of the same job is not over."""

    ALLOW = 0
    FORBID = 1
    QUEUE = 2
    REPLACE = 3


class Catchup(enum.IntEnum):
    """Which missed instants are still launched, if their deadline allows it."""

    NONE = 0
    LAST = 1
    ALL = 2


class OnLost(enum.IntEnum):
    """What follows when nobody can know what became of a launch."""

    SKIP = 0
    RETRY = 1


class Schedule(msgspec.Struct, frozen=True, array_like=True):
    """When a job is due.

    `text` is what the user wrote (five fields with `?`, an alias, or `@every 90s`). `resolved` is
    the same without `?` and without aliases: five plain fields, or "" for `@every`. `zone` is an
    IANA name. `every_s` is the period of `@every` in seconds, else 0; it is anchored to the epoch.
    `placement` is the version of the algorithm that chose the `?`, 0 where there was none. The
    choice was made once, by the leader that accepted the job; nobody computes it again.
    """

    text: str
    resolved: str = ""
    zone: str = "UTC"
    every_s: int = 0
    placement: int = 0

    @property
    def is_placed(self) -> bool:
        """Whether every `?` has been given a place."""
        return bool(self.every_s) or bool(self.resolved)


class Retry(msgspec.Struct, frozen=True, array_like=True):
    """What follows when an attempt fails.

    It is tried `tries` times in all, 1 for once; what was never started or was lost does not count.
    Before try n + 1 it rests `backoff_ms * 2**(n - 1)`, at most `backoff_max_ms`, and up to a tenth
    longer. An exit code in `retry_codes`, if there are any, is alone worth a retry; one in
    `fatal_codes` never is.
    """

    tries: int = 1
    backoff_ms: int = 10_000
    backoff_max_ms: int = 3_600_000
    retry_codes: tuple[int, ...] = ()
    fatal_codes: tuple[int, ...] = ()


class Job(msgspec.Struct, frozen=True, array_like=True):
    """One job as declared. `name` is `tenant/job`.

    `deadline_s` is the latest start after ScheduledTime, always set (a default was computed where
    the crontab names none). `line` says where in its source it stands, for messages. `concurrency`
    is how many of its launches may run at once where `overlap` is allowed, 0 for any number.
    `collection` is a word by which gates find it. `where` says which executors may run it
    (`cron/scheduler/places.py`); it runs on `parts` of them, or on each that `each` describes.
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

    @property
    def is_limited(self) -> bool:
        """Whether it limits how many of its launches run at once: they must not outlive the lease
        of their executor, or what begins in the place of a lost one would run beside it."""
        return self.overlap is not Overlap.ALLOW or self.concurrency > 0

    @property
    def has_parts(self) -> bool:
        """Whether its launches begin on several executors at once."""
        return self.parts > 1 or bool(self.each)

    @property
    def pool(self) -> str:
        """What its launches wait for: the name of a handler, or `command`."""
        return self.work.handler or COMMAND
