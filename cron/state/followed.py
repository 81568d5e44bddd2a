"""Jobs that follow other jobs: who may follow whom, and what their launches wait to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cron.job import Job, cycle_of
from cron.state import commands as c
from cron.state.context import Context
from cron.state.known_ends import NO_ENDS
from cron.state.outcome import Result, Verdict
from cron.state.rows import Chunk, Row
from cron.state.state import State


def check(state: State, jobs: Sequence[Job], removed: Sequence[str]) -> Verdict:
    """Whether these jobs may be put and removed: each follows jobs that there are then, none of
    them itself, and nothing that stays follows what goes."""
    changed = {job.name: job for job in jobs}
    gone = dict.fromkeys(removed)
    for name in removed if state.followers else ():
        for number in state.followers.get(name, ()):
            follower = state.by_number[number].name
            if follower not in gone and follower not in changed:
                return Verdict.FOLLOWED
    followers = [job.name for job in jobs if job.follows]
    if not followers:
        return Verdict.ACCEPTED
    for follower in followers:
        for name in changed[follower].follows:
            record = state.jobs.get(name)
            is_there = record is not None and record.job is not None and name not in gone
            if not is_there and name not in changed:
                return Verdict.UNKNOWN_PREDECESSOR
    is_cycle = cycle_of(followers, lambda name: predecessors(state, changed, name))
    return Verdict.CYCLE if is_cycle else Verdict.ACCEPTED


def predecessors(state: State, changed: Mapping[str, Job], name: str) -> tuple[str, ...]:
    """Return what a job follows once the jobs in `changed` are put."""
    job = changed.get(name)
    if job is None and (record := state.jobs.get(name)) is not None:
        job = record.job
    return job.follows if job is not None else ()


def forget_ends(context: Context) -> None:
    """Let go of the ends of jobs that nothing follows any more: call this after jobs changed."""
    state = context.state
    for name in state.unfollowed:
        record = state.jobs.get(name)
        if record is not None and name not in state.followers and record.ends is not None:
            state.touch(record)
            record.ends = None
    state.unfollowed.clear()


def note_read(context: Context, command: c.NoteEnds) -> Result:
    """Take over ends that were read from history, of jobs of which nothing ended since; a verdict
    for each."""
    return Result(Verdict.ACCEPTED, tuple([_note_read(context, item) for item in command.items]))


def _note_read(context: Context, item: c.EndsItem) -> Verdict:
    record = context.state.jobs.get(item.job)
    if record is None or item.job not in context.state.followers:
        return Verdict.UNKNOWN_JOB
    if record.ended_index > item.read_at or record.horizon_s != item.horizon_s:
        return Verdict.STALE_REVISION
    if record.ends is not None and record.ends.newest_s >= item.ends.newest_s:
        return Verdict.ALREADY
    context.state.touch(record)
    record.ends = item.ends
    return Verdict.ACCEPTED


def note_ends(context: Context) -> None:
    """Note the ends that this entry brought about, of launches of jobs that others follow. Call
    this after its last command: a launch that is open again is not over."""
    followers = context.state.followers
    for item in context.ended:
        if not isinstance(item, Chunk):
            if item.job in followers:
                _note_end(context, item)
        elif not followers.keys().isdisjoint(names := item.names()):
            for place, name in enumerate(names):
                if name in followers:
                    _note_end(context, item.row(place, name))


def _note_end(context: Context, row: Row) -> None:
    record = context.state.jobs.get(row.job)
    if record is None or row.trigger:
        return
    if context.state.row((record.number, row.scheduled_s, 0)) is not None:
        return
    context.state.touch(record)
    ends = record.ends or NO_ENDS
    record.ends = ends.with_end(row.scheduled_s, max(row.scheduled_s, row.last_s), row.state)
    context.following.update(context.state.followers[row.job])
