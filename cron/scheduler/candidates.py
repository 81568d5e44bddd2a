"""A launch that is due, as the plan judges it. Pure."""

from __future__ import annotations

import msgspec

from cron.job import Catchup, Job, Overlap
from cron.notes import Note
from cron.state.commands import Instants, Key
from cron.state.launch_row import LaunchRow
from cron.state.state import JobRecord


class Candidate(msgspec.Struct, gc=False):
    """A launch that is due: in State, or by the plan that is being made."""

    key: Key
    record: JobRecord
    deadline_ms: int
    is_late: bool
    enqueued_ms: int
    attempt: int = 0
    detail: str = ""
    is_reopened: bool = False
    refused_by: int = 0  # the executor that would not start its newest attempt
    not_before_ms: int = 0
    is_fresh: bool = False  # not in State yet
    tries: int = 0  # attempts before that failed
    held_to_ms: int = 0  # until when its deadline has the time that gates held it
    outlasted: bool = False  # its newest attempt never ran, as was known after its window only
    note: Note | None = None

    @property
    def is_refused(self) -> bool:
        """Whether an executor that refused the launch, or a plan that found no room, left a
        note."""
        return bool(self.detail) or self.note is not None

    @property
    def is_scheduled(self) -> bool:
        """Whether nobody asked for the launch, so that a pause of its job applies."""
        return self.key[2] == 0 and not self.is_reopened


def of_row(row: LaunchRow, record: JobRecord) -> Candidate:
    """Return the candidate of a launch that waits in State."""
    is_reopened = row.trigger == 0 and bool(row.by)
    return Candidate(
        row.key,
        record,
        row.deadline_ms,
        row.is_late,
        row.due_at_ms or row.scheduled_s * 1000,
        row.attempt,
        row.detail,
        is_reopened,
        row.executor if row.is_refused else 0,
        row.not_before_ms,
        tries=row.tries,
        held_to_ms=row.held_to_ms,
        note=row.note,
    )


def of_due(due: Instants, record: JobRecord) -> Candidate:
    """Return the candidate of a launch that this plan makes due."""
    deadline_s = record.job.deadline_s if record.job else 0
    return Candidate(
        (record.number, due.scheduled_s, 0),
        record,
        (due.scheduled_s + deadline_s) * 1000,
        due.is_late,
        due.scheduled_s * 1000,
        is_fresh=True,
    )


def turn(candidate: Candidate) -> tuple[bool, int]:
    """Return the sort key in which candidates are judged: live before late, then oldest first.
    Launches of a job with overlap=queue are sorted by age alone."""
    return (candidate.is_late and not is_queue(candidate.record.job), candidate.key[1])


def has_run(candidate: Candidate) -> bool:
    """Return whether an earlier attempt ran, so that this is another try of a launch that is not
    over; also if an executor has refused that try."""
    return candidate.attempt > 0 and (not candidate.refused_by or candidate.tries > 0)


def is_queue(job: Job | None) -> bool:
    """Return whether the launches of a job begin one after the other, in the order of their
    instants."""
    return job is not None and job.overlap is Overlap.QUEUE


def is_outlasted(candidate: Candidate, job: Job) -> bool:
    """Return whether the order of a launch waited until its window was over, in a dead connection
    or for a leader, and its job wants no launch that late."""
    is_wanted = job.catchup is not Catchup.NONE or not candidate.is_scheduled
    return candidate.outlasted and not is_wanted and not has_run(candidate)


def is_exempt(candidate: Candidate, job: Job) -> bool:
    """Return whether a launch waits although its job forbids overlap: a job with catchup=all runs
    its missed instants one after the other, and a launch that has begun continues with its
    tries."""
    is_asked_for = candidate.is_reopened or (candidate.is_late and job.catchup is Catchup.ALL)
    return is_asked_for or has_run(candidate)
