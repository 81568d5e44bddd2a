"""What a launch of a job with `after=` waits for: the launches of other jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from cron.calendar.schedule import compile as compile_schedule
from cron.calendar.schedule import unreadable
from cron.job import Job
from cron.launch_state import LaunchState
from cron.notes import NOT_OVER, Note, NoteCode
from cron.state.known_ends import UNKNOWN
from cron.state.state import JobRecord, State
from launcher.protocol.names import format_time, short_job_name

SUCCEEDED: Final = LaunchState.SUCCEEDED


class Predecessor(NamedTuple):
    """A job that a launch follows, the instant of the launch that has to be over, None if there
    never was one, and the LaunchState in which that ended: NOT_OVER, or UNKNOWN."""

    name: str
    at_s: int | None
    state: int

    @property
    def note(self) -> Note:
        """What a skipped launch says of it."""
        return Note(NoteCode.PREDECESSOR, (short_job_name(self.name), self.state))

    def __str__(self) -> str:
        """Return what a waiting launch says of it."""
        at = f"@{format_time(self.at_s)}" if self.at_s is not None else ""
        return f"it follows {short_job_name(self.name)}{at}, which is not over"


def in_the_way(state: State, job: Job, scheduled_s: int) -> Predecessor | None:
    """Return the predecessor for which a launch of a job is skipped, else one for which it waits,
    else None."""
    waits_for = None
    for one in _predecessors(state, job, scheduled_s):
        if one.state == NOT_OVER:
            waits_for = waits_for or one
        elif one.state != SUCCEEDED and one.name in job.after:
            return one
    return waits_for


def _predecessors(state: State, job: Job, scheduled_s: int) -> Iterator[Predecessor]:
    """Yield what a launch follows: of each predecessor the newest launch that is due at its instant
    or before."""
    for name in job.follows:
        record = state.jobs.get(name)
        if record is None or record.job is None:
            yield Predecessor(name, None, UNKNOWN)
            continue
        if unreadable(record.job.schedule):  # it is held, and so is what follows it
            yield Predecessor(name, None, NOT_OVER)
            continue
        at_s = _newest_instant(record, scheduled_s)
        if at_s is None:
            yield Predecessor(name, None, UNKNOWN)
        elif at_s > record.horizon_s or state.row((record.number, at_s, 0)) is not None:
            yield Predecessor(name, at_s, NOT_OVER)
        else:
            yield Predecessor(name, at_s, record.ends.at(at_s) if record.ends else UNKNOWN)


def _newest_instant(record: JobRecord, until_s: int) -> int | None:
    """Return the newest instant of a job up to `until_s`, None if there was none."""
    for span in reversed(record.spans):
        to_s = min(until_s, span.to_s) if span.to_s else until_s
        if to_s > span.from_s and not unreadable(span.schedule):
            found = compile_schedule(span.schedule).newest(span.from_s, to_s, 1)
            if found:
                return found[0].scheduled_s
    return None
