"""A launch that is due, as the plan judges it, and why it may never begin. Pure."""

from __future__ import annotations

import msgspec

from cron.job import Catchup, Job, Overlap
from cron.notes import Note
from cron.state.commands import DueItem, Key
from cron.state.state import JobRecord, LaunchRow
from launcher.protocol.status import Reason


class Candidate(msgspec.Struct, gc=False):
    """A launch that is due: in State already, or by this very plan."""

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
        """Whether something was said of it since it waits: by who would not start it, or by a plan
        that found no room."""
        return bool(self.detail) or self.note is not None

    @property
    def is_scheduled(self) -> bool:
        """Whether no person asked for it, so that a pause of its job holds for it."""
        return self.key[2] == 0 and not self.is_reopened


def of_row(row: LaunchRow, record: JobRecord) -> Candidate:
    """Return what waits in State."""
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


def of_due(due: DueItem, record: JobRecord) -> Candidate:
    """Return what an account is about to make due."""
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
    """The order in which candidates are judged: live before late, oldest first; a queue's launches
    by age alone."""
    return (candidate.is_late and not is_queue(candidate.record.job), candidate.key[1])


def has_run(candidate: Candidate) -> bool:
    """Whether an attempt before ran, so that this is another try of a launch that is not over; also
    where an executor has refused that try."""
    return candidate.attempt > 0 and (not candidate.refused_by or candidate.tries > 0)


def is_queue(job: Job | None) -> bool:
    """Whether the launches of a job begin one after the other, in the order of their instants."""
    return job is not None and job.overlap is Overlap.QUEUE


def is_outlasted(candidate: Candidate, job: Job) -> bool:
    """Whether its order waited until the window was over, in a dead connection or for a leader, and
    the job wants no launch that late."""
    is_wanted = job.catchup is not Catchup.NONE or not candidate.is_scheduled
    return candidate.outlasted and not is_wanted and not has_run(candidate)


def too_late(candidate: Candidate) -> Reason:
    """Return why a launch past its deadline was not started: fenced, or missed, or no room in
    time."""
    if candidate.attempt and candidate.is_refused:
        return Reason.FENCED
    return Reason.MISSED if candidate.is_late and not candidate.attempt else Reason.DEADLINE


def is_exempt(candidate: Candidate, job: Job) -> bool:
    """Whether it waits its turn where overlap is forbidden: whoever wants all that was missed wants
    one after the other, not the first alone; and what has begun goes on with its tries."""
    is_asked_for = candidate.is_reopened or (candidate.is_late and job.catchup is Catchup.ALL)
    return is_asked_for or has_run(candidate)
