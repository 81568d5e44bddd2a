"""What applying answers: values, never exceptions, the same on every replica."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import msgspec

from cron.state.archive import Sealed
from cron.state.commands import Command, Key
from cron.state.rows import Chunk, Row, rows_of
from launcher.protocol.work import Epoch


class Verdict(enum.IntEnum):
    """The answer to one command or to one item of it. In the digest: append, never renumber."""

    ACCEPTED = 0
    ALREADY = 1  # it is so already; nothing changed
    STALE_EPOCH = 2  # somebody else has claimed leadership since
    STALE_REVISION = 3  # the job, or the set of jobs, was changed meanwhile
    WRONG_HORIZON = 4  # it was accounted up to another instant (rule R1)
    REPEATED_LOCAL_TIME = 5  # that local time was accounted already (rule R11)
    NOT_DUE = 6
    NOT_OPEN = 7
    OVERLAP = 8  # another launch of the job may be running
    UNKNOWN_JOB = 9
    UNKNOWN_EXECUTOR = 10
    WRONG_ATTEMPT = 11
    WRONG_STATE = 12  # the table of transitions has no such move
    WRONG_SOURCE = 13  # the job belongs to another source
    INCOMPLETE = 14  # an earlier part of the change is missing
    BAD_TIMES = 15  # out of order or out of range; of a Begin: its deadline or window is over
    STILL_OPEN = 16  # launches are open on that executor
    AMENDED = 17  # it came after `lost`; recorded as a late report (rule R9)
    REPEATED = 18  # one name twice in a change
    RESOLVING = 19  # the cell was restored and does not know yet what ran (rule R13)
    UNKNOWN_SEGMENT = 20
    NOT_STORED = 21  # the segment is nowhere else
    NOT_DEAD = 22  # there is no dead letter of that launch
    TOO_MANY = 23  # of what is bounded
    BAD_LIMITS = 24  # a scope that limits nothing, or numbers that are none
    WRONG_PARTS = 25  # not as many executors as the job has parts, or one of them twice
    LEAVING = 26  # launches of the job that had this name are not ended yet
    UNKNOWN_TASK = 27
    UNKNOWN_QUEUE = 28
    OTHER_CONTENT = 29  # a task of that name has another content
    QUEUE_FULL = 30  # as many tasks of the queue wait as may
    ENDED = 31  # the task is over
    BAD_TASK = 32  # its name, payload or options are out of range
    BAD_ACCESS = 33  # a name, scope or hash that is none
    NO_ADMIN = 34  # the cell would have no admin
    UNKNOWN_PREDECESSOR = 35  # it follows what is not there
    CYCLE = 36  # it would follow itself, directly or through others
    FOLLOWED = 37  # what stays follows it
    UNKNOWN_GROUP = 38
    GROUP_CLOSED = 39  # it takes no more tasks
    GROUP_OPEN = 40  # only a closed group can be followed
    ON_DISK = 41  # the task's name, or another one with its hash, is that of a task on disk
    UNKNOWN_RULE = 42  # no rule of alerts has that name, or it is not for that subject
    UNKNOWN_CHANNEL = 43  # no channel of alerts has that name
    BAD_ALERTS = 44  # a name, pattern or number of alerts is out of range
    CHANNEL_IN_USE = 45  # jobs tell a channel that would go
    UNKNOWN_CALENDAR = 46
    CALENDAR_IN_USE = 47  # jobs use it
    PILE_FULL = 48  # its tenant has as many dead letters as it may

    @property
    def label(self) -> str:
        """The word for people."""
        return self.name.lower().replace("_", " ")


EndedRows: TypeAlias = tuple[int, Sequence[int], Sequence[int]]
"""Rows of batches that are over: executor, job numbers, and an instant for each."""


class Result(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one command: its verdict, one verdict per item, and what was assigned."""

    verdict: Verdict
    items: tuple[int, ...] = ()
    number: int = 0  # executor number, or catalog revision, or N of a manual trigger
    scheduled_s: int = 0  # of a manual trigger


class Outcome(msgspec.Struct, frozen=True):
    """The answer to one entry: a Result per command, and what it added to history.

    `verdict` is STALE_EPOCH where the entry was refused whole; it then has no commands.

    `begun_rows` are the lines that it began: executor, instant, job numbers. `begun` are other
    launches that it began. `ended_rows` are rows that are over by it. `moved` are other launches
    that are due or over by it, or have one part less, each with the executor that it left, 0 for
    none. `moved_tasks` are the numbers of tasks that are new, changed or forgotten by it.
    `gone_jobs` are the numbers of jobs of tasks that State has forgotten: their last launches were
    over by an entry before. `moved_groups` are the names of groups that are new, changed or
    forgotten by it. `following` are the numbers of jobs whose launches that wait are judged again:
    they follow a launch that is over by it, or it pauses them.
    `marked` are the numbers of jobs for which rules of alerts may fire, or fire no more, by it.
    `paused` are the names of jobs that it pauses because their launches failed.
    """

    verdict: Verdict
    epoch: Epoch
    commands: tuple[Command, ...]
    results: tuple[Result, ...]
    ended: tuple[Row | Chunk, ...]
    sealed: tuple[Sealed, ...] = ()
    begun: Collection[Key] = ()
    moved: Mapping[Key, int] = {}
    begun_rows: Sequence[tuple[int, int, list[int]]] = ()
    ended_rows: Sequence[EndedRows] = ()
    moved_tasks: Collection[int] = ()
    gone_jobs: Sequence[int] = ()
    moved_groups: Collection[str] = ()
    following: Collection[int] = ()
    marked: Collection[int] = ()
    paused: Sequence[str] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows that it added to history, made anew: what every entry meets asks `ended`."""
        return tuple(row for item in self.ended for row in rows_of(item))
