"""A launch and a job of the naive state: plain records."""

from __future__ import annotations

from dataclasses import dataclass, field

from cron.job import Job, Overlap
from launcher.launch import LaunchState as S
from launcher.launch import Reason


@dataclass
class NaiveLaunch:
    state: S
    deadline_ms: int
    attempt: int
    revision: int = 0
    executor: int = 0
    cancel: Reason = Reason.NONE
    overlap: Overlap = Overlap.ALLOW  # of the job that it began with


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
    accounted: list[tuple[int, int]] = field(default_factory=list)
