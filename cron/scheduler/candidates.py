"""Launches that are due, as the plan judges them. Pure."""

from __future__ import annotations

from cron.job import Catchup, Job, Overlap
from cron.launch_state import LaunchState
from cron.state.launch_row import LaunchRow
from cron.state.state import JobRecord

DUE = LaunchState.DUE  # members of an enumeration are slow to look up


def of_due(scheduled_s: int, record: JobRecord, *, is_late: bool = False) -> LaunchRow:
    """Return the row of a launch that this plan makes due."""
    deadline_s = record.job.deadline_s if record.job else 0
    deadline_ms = (scheduled_s + deadline_s) * 1000
    return LaunchRow(record.number, scheduled_s, 0, DUE, deadline_ms, is_late=is_late)


def turn(launch: LaunchRow, job: Job | None) -> tuple[bool, int]:
    """Return the sort key in which launches are judged: live before late, then oldest first.
    Launches of a job with overlap=queue are sorted by age alone."""
    return (launch.is_late and not is_queue(job), launch.scheduled_s)


def has_run(launch: LaunchRow) -> bool:
    """Return whether an earlier attempt ran, so that this is another try of a launch that is not
    over; also if an executor has refused that try."""
    return launch.attempt > 0 and (not launch.refused_by or launch.tries > 0)


def is_queue(job: Job | None) -> bool:
    """Return whether the launches of a job begin one after the other, in the order of their
    instants."""
    return job is not None and job.overlap is Overlap.QUEUE


def wants_another_order(launch: LaunchRow, job: Job) -> bool:
    """Return whether a launch is to begin although its last order waited until its start window was
    over, in a dead connection or for a leader."""
    return job.catchup is not Catchup.NONE or not launch.is_scheduled or has_run(launch)


def is_exempt(launch: LaunchRow, job: Job) -> bool:
    """Return whether a launch waits although its job forbids overlap: a job with catchup=all runs
    its missed instants one after the other, and a launch that has begun continues with its
    tries."""
    is_asked_for = launch.is_reopened or (launch.is_late and job.catchup is Catchup.ALL)
    return is_asked_for or has_run(launch)
