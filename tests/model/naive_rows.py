"""What the naive state holds: plain records, and the little that all its rules do."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from cron.job import Job, Overlap
from cron.launch_state import LaunchState as S
from cron.state import commands as c
from cron.state import pool
from cron.state.outcome import Verdict
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch

Answer = tuple[set[Verdict], list[set[Verdict]]]
"""Objections to the command, and to each of its items."""


@dataclass
class NaiveLaunch:
    state: S
    deadline_ms: int
    attempt: int
    revision: int = 0
    executor: int = 0
    cancel: Reason = Reason.NONE
    overlap: Overlap = Overlap.ALLOW  # of the job that it began with
    not_before_ms: int = 0
    tries: int = 0  # attempts that failed
    was_dead: bool = False  # a redrive made it due, now or before its newest tries
    is_begun: bool = False  # since it became due
    unpaid_ms: int = 0  # its tenant had no retry left, and it would have rested until then


@dataclass
class NaiveJob:
    number: int
    source: str
    revision: int
    horizon_s: int
    job: Job | None
    local_min: int = -1
    held_until_ms: int = 0
    paused: int | None = None  # until when, 0 for good
    last_trigger: tuple[int, int] = (0, 0)
    last_end: int = 0
    failed: int = 0  # launches in a row, of one that is paused after so many
    accounted: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class NaiveLetter:
    attempt: int
    tries: int
    state: S
    reason: Reason


@dataclass
class NaiveWorld:
    """All of it.

    `rows` are (kind, job, first_s, last_s, count, trigger, attempt, state, reason). `reopened` and
    `again` are the launches that became due once more: asked for out of history, and all others.
    """

    at_ms: int = 0
    index: int = 0
    epoch: Epoch = Epoch()  # noqa: RUF009 - frozen
    catalog: int = 0
    jobs: dict[str, NaiveJob] = field(default_factory=dict)
    open: dict[c.Key, NaiveLaunch] = field(default_factory=dict)
    executors: dict[int, tuple[str, str]] = field(default_factory=dict)
    executors_ever: int = 0
    requests: dict[str, c.Key] = field(default_factory=dict)
    lost: list[tuple[c.Key, int]] = field(default_factory=list)
    parts: dict[str, list[Job]] = field(default_factory=dict)
    parts_seen: int = 0
    leaves: bool = False  # what waits of jobs that this entry removes
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    over: list[tuple[c.Key, S]] = field(default_factory=list)  # what this entry ended, in order
    reopened: list[c.Key] = field(default_factory=list)
    again: list[c.Key] = field(default_factory=list)
    dead: dict[c.Key, NaiveLetter] = field(default_factory=dict)  # oldest first
    dead_kept: int = 100_000
    format: int = c.FORMAT
    retries_spent: dict[str, Fraction] = field(default_factory=dict)  # tenant -> ahead by
    limits: dict[pool.Scope, pool.Limits] = field(default_factory=dict)
    gates: dict[int, int] = field(default_factory=dict)  # number -> until_ms
    gates_ever: int = 0
    drained: dict[int, str] = field(default_factory=dict)  # number of an executor -> by whom

    def job_of(self, number: int) -> tuple[str, NaiveJob] | None:
        for name, job in self.jobs.items():
            if job.number == number:
                return name, job
        return None

    def make_due(self, key: c.Key, launch: NaiveLaunch) -> None:
        """What is due is not dead."""
        self.open[key] = launch
        self.dead.pop(key, None)

    def end(self, key: c.Key, state: S, reason: Reason) -> None:
        """The launch is over and has its row."""
        launch = self.open.pop(key)
        found = self.job_of(key[0])
        assert found is not None
        name, job = found
        job.last_end = self.index
        self.over.append((key, state))
        if launch.attempt and not launch.is_begun:
            launch.attempt += 1  # what never began was to be the next
        self.row("ended", name, key[1], key[1], 1, key[2], launch.attempt, state, reason)

    def row(self, *values: Any) -> None:
        self.rows.append(values)
