"""Names of launches: deterministic, so that the next leader can ask what became of one.

A LaunchName is `tenant/job@2026-11-20T15:00:00Z`, followed by `+tN` if a person triggered it. An
attempt appends `#2`, a part of an attempt `#2/1`. A task has `queue:key` where a job has its name;
only tasks have a colon. Names are computed, never random (SRE book
ch. 24, "Resolving partial failures": the name of a launch must be known before it is launched).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

import msgspec

DEFAULT_TENANT: Final = "default"
CELL_TENANT: Final = "raftcron"
"""The tenant of the cell's own jobs and tasks: nobody else puts one into it. So a launch of this
tenant proves that the cell says what is in its payload."""
TASK_MARK: Final = ":"
"""Between the queue and the key of a task."""
NAME_PART_CHARS_MAX: Final = 100
"""Longest tenant or job part: two, a time and a suffix fit into a file name of 255 bytes."""

_PART = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_PART_CHARS_MAX - 1}}}", re.ASCII)
_LAUNCH = re.compile(
    r"(?P<job>[^@#+]+)@(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)(?:\+t(?P<trigger>[1-9]\d{0,8}))?"
    r"(?:#(?P<attempt>[1-9]\d{0,8})(?:/(?P<part>[1-9]\d{0,8}))?)?",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SCHEDULED_S_MAX: Final = 253_402_300_799  # 9999-12-31T23:59:59Z, the last year with four digits


class BadName(ValueError):
    """A text is not a name; the message says which text and what a name looks like."""


class LaunchName(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A job and the instant of its launch: the key in log, journal, RPC, logs and command line.

    `job` is `tenant/job`, or the name of a task. `scheduled_s` is the ScheduledTime in seconds
    since the epoch, UTC. `trigger` is 0 for a scheduled launch, N for the N-th manual trigger of
    that job and second.
    """

    job: str
    scheduled_s: int
    trigger: int = 0

    @property
    def tenant(self) -> str:
        """The tenant of the job."""
        return self.job.partition("/")[0]

    def __str__(self) -> str:
        suffix = f"+t{self.trigger}" if self.trigger else ""
        return f"{self.job}@{format_time(self.scheduled_s)}{suffix}"


class AttemptName(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One attempt of a launch, and one part of it: the key in an executor's journal."""

    launch: LaunchName
    attempt: int = 1
    part: int = 1

    def __str__(self) -> str:
        launch = self.launch
        if launch.trigger or self.part != 1:
            suffix = f"/{self.part}" if self.part != 1 else ""
            return f"{launch}#{self.attempt}{suffix}"
        # The usual case, cheap: a busy leader and its executors write tens of thousands a second.
        return f"{launch.job}@{format_time(launch.scheduled_s)}#{self.attempt}"


@lru_cache(maxsize=4096)
def format_time(scheduled_s: int) -> str:
    """Return `2026-11-20T15:00:00Z` for seconds since the epoch."""
    return (_EPOCH + timedelta(seconds=scheduled_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=4096)
def parse_time(text: str) -> int:
    """Return the seconds since the epoch of `2026-11-20T15:00:00Z`.

    Raises:
        BadName: the text is no such time.
    """
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise BadName(f"{text!r} is not a time like 2026-11-20T15:00:00Z") from error
    return (moment - _EPOCH) // timedelta(seconds=1)


@lru_cache(maxsize=16_384)
def parse_job_name(text: str) -> str:
    """Return `tenant/job` for `job` or `tenant/job`; the tenant `default` may be left out.

    Raises:
        BadName: a part is empty, too long, or has a character that is not allowed.
    """
    tenant, slash, job = text.partition("/")
    if not slash:
        tenant, job = DEFAULT_TENANT, text
    for part in (tenant, job):
        if not _PART.fullmatch(part):
            raise BadName(
                f"{text!r} is not a job name: up to {NAME_PART_CHARS_MAX} of A-Z a-z 0-9 _ . - "
                "not beginning with . or -, and at most one / between tenant and job"
            )
    return f"{tenant}/{job}"


@lru_cache(maxsize=16_384)
def parse_task_name(text: str) -> str:
    """Return `tenant/queue:key` for `queue:key` or `tenant/queue:key`.

    Raises:
        BadName: a part is empty or has a character that is not allowed, or it is too long.
    """
    tenant, slash, rest = text.partition("/")
    if not slash:
        tenant, rest = DEFAULT_TENANT, text
    queue, _, key = rest.partition(TASK_MARK)
    if not is_task_name(f"{tenant}/{queue}", key):
        raise BadName(
            f"{text!r} is not a task name: a queue and a key with a : between, up to "
            f"{NAME_PART_CHARS_MAX} together, of A-Z a-z 0-9 _ . - not beginning with . or -"
        )
    return f"{tenant}/{rest}"


def is_task_name(queue: str, key: str) -> bool:
    """Return whether `tenant/queue` and a key together are the name of a task."""
    return len(key) <= _key_chars_max(queue) and _PART.fullmatch(key) is not None


@lru_cache(maxsize=1024)
def _key_chars_max(queue: str) -> int:
    """Return how long the key of a task of `tenant/queue` may be; below 1 if that is no queue."""
    tenant, _, short = queue.partition("/")
    if not all(map(_PART.fullmatch, (tenant, short))):
        return 0
    return NAME_PART_CHARS_MAX - len(short) - 1


def parse_job_or_task_name(text: str) -> str:
    """Return the full name of a job or of a task; the default tenant may be left out.

    Raises:
        BadName: it is neither.
    """
    return parse_task_name(text) if TASK_MARK in text else parse_job_name(text)


def parse_launch_name(text: str) -> LaunchName:
    """Return the LaunchName of `tenant/job@TIME[+tN]`; the default tenant may be left out.

    Raises:
        BadName: the text is no launch name, or names an attempt.
    """
    attempt = _parse(text)
    if "#" in text:
        raise BadName(f"{text!r} names an attempt; leave out what follows the #")
    return attempt.launch


def parse_attempt_name(text: str) -> AttemptName:
    """Return the AttemptName of `tenant/job@TIME[+tN][#A[/P]]`; attempt and part default to 1.

    Raises:
        BadName: the text is no such name.
    """
    return _parse(text)


def _parse(text: str) -> AttemptName:
    match = _LAUNCH.fullmatch(text)
    if match is None:
        raise BadName(f"{text!r} is not a launch name like tenant/job@2026-11-20T15:00:00Z")
    job, time, trigger, attempt, part = match.groups()
    launch = LaunchName(parse_job_or_task_name(job), parse_time(time), int(trigger or 0))
    return AttemptName(launch, int(attempt or 1), int(part or 1))


def split_job_name(name: str) -> tuple[str, str]:
    """Return (tenant, job) of a full job name."""
    tenant, _, job = name.partition("/")
    return tenant, job


def short_job_name(name: str) -> str:
    """Return the name of a job or a launch as people write it: without the default tenant."""
    return name.removeprefix(f"{DEFAULT_TENANT}/")
